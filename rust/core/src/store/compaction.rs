//! Emptying slabs of a [`SlabStore`] by moving their live blocks.

use super::SlabStore;
use super::parts::Parts;
use crate::ids::{BlockId, PoolId, SlabId};
use crate::pool::Slabs;

impl SlabStore {
    /// Up to `num_slabs` slabs that can be emptied, the cheapest first: all their live blocks fit into
    /// the other slabs of their pool that hold live blocks.
    pub(crate) fn movable_slabs(&self, num_slabs: usize) -> Vec<(PoolId, SlabId)> {
        let pools = (0..).map(PoolId).zip(self.pools.iter().map(|pool| &pool.slabs));
        let mut candidates: Vec<_> = pools
            .flat_map(|(pool, slabs)| slabs.live().map(move |slab| (pool, slab, slabs)))
            .collect();
        let share = |slab: SlabId, slabs: &Slabs| {
            f64::from(slabs.num_live_in(slab)) / f64::from(slabs.blocks_per_slab())
        };
        candidates.sort_by(|a, b| share(a.1, a.2).total_cmp(&share(b.1, b.2)));
        let mut room: Vec<u64> = self.pools.iter().map(|pool| pool.slabs.slack()).collect();
        let mut chosen = Vec::new();
        for (pool, slab, slabs) in candidates {
            // The slab's own slack goes with it, and the others take its live blocks.
            let lost = u64::from(slabs.blocks_per_slab());
            if chosen.len() < num_slabs && room[pool.index()] >= lost {
                room[pool.index()] -= lost;
                chosen.push((pool, slab));
            }
        }
        chosen
    }

    /// The live blocks of a slab.
    pub(crate) fn live_in(&self, pool: PoolId, slab: SlabId) -> Vec<BlockId> {
        self.pools[pool.index()].live_in(slab).collect()
    }

    /// The blocks that `count` live blocks of `pool` may be moved into once no free block is left
    /// outside the slabs `emptied`: cached blocks, next to be evicted first.
    pub(crate) fn move_targets(
        &self,
        pool: PoolId,
        count: usize,
        emptied: &[(PoolId, SlabId)],
    ) -> std::vec::IntoIter<BlockId> {
        let outside = |slab: SlabId| !emptied.contains(&(pool, slab));
        self.pools[pool.index()].next_evicted_beside_live(count, outside).into_iter()
    }

    /// Gives the owners and the content of `src` to a block outside the slabs `emptied`, and
    /// returns that block. It is a free one or the next of `targets`. `None` if there is no room;
    /// then nothing changed.
    pub(crate) fn relocate(
        &mut self,
        pool: PoolId,
        src: BlockId,
        emptied: &[(PoolId, SlabId)],
        targets: &mut impl Iterator<Item = BlockId>,
    ) -> Option<BlockId> {
        let outside = |slab: SlabId| !emptied.contains(&(pool, slab));
        let free = self.pools[pool.index()].take_free_beside_live(outside);
        let dst = free.or_else(|| {
            let dst = targets.next()?;
            self.evict(pool, dst);
            self.forget_evicted(pool);
            Some(dst)
        })?;
        self.indexes[pool.index()].move_keys(src, dst);
        let blocks = &mut self.pools[pool.index()];
        let priority = blocks.priorities.get(src);
        blocks.move_owners(src, dst);
        blocks.priorities.set(dst, priority);
        self.collect_emptied(pool);
        Some(dst)
    }
}
