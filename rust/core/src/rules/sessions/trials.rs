//! [`Trials`]: what caches of whole conversations would find beside the real one, each by another rule.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// Requests after which what was found counts `1 / e`.
pub(super) const MEMORY: f64 = 1024.0;

/// Conversations that a trial remembers, at most.
const MOST_KEPT: usize = 1 << 16;

/// The content of a conversation, from its latest request.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// What it takes, in the unit of the capacity.
    pub bytes: u64,
    /// Tokens that its next turn would find.
    pub num_tokens: u32,
}

/// A memory of whole conversations: of each what its latest request left, as one thing.
#[derive(Clone, Debug, Default)]
struct Trial {
    /// By priority, which is of no other.
    by_priority: BTreeMap<u64, u64>,
    /// By the number of the request that ended.
    of: FxHashMap<u64, (u64, Kept)>,
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
            self.lives += evicted as f64 / capacity.max(1) as f64;
        }
    }
}

/// As many memories as rules are tried; the first one's rule is believed until another finds more.
#[derive(Clone, Debug)]
pub struct Trials<const N: usize> {
    of: [Trial; N],
}

impl<const N: usize> Default for Trials<N> {
    fn default() -> Self {
        Self { of: std::array::from_fn(|_| Trial::default()) }
    }
}

impl<const N: usize> Trials<N> {
    /// A request resumes from the one that ended as number `end`.
    pub fn on_return(&mut self, end: u64) {
        for trial in &mut self.of {
            trial.found += trial.take(end).map_or(0.0, |kept| f64::from(kept.num_tokens));
        }
    }

    /// The request that is number `end` ended, beside a capacity in the unit of `kept.bytes`. `priority`, of a trial
    /// and its lives so far, is of no other end; the lowest is evicted first.
    pub fn on_end(
        &mut self,
        end: u64,
        kept: Kept,
        capacity: u64,
        priority: impl Fn(usize, f64) -> u64,
    ) {
        for (at, trial) in self.of.iter_mut().enumerate() {
            trial.found *= 1.0 - 1.0 / MEMORY;
            trial.keep(end, kept, priority(at, trial.lives), capacity);
        }
    }

    /// Counts tokens as found by one trial: how far it is ahead before anything is known.
    pub fn favour(&mut self, trial: usize, num_tokens: f64) {
        self.of[trial].found += num_tokens;
    }

    /// Tokens that a trial found, lately.
    #[must_use]
    pub fn found(&self, trial: usize) -> f64 {
        self.of[trial].found
    }

    /// The trial that found most; the first one, unless it found less by a share `least_gain` of its own.
    #[must_use]
    pub fn best(&self, least_gain: f64) -> usize {
        let mut best = (0, (1.0 + least_gain) * self.of[0].found);
        for (at, trial) in self.of.iter().enumerate() {
            if trial.found > best.1 {
                best = (at, trial.found);
            }
        }
        best.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_keeps_no_more_than_fits() {
        let mut trials = Trials::<2>::default();
        for end in 1..300 {
            let kept = Kept { bytes: end % 60, num_tokens: 1 };
            trials.on_end(end, kept, 100, |at, _| if at == 0 { end } else { u64::MAX - end });
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

    #[test]
    fn the_first_is_believed_until_another_finds_enough_more() {
        let mut trials = Trials::<2>::default();
        trials.favour(0, 100.0);
        trials.favour(1, 120.0);
        assert_eq!((trials.best(0.25), trials.best(0.1)), (0, 1));
    }
}
