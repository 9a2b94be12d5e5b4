//! [`Failures`]: keys that could not be read or written lately.

use std::time::{Duration, Instant};

use hybrid_blocks::Key;
use rustc_hash::FxHashMap as HashMap;

/// Keys beyond which those whose time is over are forgotten.
const MANY: usize = 1024;

/// Keys that are misses for a while, each by itself.
#[derive(Debug)]
pub(crate) struct Failures {
    keys: HashMap<Key, (Instant, u32)>,
    retry_after: Duration,
}

impl Failures {
    pub(crate) fn new(retry_after: Duration) -> Self {
        Self { keys: HashMap::default(), retry_after }
    }

    /// Notes that a try with a key failed. Returns how many did in a row.
    pub(crate) fn note(&mut self, key: &Key) -> u32 {
        let now = Instant::now();
        if self.keys.len() >= MANY {
            self.keys.retain(|_, (until, _)| *until > now);
        }
        let (until, tries) = self.keys.entry(*key).or_insert((now, 0));
        *until = now + self.retry_after;
        *tries += 1;
        *tries
    }

    pub(crate) fn forget(&mut self, key: &Key) {
        self.keys.remove(key);
    }

    /// Whether a key failed and its time is not over.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        !self.keys.is_empty()
            && self.keys.get(key).is_some_and(|&(until, _)| Instant::now() < until)
    }
}
