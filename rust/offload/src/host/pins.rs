//! [`Pins`]: chunks that loads keep from eviction.

use hybrid_blocks::Key;
use rustc_hash::FxHashMap as HashMap;

/// How often each chunk is pinned, and the bytes of all.
#[derive(Debug, Default)]
pub(super) struct Pins {
    counts: HashMap<Key, u32>,
    /// Bytes of pinned chunks, each counted once for each pin.
    pub(super) bytes: u64,
    /// Bytes of pinned chunks, each counted once.
    pub(super) chunk_bytes: u64,
}

impl Pins {
    /// Notes a pin of a chunk of this many bytes.
    pub(super) fn add(&mut self, key: &Key, bytes: u64) {
        let count = self.counts.entry(*key).or_default();
        self.chunk_bytes += if *count == 0 { bytes } else { 0 };
        self.bytes += bytes;
        *count += 1;
    }

    /// Ends a pin. `false` if there is none, as for loads from before a reset.
    pub(super) fn remove(&mut self, key: &Key, bytes: u64) -> bool {
        let Some(count) = self.counts.get_mut(key) else { return false };
        *count -= 1;
        self.bytes -= bytes;
        if *count == 0 {
            self.counts.remove(key);
            self.chunk_bytes -= bytes;
        }
        true
    }
}
