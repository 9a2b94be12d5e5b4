//! [`Parts`]: what the methods that all stores share work on. It keeps [`Store`](super::Store) from
//! being implemented elsewhere.

use super::journal::Journal;
use crate::ids::{BlockId, PoolId};
use crate::pool::BlockStates;
use crate::prefix_index::{Inserted, Key, PrefixIndex};

/// The parts of a store that an insertion changes.
#[derive(Debug)]
pub struct PoolParts<'a> {
    pub(super) states: &'a mut BlockStates,
    pub(super) index: &'a mut PrefixIndex,
    pub(super) journal: &'a mut Journal,
}

impl PoolParts<'_> {
    #[inline]
    pub(super) fn insert(self, block: BlockId, key: &Key, num_tokens: u32) -> Inserted {
        debug_assert!(!block.is_null());
        let inserted = self.index.insert(block, key, num_tokens);
        self.states.set_hashed(block);
        self.journal.num_changes += u64::from(inserted != Inserted::Known);
        inserted
    }
}

/// Access to a store's parts.
pub trait Parts {
    /// What happened to the contents.
    fn journal(&self) -> &Journal;

    /// What happened to the contents.
    fn journal_mut(&mut self) -> &mut Journal;

    /// What an insertion into `pool` changes.
    fn parts(&mut self, pool: PoolId) -> PoolParts<'_>;

    /// Takes a block's keys out of the index and notes them as evicted.
    fn forget(&mut self, pool: PoolId, block: BlockId);

    /// Notes that a block is in no index any more.
    fn clear_hashed(&mut self, pool: PoolId, block: BlockId);

    /// Drops an ownerless block that contains what `kept` contains under `key`. A fixed store keeps it,
    /// as vLLM does.
    fn drop_duplicate(&mut self, _pool: PoolId, _key: &Key, _kept: BlockId) {}

    /// Gives slabs of `pool` whose last content is gone back to the arena.
    fn collect_emptied(&mut self, _pool: PoolId) {}
}
