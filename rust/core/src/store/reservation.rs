//! [`Reservation`]: room promised to one allocation that spans several pools.

use super::SlabStore;
use crate::ids::PoolId;

/// How many more whole slabs each pool may start on without taking what the others of the same
/// allocation need. A fixed store has one pool and needs none.
#[derive(Debug, Default)]
pub struct Reservation {
    slabs_needed: Vec<u64>,
    pub(super) slabs_spare: u64,
}

impl Reservation {
    /// Sets how many slabs each pool needs for its demand. Returns how many that are together.
    ///
    /// Room in slabs with live blocks serves their own pool only; the rest of each demand needs whole
    /// slabs, and those are shared. So all demands fit exactly when the whole slabs they need, summed,
    /// are there.
    pub(super) fn set_needed(&mut self, slabs: &SlabStore, demand: &[u64]) -> u64 {
        self.slabs_needed.clear();
        let pools = (0..).map(PoolId).zip(demand);
        self.slabs_needed.extend(pools.map(|(pool, &n)| slabs.slabs_needed(pool, n)));
        self.slabs_needed.iter().sum()
    }

    /// Whether `pool` may take a slab that holds no live block.
    pub(super) fn may_start_slab(&self, pool: PoolId) -> bool {
        self.slabs_needed[pool.index()] > 0 || self.slabs_spare > 0
    }

    pub(super) fn start_slab(&mut self, pool: PoolId) {
        let needed = &mut self.slabs_needed[pool.index()];
        if *needed > 0 {
            *needed -= 1;
        } else {
            self.slabs_spare -= 1;
        }
    }
}

impl SlabStore {
    /// Whole slabs that `pool` must start on for `num_blocks` more blocks.
    fn slabs_needed(&self, pool: PoolId, num_blocks: u64) -> u64 {
        let slabs = self.slabs(pool);
        num_blocks.saturating_sub(slabs.slack()).div_ceil(u64::from(slabs.blocks_per_slab()))
    }
}
