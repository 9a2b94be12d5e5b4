//! [`HostTrials`]: how much the chance of a next turn is to count, found out beside the cache.

use hybrid_blocks::{Kept, ShadowCaches};

use super::unit::Use;

/// Lives for which content of mean chance is kept beyond its age, one trial each. Which is best depends on how
/// long pauses are beside what the memory spans: with 0 only age counts; the more lives, the fewer
/// conversations are kept, and for longer.
const LIVES: [f64; 4] = [0.0, 1.0, 3.0, 8.0];

/// The trial that is believed at first, and by how many conversations found it is ahead then. Of the first 500
/// conversations of a trace, a memory of 80 finds next to none by age, and one of 270 finds many.
const FIRST: usize = 2;
const HEAD_START: f64 = 4.0;

/// Requests whose mean length counts as that of a conversation then.
const NUM_MEASURED: u32 = 8;

/// The share of what age finds that a trial has to find beyond it. Trials are rough: they know nothing of parts of
/// conversations, nor of prefixes that several share. Of 2,500 conversations (Mooncake, Qwen3.5-27B, 24 GiB on the
/// device, 346 GiB of host memory) one life found 7 % more in a trial, and 7 % less in the cache.
const LEAST_GAIN: f64 = 0.25;

/// Memories as large as the cache's, and what each would have found. Each weighs chances in another
/// way.
#[derive(Clone, Debug)]
pub(super) struct HostTrials {
    capacity: u64,
    of: ShadowCaches<{ LIVES.len() }>,
    num_measured: u32,
}

impl HostTrials {
    /// For a cache of `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity: capacity.max(1), of: ShadowCaches::default(), num_measured: 0 }
    }

    /// A request resumes from the one that ended as number `end`.
    pub(super) fn on_return(&mut self, end: u64) {
        self.of.on_return(end);
    }

    /// The request that is number `end` ended. `chance` is that of a next turn, over the mean chance.
    pub(super) fn on_end(&mut self, end: u64, kept: Kept, chance: f64) {
        if self.num_measured < NUM_MEASURED {
            self.num_measured += 1;
            let share = HEAD_START / f64::from(NUM_MEASURED);
            self.of.favour(FIRST, share * f64::from(kept.num_tokens));
        }
        self.of.on_end(end, kept, self.capacity, |trial, lives| {
            Use::new(lives, end, chance).priority(LIVES[trial])
        });
    }

    /// Lives for which content of mean chance is to be kept beyond its age.
    pub(super) fn lives(&self) -> f64 {
        LIVES[self.of.best(LEAST_GAIN)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Kept = Kept { bytes: 1, num_tokens: 1_000 };

    fn is(trials: &HostTrials, at: usize) -> bool {
        (trials.lives() - LIVES[at]).abs() < f64::EPSILON
    }

    /// Every tenth conversation is likely to go on, and does after `pause` others; the rest never do.
    fn after_pauses(pause: u64, capacity: u64) -> HostTrials {
        let mut trials = HostTrials::new(capacity);
        for end in 1..5_000 {
            if end > pause && (end - pause).is_multiple_of(10) {
                trials.on_return(end - pause);
            }
            let chance = if end % 10 == 0 { 1.5 } else { 0.6 };
            trials.on_end(end, KEPT, chance);
        }
        trials
    }

    #[test]
    fn fewer_are_kept_for_longer_where_pauses_exceed_what_the_memory_spans() {
        assert!(is(&after_pauses(50, 100), 0), "all of them find everything");
        assert!(is(&after_pauses(600, 100), 3));
    }

    #[test]
    fn age_alone_counts_where_chances_mislead() {
        let mut trials = HostTrials::new(100);
        for end in 1..5_000 {
            let (is_likely, goes_on) = (end % 2 == 0, end > 90 && end % 2 == 1);
            if goes_on {
                trials.on_return(end - 90);
            }
            trials.on_end(end, KEPT, if is_likely { 1.9 } else { 0.1 });
        }
        assert!(is(&trials, 0));
    }
}
