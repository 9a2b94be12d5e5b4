//! Integrity of stores, checked by walking everything.

use super::SlabStore;
use crate::ids::BlockId;
use crate::pool::BlockStates;
use crate::prefix_index::PrefixIndex;

impl SlabStore {
    /// Every slab but the null block's is free or owned by one pool.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut owners = vec![0u32; self.arena.num_slabs() as usize];
        for slab in self.arena.free_slabs() {
            owners[slab.index()] += 1;
        }
        for (pool, index) in self.pools.iter().zip(&self.indexes) {
            pool.check()?;
            check_index(&pool.blocks, index)?;
            pool.slabs.owned().for_each(|slab| owners[slab.index()] += 1);
        }
        match owners.iter().skip(1).position(|&count| count != 1) {
            Some(slab) => Err(format!("slab {} has {} owners", slab + 1, owners[slab + 1])),
            None => Ok(()),
        }
    }
}

/// A block is marked as hashed exactly when the index knows it.
pub(super) fn check_index(states: &BlockStates, index: &PrefixIndex) -> Result<(), String> {
    index.check()?;
    let differs = |&block: &BlockId| states.is_hashed(block) != index.first_key(block).is_some();
    match (1..states.num_ids()).map(BlockId).find(differs) {
        Some(block) => Err(format!("block {block}: pool and index disagree on its keys")),
        None => Ok(()),
    }
}
