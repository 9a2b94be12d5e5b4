//! [`SlabStore`]: pools of blocks of several sizes that share one arena of slabs.

use super::lost_keys::LostKeys;
use super::parts::{Journal, Parts, PoolParts};
use super::{Reservation, Store};
use crate::error::{Error, ensure};
use crate::ids::{BlockId, PoolId, SlabId};
use crate::pool::{BlockStates, SlabPool, Slabs};
use crate::prefix_index::{Key, PrefixIndex};

/// Pools over one arena. Each takes whole slabs from it as it needs them. It takes idle slabs from
/// other pools where their content is the oldest or has the lowest priority.
#[derive(Debug)]
pub struct SlabStore {
    pub(super) num_slabs: u32,
    /// Slabs that no pool owns. The one given back last, or else the lowest, is taken first.
    pub(super) free_slabs: Vec<SlabId>,
    pub(super) pools: Vec<SlabPool>,
    pub(super) indexes: Vec<PrefixIndex>,
    pub(super) lost_keys: Vec<LostKeys>,
    journal: Journal,
    /// Evicted blocks of the current allocation whose keys are still in the index.
    pub(super) unforgotten: Vec<BlockId>,
    /// Slabs that pools started on since they were last asked for, if anybody asks.
    pub(super) started: Option<Vec<(PoolId, SlabId)>>,
    pub(super) slack: Slack,
    /// Slabs that a pool took from another one.
    pub(super) num_steals: u64,
}

/// When cached blocks are evicted that lie beside live ones, in a slab that no other pool can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slack {
    /// In the order of eviction alone.
    #[default]
    ByOrder,
    /// Before a whole slab is taken, if one is among the oldest: while requests wait for whole slabs, or soon will,
    /// more of them run.
    First,
    /// Always before a whole slab is taken, as free blocks beside live ones are. A pool then holds no more slabs than
    /// its most live blocks fill.
    Packed,
}

impl SlabStore {
    /// Pools over one arena of `num_slabs`; the first stays empty for the null block.
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
            num_slabs,
            // The first one stays empty: it is the null block's.
            free_slabs: (1..num_slabs).rev().map(SlabId).collect(),
            indexes: num_ids.clone().map(PrefixIndex::new).collect(),
            lost_keys: num_ids.map(LostKeys::new).collect(),
            pools,
            journal: Journal::default(),
            unforgotten: Vec::new(),
            started: None,
            slack: Slack::default(),
            num_steals: 0,
        })
    }

    /// Chooses from now on between cached blocks in slabs that hold live ones, and whole slabs.
    pub fn spend_slack(&mut self, slack: Slack) {
        self.slack = slack;
    }

    /// Notes from now on which slabs pools start on, for [`SlabStore::take_started`].
    pub fn note_started_slabs(&mut self) {
        self.started.get_or_insert_default();
    }

    /// Slabs that pools started on since the last call: what they hold is another pool's, or nothing.
    pub fn take_started(&mut self) -> Vec<(PoolId, SlabId)> {
        self.started.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Slabs that a pool owns.
    pub fn num_owned(&self, pool: PoolId) -> u32 {
        self.slabs(pool).num_owned()
    }

    /// Slabs that pools took from each other so far.
    pub fn num_steals(&self) -> u64 {
        self.num_steals
    }

    /// Whether slabs that hold live blocks have more room than all whole slabs. Requests would then soon
    /// wait for whole slabs, though much of the memory is not live.
    pub fn is_scattered(&self) -> bool {
        let slack = |slabs: &Slabs| slabs.slack() as f64 / f64::from(slabs.blocks_per_slab());
        self.pools.iter().map(|pool| slack(&pool.slabs)).sum::<f64>() > self.num_whole() as f64
    }

    /// The slabs of a pool.
    pub(super) fn slabs(&self, pool: PoolId) -> &Slabs {
        &self.pools[pool.index()].slabs
    }

    /// Returns the count of [`Store::num_whole_slabs`].
    pub(super) fn num_whole(&self) -> u64 {
        let idle = self.pools.iter().map(|pool| u64::from(pool.slabs.num_idle()));
        self.free_slabs.len() as u64 + idle.sum::<u64>()
    }
}

