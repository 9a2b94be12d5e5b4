//! [`FixedStore`]: one pool of equal blocks, whose decisions are vLLM's.

use std::hint::black_box;

use super::journal::Journal;
use super::parts::{Parts, PoolParts};
use super::{READ_AHEAD, Reservation, Store};
use crate::error::Error;
use crate::ids::{BlockId, PoolId, SlabId};
use crate::pool::{BlockStates, QueuePool};
use crate::prefix_index::PrefixIndex;

/// One pool, number 0, that owns every block. It hands out and evicts blocks in the order of vLLM's
/// free queue.
#[derive(Debug)]
pub struct FixedStore {
    pub(super) pool: QueuePool,
    pub(super) index: PrefixIndex,
    journal: Journal,
}

impl FixedStore {
    /// A store of `num_blocks` blocks, the null block among them.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] unless `1 <= num_blocks <= 2^29`.
    pub fn new(num_blocks: u32) -> Result<Self, Error> {
        Ok(Self {
            pool: QueuePool::new(num_blocks)?,
            index: PrefixIndex::new(num_blocks),
            journal: Journal::default(),
        })
    }

    /// The queue of ownerless blocks.
    #[must_use]
    pub fn queue(&self) -> &QueuePool {
        &self.pool
    }

    /// As [`Store::free`], but every block ends at the end of the queue, hashed or not: its content
    /// stays readable until the block is handed out again.
    ///
    /// # Errors
    /// [`Error::NotLive`]; then nothing was freed.
    pub fn free_warm(
        &mut self,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        self.pool.free_warm(blocks)
    }
}

impl Parts for FixedStore {
    fn journal(&self) -> &Journal {
        &self.journal
    }

    fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    #[inline]
    fn parts(&mut self, _pool: PoolId) -> PoolParts<'_> {
        let Self { pool, index, journal } = self;
        PoolParts { states: pool.states_mut(), index, journal }
    }

    #[inline]
    fn forget(&mut self, _pool: PoolId, block: BlockId) {
        self.journal.forget(&mut self.index, block);
    }

    #[inline]
    fn clear_hashed(&mut self, _pool: PoolId, block: BlockId) {
        self.pool.clear_hashed(block);
    }
}

impl Store for FixedStore {
    fn num_pools(&self) -> u32 {
        1
    }

    #[inline]
    fn pool(&self, pool: PoolId) -> &BlockStates {
        debug_assert_eq!(pool.0, 0, "a fixed store has one pool");
        self.pool.states()
    }

    #[inline]
    fn prefix_index(&self, _pool: PoolId) -> &PrefixIndex {
        &self.index
    }

    fn num_available(&self, _pool: PoolId) -> u64 {
        self.num_whole_slabs()
    }

    fn free_order(&self, _pool: PoolId) -> Vec<BlockId> {
        self.pool.iter_available().collect()
    }

    fn num_slabs(&self) -> u64 {
        u64::from(self.pool.states().num_ids()) - 1
    }

    fn num_free_slabs(&self) -> u32 {
        self.pool.states().num_free()
    }

    fn num_whole_slabs(&self) -> u64 {
        u64::from(self.pool.states().num_available())
    }

    fn blocks_per_slab(&self, _pool: PoolId) -> u32 {
        1
    }

    fn slab_of(&self, _pool: PoolId, _block: BlockId) -> Option<SlabId> {
        None
    }

    fn reserve(&self, demand: &[u64], _reservation: &mut Reservation) -> Result<(), Error> {
        let (needed, available) = (demand[0], self.num_whole_slabs());
        if needed > available {
            return Err(Error::OutOfBlocks { needed, available });
        }
        Ok(())
    }

    fn has_room(&self, demand: &[u64], headroom: u64, _packed: bool) -> bool {
        demand[0] + headroom <= self.num_whole_slabs()
    }

    fn take(
        &mut self,
        pool: PoolId,
        num_blocks: u64,
        _near: Option<SlabId>,
        _reservation: &mut Reservation,
        out: &mut Vec<BlockId>,
    ) {
        let taken = self.pool.take_free(num_blocks, out);
        let start = out.len();
        let missing = (num_blocks - u64::from(taken)) as usize;
        out.extend(std::iter::from_fn(|| self.pool.evict()).take(missing));
        debug_assert_eq!(out.len() - start, missing, "a reserved block is missing");
        for blocks in out[start..].chunks(READ_AHEAD) {
            let index = &self.index;
            black_box(blocks.iter().fold(0, |all, &block| all ^ index.read_ahead_of(block)));
            for &block in blocks {
                self.forget(pool, block);
            }
        }
    }

    #[inline]
    fn touch(&mut self, _pool: PoolId, block: BlockId) -> Result<(), Error> {
        self.pool.touch(block)
    }

    fn undo_touch(&mut self, _pool: PoolId, block: BlockId) {
        self.pool.undo_touch(block);
    }

    fn free(
        &mut self,
        _pool: PoolId,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        self.pool.free(blocks)
    }

    fn reset(&mut self) -> Result<(), Error> {
        let num_blocks = self.pool.states().num_live();
        if num_blocks > 0 {
            return Err(Error::BlocksInUse { num_blocks });
        }
        self.journal.num_changes += 1;
        self.index.clear();
        self.pool.reset();
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.pool.memory_bytes() + self.index.memory_bytes()
    }

    fn check_integrity(&self) -> Result<(), String> {
        self.check()
    }
}
