//! The manager's promises, checked by walking everything.

use super::Manager;
use crate::ids::{BlockId, PoolId};
use crate::store::Store;

impl Manager {
    /// Walk everything: no block owned twice, counts equal tables, indexes and lists agree.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.store.check_integrity()?;
        let mut owners: Vec<Vec<u32>> = (0..self.store.num_pools())
            .map(|pool| vec![0; self.store.pool(PoolId(pool)).num_ids() as usize])
            .collect();
        for (pool, block) in self.held_blocks() {
            owners[pool.index()][block.index()] += 1;
        }
        for row in self.requests.taken() {
            let tables = &self.requests.tables[self.requests.tables_of(row)];
            for (group, table) in self.coordinator.groups().iter().zip(tables) {
                for block in table.blocks.iter().filter(|block| !block.is_null()) {
                    owners[group.spec.pool.index()][block.index()] += 1;
                }
            }
        }
        for (pool, owners) in owners.iter().enumerate() {
            for (block, &count) in owners.iter().enumerate() {
                let kept = self.store.pool(PoolId(pool as u32)).ref_count(BlockId(block as u32));
                if kept != count {
                    return Err(format!(
                        "block {block} of pool {pool} is in {count} tables but has {kept} owners"
                    ));
                }
            }
        }
        Ok(())
    }
}
