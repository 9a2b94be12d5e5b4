//! [`ShadowCaches`]: what caches of whole conversations would find beside the real one, each by another rule.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// Requests after which what was found counts `1 / e`.
pub(super) const MEMORY: f64 = 1024.0;

/// Conversations that a cache remembers, at most.
const MOST_KEPT: usize = 1 << 16;

/// The content of a conversation, from its latest request.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Bytes of the content, in the unit of the capacity.
    pub bytes: u64,
    /// Tokens that its next turn would find.
    pub num_tokens: u32,
}

/// A memory of whole conversations: of each what its latest request left, as one thing.
#[derive(Clone, Debug, Default)]
struct ShadowCache {
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

impl ShadowCache {
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
pub struct ShadowCaches<const N: usize> {
    of: [ShadowCache; N],
}

impl<const N: usize> Default for ShadowCaches<N> {
    fn default() -> Self {
        Self { of: std::array::from_fn(|_| ShadowCache::default()) }
    }
}

impl<const N: usize> ShadowCaches<N> {
    /// A request resumes from the one that ended as number `end`.
    pub fn on_return(&mut self, end: u64) {
        for cache in &mut self.of {
            cache.found += cache.take(end).map_or(0.0, |kept| f64::from(kept.num_tokens));
        }
    }

    /// The request that is number `end` ended, beside a capacity in the unit of `kept.bytes`. `priority`, of a cache
    /// and its lives so far, is of no other end; the lowest is evicted first.
    pub fn on_end(
        &mut self,
        end: u64,
        kept: Kept,
        capacity: u64,
        priority: impl Fn(usize, f64) -> u64,
    ) {
        for (at, cache) in self.of.iter_mut().enumerate() {
            cache.found *= 1.0 - 1.0 / MEMORY;
            cache.keep(end, kept, priority(at, cache.lives), capacity);
        }
    }

    /// Counts tokens as found by one cache: how far it is ahead before anything is known.
    pub fn favour(&mut self, cache: usize, num_tokens: f64) {
        self.of[cache].found += num_tokens;
    }

    /// Tokens that a cache found, lately.
    pub fn found(&self, cache: usize) -> f64 {
        self.of[cache].found
    }

    /// The cache that found most; the first one, unless it found less by a share `least_gain` of its own.
    pub fn best(&self, least_gain: f64) -> usize {
        let mut best = (0, (1.0 + least_gain) * self.of[0].found);
        for (at, cache) in self.of.iter().enumerate() {
            if cache.found > best.1 {
                best = (at, cache.found);
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
        let mut caches = ShadowCaches::<2>::default();
        for end in 1..300 {
            let kept = Kept { bytes: end % 60, num_tokens: 1 };
            caches.on_end(end, kept, 100, |at, _| if at == 0 { end } else { u64::MAX - end });
            for cache in &caches.of {
                let bytes: u64 = cache.of.values().map(|(_, kept)| kept.bytes).sum();
                assert_eq!((bytes, cache.by_priority.len()), (cache.bytes, cache.of.len()));
                assert!(bytes <= 100);
            }
        }
        assert!(caches.of[0].of.contains_key(&299));
        caches.on_return(299);
        assert!(caches.of.iter().all(|cache| !cache.of.contains_key(&299)), "a return counts once");
    }

    #[test]
    fn the_first_is_believed_until_another_finds_enough_more() {
        let mut caches = ShadowCaches::<2>::default();
        caches.favour(0, 100.0);
        caches.favour(1, 120.0);
        assert_eq!((caches.best(0.25), caches.best(0.1)), (0, 1));
    }
}
