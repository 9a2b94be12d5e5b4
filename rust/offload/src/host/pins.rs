//! [`Pins`]: chunks that loads keep from eviction.

use hybrid_blocks::{Digest, Key};
use rustc_hash::FxHashMap as HashMap;

use super::copies::name;

/// How often each chunk is pinned, and the bytes of all.
#[derive(Debug, Default)]
pub(super) struct Pins {
    counts: HashMap<(Digest, u32), u32>,
    bytes: u64,
    chunk_bytes: u64,
}

impl Pins {
    /// Bytes of pinned chunks, each counted once for each pin.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of pinned chunks, each counted once.
    pub(super) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Notes a pin of a chunk of this many bytes.
    pub(super) fn add(&mut self, key: &Key, bytes: u64) {
        let count = self.counts.entry(name(key)).or_default();
        self.chunk_bytes += if *count == 0 { bytes } else { 0 };
        self.bytes += bytes;
        *count += 1;
    }

    /// Ends a pin. `false` if there is none, as for loads from before a reset.
    pub(super) fn remove(&mut self, key: &Key, bytes: u64) -> bool {
        let name = name(key);
        let Some(count) = self.counts.get_mut(&name) else { return false };
        *count -= 1;
        self.bytes -= bytes;
        if *count == 0 {
            self.counts.remove(&name);
            self.chunk_bytes -= bytes;
        }
        true
    }
}
