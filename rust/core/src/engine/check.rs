//! The engine's promises, checked by walking everything.

use super::Engine;
use super::requests::RequestState;
use crate::ids::{BlockId, PoolId};
use crate::store::Store;

impl<S: Store, R: RequestState> Engine<S, R> {
    /// Walks everything: no block owned twice, counts equal tables, indexes and lists agree.
    pub(crate) fn check_integrity(&self) -> Result<(), String> {
        let store = &self.cache.store;
        store.check_integrity()?;
        let mut owners: Vec<Vec<u32>> = (0..store.num_pools())
            .map(|pool| vec![0; store.pool(PoolId(pool)).num_ids() as usize])
            .collect();
        for (pool, block) in self.cache.outbox.owned_blocks() {
            owners[pool.index()][block.index()] += 1;
        }
        for row in self.requests.taken() {
            for (group, table) in self.cache.groups.iter().zip(self.requests.tables(row)) {
                for &block in table.blocks.iter().filter(|block| !block.is_null()) {
                    if group.keeps_apart() && store.pool(group.spec.pool).is_hashed(block) {
                        return Err(format!(
                            "block {block} of group {} has a key, and keys name blocks of pool {}",
                            group.id, group.kept
                        ));
                    }
                    owners[group.spec.pool.index()][block.index()] += 1;
                }
            }
        }
        for (pool, owners) in owners.iter().enumerate() {
            for (block, &count) in owners.iter().enumerate() {
                let kept = store.pool(PoolId(pool as u32)).ref_count(BlockId(block as u32));
                if kept != count {
                    return Err(format!(
                        "block {block} of pool {pool} is in {count} tables and copies but has {kept} owners"
                    ));
                }
            }
        }
        Ok(())
    }
}
