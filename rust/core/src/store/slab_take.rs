//! Which blocks a [`SlabStore`] hands out: free ones, those of another slab, or evicted ones.

use super::parts::Parts;
use super::{Reservation, SlabStore, Slack, Store};
use crate::ids::{BlockId, PoolId, SlabId};

impl SlabStore {
    /// Takes up to `most` blocks of one slab. Returns how many.
    pub(super) fn take_some(
        &mut self,
        pool: PoolId,
        near: Option<SlabId>,
        most: u64,
        reservation: &mut Reservation,
        out: &mut Vec<BlockId>,
    ) -> u32 {
        let own_pool = &mut self.pools[pool.index()];
        let may_start = reservation.may_start_slab(pool);
        if self.slack == Slack::Packed || !may_start {
            if let Some(block) = own_pool.take_free_beside_live() {
                out.push(block);
                return 1;
            }
            let evicted = own_pool.next_evicted_beside_live();
            if evicted.is_some() || !may_start {
                return self.evict_all(pool, evicted.as_slice(), out);
            }
        }
        let own_pool = &mut self.pools[pool.index()];
        let idle_before = own_pool.slabs.num_idle();
        let taken = own_pool.take_free_run(near, most, out);
        if taken > 0 {
            self.note_started(pool, idle_before, reservation);
            return taken;
        }
        if self.slack == Slack::First {
            let evicted = own_pool.next_evicted_in_slack(most as usize);
            if !evicted.is_empty() {
                return self.evict_all(pool, &evicted, out);
            }
        }
        let own = self.pools[pool.index()].next_evicted();
        let slab = self.free_slabs.pop().or_else(|| {
            let priority = own.map(|block| self.pools[pool.index()].priorities.get(block));
            self.reclaim_slab(pool, priority)
        });
        if let Some(slab) = slab {
            reservation.start_slab(pool);
            if let Some(started) = &mut self.started {
                started.push((pool, slab));
            }
            return self.pools[pool.index()].adopt(slab, most, out);
        }
        let Some(block) = own else { return 0 };
        self.evict(pool, block);
        self.note_started(pool, idle_before, reservation);
        out.push(block);
        1
    }

    /// Gives cached blocks new owners. Returns how many.
    fn evict_all(&mut self, pool: PoolId, evicted: &[BlockId], out: &mut Vec<BlockId>) -> u32 {
        for &block in evicted {
            self.evict(pool, block);
        }
        out.extend_from_slice(evicted);
        evicted.len() as u32
    }

    fn note_started(&self, pool: PoolId, idle_before: u32, reservation: &mut Reservation) {
        if self.slabs(pool).num_idle() < idle_before {
            reservation.start_slab(pool);
        }
    }

    /// Gives a cached block a new owner. [`Self::forget_evicted`] must follow.
    pub(super) fn evict(&mut self, pool: PoolId, block: BlockId) {
        self.pools[pool.index()].evict(block);
        self.unforgotten.push(block);
    }

    /// Drops the keys of the blocks just evicted, in order.
    pub(super) fn forget_evicted(&mut self, pool: PoolId) {
        if self.unforgotten.is_empty() {
            return;
        }
        let mut evicted = std::mem::take(&mut self.unforgotten);
        self.forget_all(pool, &evicted);
        evicted.clear();
        self.unforgotten = evicted;
    }

    /// Empties the idle slab of another pool than `taker` that has the lowest priority, if that is lower
    /// than `own`.
    fn reclaim_slab(&mut self, taker: PoolId, own: Option<u64>) -> Option<SlabId> {
        let (priority, pool, slab) = (0..)
            .map(PoolId)
            .zip(&mut self.pools)
            .filter(|&(pool, _)| pool != taker)
            .filter_map(|(pool, other)| {
                let slab = other.slabs.first_idle()?;
                Some((other.slabs.priority(slab), pool, slab))
            })
            .min_by_key(|&(priority, ..)| priority)?;
        if own.is_some_and(|own| own <= priority) {
            return None;
        }
        // Evictions are noted in the order in which they happen.
        self.forget_evicted(taker);
        self.drop_cached_in(pool, slab);
        self.num_steals += 1;
        self.free_slabs.pop()
    }

    /// Drops what is cached in a slab without live blocks, so that it comes free.
    fn drop_cached_in(&mut self, pool: PoolId, slab: SlabId) {
        let cached: Vec<_> = self.pools[pool.index()].cached_in(slab).collect();
        let num_needed = self.pools[pool.index()].num_needed_in(slab);
        self.pools[pool.index()].blocks.num_evicted += num_needed;
        for block in cached {
            self.drop_keys(pool, block);
        }
        self.collect_emptied(pool);
    }
}
