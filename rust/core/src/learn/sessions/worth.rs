//! [`Worth`]: how likely what a request leaves behind is gone on from, learned from those before it.

use super::hint::Hint;

/// Turns that count separately; later ones are alike.
const NUM_TURNS: usize = 8;

/// Requests after which older ones count half.
const MEMORY: f64 = 512.0;

/// Requests that the prior counts as.
const PRIOR_WEIGHT: f64 = 16.0;

/// The mean chance that is believed in before anything was seen.
const MEAN_PRIOR: f64 = 0.35;

/// Mean chances that a chance can be, at most.
const MOST_CHANCES: f64 = 8.0;

/// Requests that are alike: in the turn of their conversation, and in what was said of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorthClass(u8);

impl WorthClass {
    /// The request after `num_turns` earlier ones of its conversation; a client says `hint` of it.
    pub fn new(num_turns: u8, hint: Hint) -> Self {
        Self(hint as u8 * NUM_TURNS as u8 + num_turns.min(NUM_TURNS as u8 - 1))
    }

    /// Earlier turns of the conversation.
    pub fn num_turns(self) -> u8 {
        self.0 % NUM_TURNS as u8
    }

    /// Returns the client's hint.
    pub(crate) fn hint(self) -> Hint {
        Hint::ALL[usize::from(self.0) / NUM_TURNS]
    }

    /// The chance to be gone on from that is believed in before anything was seen.
    fn prior(self) -> f64 {
        let hint = self.hint();
        let turns = f64::from(self.num_turns());
        hint.chance().unwrap_or((turns + 1.0) / (turns + 4.0))
    }
}

/// Requests that ended, lately, and how many of them were gone on from.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    ended: f64,
    continued: f64,
}

impl Counts {
    fn chance(self, prior: f64) -> f64 {
        (self.continued + PRIOR_WEIGHT * prior) / (self.ended + PRIOR_WEIGHT)
    }
}

/// Chance of a conversation to continue, by class. Content with a higher chance is kept for longer than its age says.
///
/// A client returns the less likely, the longer it has been away. Where the chance within a time falls as its inverse,
/// content is kept for a time in proportion to its chance. That time is the measured life of cached content, times its
/// chance over the mean chance.
#[derive(Clone, Debug)]
pub(super) struct Worth {
    of: [Counts; NUM_TURNS * Hint::ALL.len()],
    all: Counts,
}

impl Default for Worth {
    fn default() -> Self {
        Self { of: [Counts::default(); NUM_TURNS * Hint::ALL.len()], all: Counts::default() }
    }
}

impl Worth {
    /// A request of `class` ended.
    pub(super) fn on_end(&mut self, class: WorthClass) {
        for counts in [&mut self.of[usize::from(class.0)], &mut self.all] {
            counts.ended += 1.0;
            if counts.ended > MEMORY {
                counts.ended /= 2.0;
                counts.continued /= 2.0;
            }
        }
    }

    /// A request that ended turned out to be of another class, before it was gone on from.
    pub(super) fn on_reclassed(&mut self, from: WorthClass, to: WorthClass) {
        let from = &mut self.of[usize::from(from.0)];
        // An ended request may count for less than one by now.
        let ended = from.ended.min(1.0);
        from.ended -= ended;
        self.of[usize::from(to.0)].ended += ended;
    }

    /// A request of `class` was gone on from for the first time.
    pub(super) fn on_continued(&mut self, class: WorthClass) {
        self.of[usize::from(class.0)].continued += 1.0;
        self.all.continued += 1.0;
    }

    /// The chance that what a request of `class` leaves is gone on from, over the mean chance.
    pub(super) fn relative_chance(&self, class: WorthClass) -> f64 {
        let chance = self.of[usize::from(class.0)].chance(class.prior());
        (chance / self.all.chance(MEAN_PRIOR)).min(MOST_CHANCES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(worth: &mut Worth, class: WorthClass, num: u32, continued: u32) {
        (0..num).for_each(|_| worth.on_end(class));
        (0..continued).for_each(|_| worth.on_continued(class));
    }

    #[test]
    fn before_anything_was_seen_later_turns_and_hints_of_more_are_worth_more() {
        let worth = Worth::default();
        let turns =
            [0, 1, 2, 7, 200].map(|turn| worth.relative_chance(WorthClass::new(turn, Hint::None)));
        assert!(turns.windows(2).all(|pair| pair[0] <= pair[1]), "{turns:?}");
        assert!(turns[0] < 1.0 && turns[3] > 1.5);
        let hints = [Hint::Compacted, Hint::Done, Hint::None, Hint::GoingOn, Hint::Paused];
        let hints = hints.map(|hint| worth.relative_chance(WorthClass::new(0, hint)));
        assert!(hints.windows(2).all(|pair| pair[0] < pair[1]), "{hints:?}");
    }

    #[test]
    fn counts_are_halved_once_more_than_512_requests_ended() {
        let (mut worth, class) = (Worth::default(), WorthClass::new(0, Hint::None));
        ended(&mut worth, class, 512, 100);
        ended(&mut worth, class, 1, 0);
        for counts in [worth.all, worth.of[usize::from(class.0)]] {
            assert_eq!((counts.ended, counts.continued), (256.5, 50.0));
        }
    }

    #[test]
    fn what_was_seen_long_ago_counts_little() {
        let mut worth = Worth::default();
        let [early, late] = [0, 3].map(|turn| WorthClass::new(turn, Hint::None));
        ended(&mut worth, early, 5_000, 0);
        ended(&mut worth, late, 5_000, 500);
        let before = worth.relative_chance(early);
        for _ in 0..500 {
            ended(&mut worth, early, 1, 1);
        }
        assert!(
            worth.relative_chance(early) > 20.0 * before,
            "{before} {}",
            worth.relative_chance(early)
        );
    }

    #[test]
    fn a_hint_that_turns_out_wrong_is_believed_no_more() {
        let mut worth = Worth::default();
        let [on, done] = [Hint::GoingOn, Hint::Done].map(|hint| WorthClass::new(0, hint));
        for _ in 0..8 {
            ended(&mut worth, on, 50, 5);
            ended(&mut worth, done, 50, 35);
        }
        assert!(worth.relative_chance(on) < worth.relative_chance(done));
    }
}
