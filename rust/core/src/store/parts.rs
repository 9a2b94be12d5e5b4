//! [`Parts`]: what the methods that all stores share work on. It keeps [`Store`](super::Store) from
//! being implemented elsewhere.

use std::hint::black_box;

use super::lost_keys::LostKeys;
use crate::ids::{BlockId, PoolId};
use crate::pool::BlockStates;
use crate::prefix_index::{Inserted, Key, PrefixIndex};

/// Keys whose places in the index are fetched at a time: they lie anywhere in memory, and one after
/// the other each would be waited for.
pub(super) const READ_AHEAD: usize = 16;

/// Changes of a store's contents: evicted keys, and counts.
#[derive(Debug, Default)]
pub struct Journal {
    pub(super) evicted: Vec<Key>,
    pub(super) num_changes: u64,
    pub(super) num_dropped: u64,
    pub(super) now: u64,
}

/// The parts of a store that change with the contents of one pool.
#[derive(Debug)]
pub struct PoolParts<'a> {
    pub(super) states: &'a mut BlockStates,
    pub(super) index: &'a mut PrefixIndex,
    pub(super) journal: &'a mut Journal,
    pub(super) lost_keys: Option<&'a mut LostKeys>,
}

impl PoolParts<'_> {
    /// Reads what insertions look at first, so that it is in the CPU's cache then.
    #[inline]
    pub(super) fn read_ahead(self, entries: &[(BlockId, Key, u32)]) {
        black_box(entries.iter().fold(0, |all, (_, key, _)| all ^ self.index.read_ahead(key)));
    }

    /// Inserts the keys of blocks that look-ups will ask for in a row, after `before`. It stops at
    /// the first key that another block has carried for longer, or that its block carried already.
    /// Returns its place.
    #[inline]
    pub(super) fn insert_run(
        mut self,
        before: &mut Option<BlockId>,
        entries: &[(BlockId, Key, u32)],
    ) -> Option<usize> {
        entries.iter().position(|(block, key, num_tokens)| {
            let inserted = self.insert(*block, key, *num_tokens);
            if let Some(before) = before.replace(*block) {
                self.index.follow(before, *block);
            }
            inserted != Inserted::Sole
        })
    }

    #[inline]
    pub(super) fn insert(&mut self, block: BlockId, key: &Key, num_tokens: u32) -> Inserted {
        debug_assert!(!block.is_null());
        let inserted = self.index.insert(block, key, num_tokens);
        self.states.set_hashed(block);
        self.journal.num_changes += u64::from(inserted != Inserted::Known);
        inserted
    }

    /// Takes a block's keys out of the index and notes them as evicted.
    #[inline]
    pub(super) fn forget(self, block: BlockId) {
        let before = self.journal.evicted.len();
        self.index.remove_block(block, &mut self.journal.evicted);
        let keys = &self.journal.evicted[before..];
        self.journal.num_changes += keys.len() as u64;
        if let Some(lost_keys) = self.lost_keys {
            for key in keys {
                lost_keys.insert(key);
            }
        }
    }
}

/// Access to a store's parts.
pub trait Parts {
    /// Returns the journal of changes.
    fn journal(&self) -> &Journal;

    /// Returns the parts that change with the contents of `pool`.
    fn parts(&mut self, pool: PoolId) -> PoolParts<'_>;

    /// Returns the journal, to be changed.
    fn journal_mut(&mut self) -> &mut Journal {
        self.parts(PoolId(0)).journal
    }

    /// Notes that a block is in no index any more.
    fn clear_hashed(&mut self, pool: PoolId, block: BlockId);

    /// Makes every cached block of a pool a free one.
    fn reset_pool(&mut self, pool: PoolId);

    /// Drops an ownerless block that contains what `kept` contains under `key`. A fixed store keeps it,
    /// as vLLM does.
    fn drop_duplicate(&mut self, _pool: PoolId, _key: &Key, _kept: BlockId) {}

    /// Gives slabs of `pool` whose last content is gone back to the arena.
    fn collect_emptied(&mut self, _pool: PoolId) {}

    /// Drops the keys of evicted blocks, in order.
    fn forget_all(&mut self, pool: PoolId, blocks: &[BlockId]) {
        for blocks in blocks.chunks(READ_AHEAD) {
            let index = &*self.parts(pool).index;
            black_box(blocks.iter().fold(0, |all, &block| all ^ index.read_ahead_of(block)));
            for &block in blocks {
                self.parts(pool).forget(block);
            }
        }
    }
}