impl Parts for SlabStore {
    fn journal(&self) -> &Journal {
        &self.journal
    }

    #[inline]
    fn parts(&mut self, pool: PoolId) -> PoolParts<'_> {
        PoolParts {
            states: &mut self.pools[pool.index()].blocks,
            index: &mut self.indexes[pool.index()],
            journal: &mut self.journal,
            lost_keys: Some(&mut self.lost_keys[pool.index()]),
        }
    }

    fn clear_hashed(&mut self, pool: PoolId, block: BlockId) {
        self.pools[pool.index()].clear_hashed(block);
    }

    fn reset_pool(&mut self, pool: PoolId) {
        self.pools[pool.index()].reset();
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
            PoolParts { lost_keys: None, ..self.parts(pool) }.forget(duplicate);
            // Who left the duplicate may still come back for it.
            let priorities = &mut self.pools[pool.index()].priorities;
            priorities.set(kept, priorities.get(duplicate).max(priorities.get(kept)));
            self.clear_hashed(pool, duplicate);
            self.collect_emptied(pool);
        }
    }

    #[inline]
    fn collect_emptied(&mut self, pool: PoolId) {
        while let Some(slab) = self.pools[pool.index()].give_up_emptied() {
            self.free_slabs.push(slab);
        }
    }
}

impl Store for SlabStore {
    #[inline]
    fn pool(&self, pool: PoolId) -> &BlockStates {
        &self.pools[pool.index()].blocks
    }

    #[inline]
    fn prefix_index(&self, pool: PoolId) -> &PrefixIndex {
        &self.indexes[pool.index()]
    }

    fn free_order(&self, pool: PoolId) -> Vec<BlockId> {
        self.pools[pool.index()].iter_available().collect()
    }

    fn as_slabs(&self) -> Option<&SlabStore> {
        Some(self)
    }

    fn as_slabs_mut(&mut self) -> Option<&mut SlabStore> {
        Some(self)
    }

    fn take(
        &mut self,
        pool: PoolId,
        num_blocks: u64,
        mut near: Option<SlabId>,
        reservation: &mut Reservation,
        out: &mut Vec<BlockId>,
    ) {
        out.reserve(num_blocks as usize);
        let mut left = num_blocks;
        while left > 0 {
            let taken = self.take_some(pool, near, left, reservation, out);
            if taken == 0 {
                debug_assert!(false, "a reserved block is missing");
                break;
            }
            left -= u64::from(taken);
            near = out.last().map(|block| self.slabs(pool).slab_of(block.0));
        }
        self.forget_evicted(pool);
    }

    fn touch_all(
        &mut self,
        pool: PoolId,
        blocks: impl Iterator<Item = BlockId>,
    ) -> Result<(), Error> {
        self.pools[pool.index()].touch(blocks)
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

    fn memory_bytes(&self) -> usize {
        self.pools.iter().map(SlabPool::memory_bytes).sum::<usize>()
            + self.indexes.iter().map(PrefixIndex::memory_bytes).sum::<usize>()
            + self.lost_keys.iter().map(LostKeys::memory_bytes).sum::<usize>()
    }

    fn check_integrity(&self) -> Result<(), String> {
        let mut owners = vec![0u32; self.num_slabs as usize];
        self.free_slabs.iter().for_each(|slab| owners[slab.index()] += 1);
        for (pool, index) in self.pools.iter().zip(&self.indexes) {
            pool.check()?;
            index.check(|block| pool.blocks.is_hashed(block))?;
            pool.slabs.owned().for_each(|slab| owners[slab.index()] += 1);
        }
        for (slab, count) in owners.iter().enumerate().skip(1) {
            ensure!(*count == 1, "slab {slab} has {count} owners");
        }
        Ok(())
    }
}
