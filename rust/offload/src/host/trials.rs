//! [`Trials`]: how much the chance of a next turn is to count, found out beside the cache.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap as HashMap;

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

/// Requests after which what was found counts `1 / e`.
const MEMORY: f64 = 1024.0;

/// Conversations that a trial remembers, at most.
const MOST_KEPT: usize = 1 << 16;

/// The content of a conversation, from its latest request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) bytes: u64,
    /// Tokens that its next turn would find.
    pub(super) num_tokens: u32,
}

/// A memory of whole conversations: of each what its latest request left, as one thing.
#[derive(Clone, Debug, Default)]
struct Trial {
    /// By priority, which is of no other.
    by_priority: BTreeMap<u64, u64>,
    /// By the number of the request that ended.
    of: HashMap<u64, (u64, Kept)>,
    bytes: u64,
    /// How often as much as the memory holds was evicted.
    lives: f64,
    /// Tokens found, lately.
    found: f64,
}

impl Trial {
    fn take(&mut self, end: u64) -> Option<Kept> {
        let (priority, kept) = self.of.remove(&end)?;
        self.by_priority.remove(&priority);
        self.bytes -= kept.bytes;
        Some(kept)
    }

    fn keep(&mut self, end: u64, kept: Kept, priority: u64, capacity: u64) {
        self.by_priority.insert(priority, end);
        self.of.insert(end, (priority, kept));
        self.bytes += kept.bytes;
        while self.bytes > capacity || self.of.len() > MOST_KEPT {
            let Some((_, &first)) = self.by_priority.first_key_value() else { break };
            let evicted = self.take(first).map_or(0, |kept| kept.bytes);
            self.lives += evicted as f64 / capacity as f64;
        }
    }
}

/// Memories as large as the cache's, and what each would have found. Each weighs chances in another
/// way.
#[derive(Clone, Debug)]
pub(super) struct Trials {
    capacity: u64,
    of: [Trial; LIVES.len()],
    num_measured: u32,
}

impl Trials {
    /// For a cache of `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity: capacity.max(1), of: Default::default(), num_measured: 0 }
    }

    /// A request resumes from the one that ended as number `end`.
    pub(super) fn on_return(&mut self, end: u64) {
        for trial in &mut self.of {
            trial.found += trial.take(end).map_or(0.0, |kept| f64::from(kept.num_tokens));
        }
    }

    /// The request that is number `end` ended. `chance` is that of a next turn, over the mean chance.
    pub(super) fn on_end(&mut self, end: u64, kept: Kept, chance: f64) {
        if self.num_measured < NUM_MEASURED {
            self.num_measured += 1;
            let share = HEAD_START / f64::from(NUM_MEASURED);
            self.of[FIRST].found += share * f64::from(kept.num_tokens);
        }
        for (trial, lives) in self.of.iter_mut().zip(LIVES) {
            trial.found *= 1.0 - 1.0 / MEMORY;
            let priority = Use::new(trial.lives, end, chance).priority(lives);
            trial.keep(end, kept, priority, self.capacity);
        }
    }

    /// Lives for which content of mean chance is to be kept beyond its age.
    pub(super) fn lives(&self) -> f64 {
        let mut best = ((1.0 + LEAST_GAIN) * self.of[0].found, LIVES[0]);
        for (trial, lives) in self.of.iter().zip(LIVES) {
            if trial.found > best.0 {
                best = (trial.found, lives);
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Kept = Kept { bytes: 1, num_tokens: 1_000 };

    fn is(trials: &Trials, at: usize) -> bool {
        (trials.lives() - LIVES[at]).abs() < f64::EPSILON
    }

    /// Every tenth conversation is likely to go on, and does after `pause` others; the rest never do.
    fn after_pauses(pause: u64, capacity: u64) -> Trials {
        let mut trials = Trials::new(capacity);
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
        let mut trials = Trials::new(100);
        for end in 1..5_000 {
            let (is_likely, goes_on) = (end % 2 == 0, end > 90 && end % 2 == 1);
            if goes_on {
                trials.on_return(end - 90);
            }
            trials.on_end(end, KEPT, if is_likely { 1.9 } else { 0.1 });
        }
        assert!(is(&trials, 0));
    }

    #[test]
    fn a_trial_keeps_no_more_than_fits() {
        let mut trials = Trials::new(100);
        for end in 1..300 {
            trials.on_end(end, Kept { bytes: end % 60, num_tokens: 1 }, (end % 7) as f64);
            for trial in &trials.of {
                let bytes: u64 = trial.of.values().map(|(_, kept)| kept.bytes).sum();
                assert_eq!((bytes, trial.by_priority.len()), (trial.bytes, trial.of.len()));
                assert!(bytes <= 100);
            }
        }
        assert!(trials.of[0].of.contains_key(&299));
        trials.on_return(299);
        assert!(trials.of.iter().all(|trial| !trial.of.contains_key(&299)), "a return counts once");
    }
}
