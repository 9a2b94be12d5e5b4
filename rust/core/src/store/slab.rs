//! [`SlabStore`]: pools of blocks of several sizes that share one arena of slabs.

use super::arena::Arena;
use super::journal::Journal;
use super::lost_keys::LostKeys;
use super::parts::{Parts, PoolParts};
use super::{Reservation, Store};
use crate::error::Error;
use crate::ids::{BlockId, PoolId, SlabId};
use crate::pool::{BlockStates, SlabPool, Slabs};
use crate::prefix_index::{Key, PrefixIndex};

/// Pools over one arena. Each takes whole slabs from it as it needs them, and takes idle slabs from
/// other pools where their content is the oldest or has the lowest priority.
#[derive(Debug)]
pub struct SlabStore {
    pub(super) arena: Arena,
    pub(super) pools: Vec<SlabPool>,
    pub(super) indexes: Vec<PrefixIndex>,
    lost_keys: Vec<LostKeys>,
    journal: Journal,
    pub(super) by_priority: bool,
    /// Evicted blocks of the current allocation whose keys are still in the index.
    pub(super) unforgotten: Vec<BlockId>,
}

impl SlabStore {
    /// Pools over one arena of `num_slabs`, of which the first stays empty for the null block.
    /// `blocks_per_slab` has one entry a pool.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] without pools, with fewer than 2 slabs, or unless each pool has 1 to
    /// 2^29 blocks.
    pub fn new(num_slabs: u32, blocks_per_slab: &[u32]) -> Result<Self, Error> {
        if blocks_per_slab.is_empty() || num_slabs < 2 {
            return Err(Error::InvalidConfig(format!(
                "{} pools over {num_slabs} slabs: at least 1 pool and 2 slabs are needed, \
                 the first slab is the null block's",
                blocks_per_slab.len()
            )));
        }
        let pools = blocks_per_slab
            .iter()
            .map(|&blocks| SlabPool::new(num_slabs, blocks))
            .collect::<Result<Vec<_>, _>>()?;
        let num_ids = pools.iter().map(|pool| pool.blocks.num_ids());
        Ok(Self {
            arena: Arena::new(num_slabs, 1),
            indexes: num_ids.clone().map(PrefixIndex::new).collect(),
            lost_keys: num_ids.map(LostKeys::new).collect(),
            pools,
            journal: Journal::default(),
            by_priority: false,
            unforgotten: Vec::new(),
        })
    }

    /// The slabs of a pool.
    pub(super) fn slabs(&self, pool: PoolId) -> &Slabs {
        &self.pools[pool.index()].slabs
    }

    /// Drops what is cached in a slab without live blocks, so that it comes free.
    pub(crate) fn drop_cached_in(&mut self, pool: PoolId, slab: SlabId) {
        let cached: Vec<_> = self.pools[pool.index()].cached_in(slab).collect();
        for block in cached {
            self.drop_keys(pool, block);
        }
        self.collect_emptied(pool);
    }
}

impl Parts for SlabStore {
    fn journal(&self) -> &Journal {
        &self.journal
    }

    fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    #[inline]
    fn parts(&mut self, pool: PoolId) -> PoolParts<'_> {
        PoolParts {
            states: &mut self.pools[pool.index()].blocks,
            index: &mut self.indexes[pool.index()],
            journal: &mut self.journal,
        }
    }

    fn forget(&mut self, pool: PoolId, block: BlockId) {
        let keys = self.journal.forget(&mut self.indexes[pool.index()], block);
        let lost_keys = &mut self.lost_keys[pool.index()];
        for key in keys {
            lost_keys.insert(key);
        }
    }

    fn clear_hashed(&mut self, pool: PoolId, block: BlockId) {
        self.pools[pool.index()].clear_hashed(block);
    }

    fn clear(&mut self, pool: PoolId) {
        self.indexes[pool.index()].clear();
        self.pools[pool.index()].reset();
        self.collect_emptied(pool);
    }

    /// There is hardly ever more than one duplicate. One that has further keys stays.
    #[cold]
    fn drop_duplicate(&mut self, pool: PoolId, key: &Key, kept: BlockId) {
        let (index, states) = (&self.indexes[pool.index()], self.pool(pool));
        let duplicate = index.blocks(key).find(|&block| {
            block != kept
                && states.ref_count(block) == 0
                && index.further_keys(block).next().is_none()
        });
        if let Some(duplicate) = duplicate {
            // The key is not lost: `kept` carries it.
            self.journal.forget(&mut self.indexes[pool.index()], duplicate);
            self.clear_hashed(pool, duplicate);
        }
    }

    #[inline]
    fn collect_emptied(&mut self, pool: PoolId) {
        while let Some(slab) = self.pools[pool.index()].give_up_emptied() {
            self.arena.give_back(slab);
        }
    }
}

