//! [`FixedStore`]: one pool of equal blocks, whose decisions are vLLM's.

use super::parts::{Journal, Parts, PoolParts};
use super::{Reservation, Store};
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

    #[inline]
    fn parts(&mut self, _pool: PoolId) -> PoolParts<'_> {
        let Self { pool, index, journal } = self;
        PoolParts { states: &mut pool.blocks, index, journal, lost_keys: None }
    }

    #[inline]
    fn clear_hashed(&mut self, _pool: PoolId, block: BlockId) {
        self.pool.clear_hashed(block);
    }

    fn reset_pool(&mut self, _pool: PoolId) {
        self.pool.reset();
    }
}

impl Store for FixedStore {
    #[inline]
    fn pool(&self, pool: PoolId) -> &BlockStates {
        debug_assert_eq!(pool.0, 0, "a fixed store has one pool");
        &self.pool.blocks
    }

    #[inline]
    fn prefix_index(&self, _pool: PoolId) -> &PrefixIndex {
        &self.index
    }

    fn free_order(&self, _pool: PoolId) -> Vec<BlockId> {
        self.pool.iter_available().collect()
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
        self.forget_all(pool, &out[start..]);
    }

    fn touch_all(
        &mut self,
        _pool: PoolId,
        blocks: impl Iterator<Item = BlockId>,
    ) -> Result<(), Error> {
        self.pool.touch(blocks)
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

    fn memory_bytes(&self) -> usize {
        self.pool.memory_bytes() + self.index.memory_bytes()
    }

    fn check_integrity(&self) -> Result<(), String> {
        self.pool.check()?;
        self.index.check(|block| self.pool.blocks.is_hashed(block))
    }
}
