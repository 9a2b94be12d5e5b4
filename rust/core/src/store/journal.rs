//! [`Journal`]: what happened to the contents of a store.

use crate::ids::BlockId;
use crate::prefix_index::{Key, PrefixIndex};

/// Evicted keys, and counts of changes.
#[derive(Debug, Default)]
pub struct Journal {
    pub(super) evicted: Vec<Key>,
    pub(super) num_changes: u64,
    pub(super) num_dropped: u64,
    pub(super) now: u64,
}

impl Journal {
    /// Takes a block's keys out of the index and notes them as evicted. Returns them.
    #[inline]
    pub(super) fn forget(&mut self, index: &mut PrefixIndex, block: BlockId) -> &[Key] {
        let before = self.evicted.len();
        index.remove_block(block, &mut self.evicted);
        self.num_changes += (self.evicted.len() - before) as u64;
        &self.evicted[before..]
    }
}