impl Store for SlabStore {
    fn num_pools(&self) -> u32 {
        self.pools.len() as u32
    }

    #[inline]
    fn pool(&self, pool: PoolId) -> &BlockStates {
        &self.pools[pool.index()].blocks
    }

    #[inline]
    fn prefix_index(&self, pool: PoolId) -> &PrefixIndex {
        &self.indexes[pool.index()]
    }

    fn num_available(&self, pool: PoolId) -> u64 {
        let slabs = self.slabs(pool);
        slabs.slack() + self.num_whole_slabs() * u64::from(slabs.blocks_per_slab())
    }

    fn free_order(&self, pool: PoolId) -> Vec<BlockId> {
        self.pools[pool.index()].iter_available().collect()
    }

    fn num_slabs(&self) -> u64 {
        u64::from(self.arena.num_slabs()) - 1
    }

    fn num_free_slabs(&self) -> u32 {
        self.arena.num_free()
    }

    fn num_whole_slabs(&self) -> u64 {
        let idle = self.pools.iter().map(|pool| u64::from(pool.slabs.num_idle()));
        u64::from(self.arena.num_free()) + idle.sum::<u64>()
    }

    fn blocks_per_slab(&self, pool: PoolId) -> u32 {
        self.slabs(pool).blocks_per_slab()
    }

    fn slab_of(&self, pool: PoolId, block: BlockId) -> Option<SlabId> {
        (!block.is_null()).then(|| self.slabs(pool).slab_of(block.0))
    }

    fn as_slabs(&self) -> Option<&SlabStore> {
        Some(self)
    }

    fn as_slabs_mut(&mut self) -> Option<&mut SlabStore> {
        Some(self)
    }

    fn reserve(&self, demand: &[u64], reservation: &mut Reservation) -> Result<(), Error> {
        self.reserve_slabs(demand, reservation)
    }

    fn has_room(&self, demand: &[u64], headroom: u64, packed: bool) -> bool {
        self.has_slabs(demand, headroom, packed)
    }

    fn take(
        &mut self,
        pool: PoolId,
        num_blocks: u64,
        near: Option<SlabId>,
        reservation: &mut Reservation,
        out: &mut Vec<BlockId>,
    ) {
        self.take_reserved(pool, num_blocks, near, reservation, out);
    }

    #[inline]
    fn touch(&mut self, pool: PoolId, block: BlockId) -> Result<(), Error> {
        self.pools[pool.index()].touch(block)
    }

    fn undo_touch(&mut self, pool: PoolId, block: BlockId) {
        self.pools[pool.index()].undo_touch(block);
    }

    fn free(
        &mut self,
        pool: PoolId,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        self.pools[pool.index()].free(blocks)?;
        self.collect_emptied(pool);
        Ok(())
    }

    fn order_by_priority(&mut self) -> Result<(), Error> {
        self.by_priority = true;
        self.pools.iter_mut().for_each(|pool| pool.priorities.make_explicit());
        Ok(())
    }

    fn set_priority(&mut self, pool: PoolId, block: BlockId, priority: u64) {
        self.pools[pool.index()].priorities.set(block, priority);
    }

    fn priority(&self, pool: PoolId, block: BlockId) -> u64 {
        self.pools[pool.index()].priorities.get(block)
    }

    fn refresh(&mut self, pool: PoolId, block: BlockId) {
        self.pools[pool.index()].refresh(block);
    }

    fn demote(&mut self, pool: PoolId, block: BlockId) {
        self.pools[pool.index()].demote(block);
    }

    fn was_evicted(&self, pool: PoolId, key: &Key) -> bool {
        self.lost_keys[pool.index()].contains(key)
    }

    fn tick(&mut self) {
        self.journal.now += 1;
        let now = self.journal.now;
        self.pools.iter_mut().for_each(|pool| pool.priorities.set_now(now));
    }

    fn memory_bytes(&self) -> usize {
        self.pools.iter().map(SlabPool::memory_bytes).sum::<usize>()
            + self.indexes.iter().map(PrefixIndex::memory_bytes).sum::<usize>()
            + self.lost_keys.iter().map(LostKeys::memory_bytes).sum::<usize>()
    }

    fn check_integrity(&self) -> Result<(), String> {
        self.check()
    }
}
