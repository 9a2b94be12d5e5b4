//! [`EvictionOrder`]: which cached block goes next, and what went.

use super::Store;
use crate::error::Error;
use crate::ids::{BlockId, PoolId};
use crate::pool::SlabPool;
use crate::prefix_index::Key;

/// Which cached block of a store is evicted next, and what was. A fixed store evicts in the order of vLLM's
/// free queue, whatever is set.
pub trait EvictionOrder: Store {
    /// Evicts the block of the lowest priority first. To be called before anything is cached.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] where the order of eviction is fixed.
    fn order_by_priority(&mut self) -> Result<(), Error> {
        let Some(slabs) = self.as_slabs_mut() else {
            return Err(Error::InvalidConfig(
                "a fixed pool evicts by age; give the manager slabs for another policy".to_owned(),
            ));
        };
        slabs.pools.iter_mut().for_each(SlabPool::order_by_priority);
        Ok(())
    }

    /// Sets a block's priority from the next time it is cached, where blocks are evicted by priority.
    fn set_priority(&mut self, pool: PoolId, block: BlockId, priority: u64) {
        if let Some(slabs) = self.as_slabs_mut() {
            slabs.pools[pool.index()].priorities.set(block, priority);
        }
    }

    /// Sets the priority of blocks that are cached from now on without one, where blocks are evicted by priority;
    /// 0 before it is set.
    fn set_default_priority(&mut self, priority: u64) {
        if let Some(slabs) = self.as_slabs_mut() {
            slabs.pools.iter_mut().for_each(|pool| pool.priorities.default = priority);
        }
    }

    /// Gives blocks at least the default priority from the next time they are cached, where blocks are evicted by
    /// priority: as if they had been used now.
    fn raise_to_default(&mut self, pool: PoolId, blocks: &[BlockId]) {
        if let Some(slabs) = self.as_slabs_mut() {
            let priorities = &mut slabs.pools[pool.index()].priorities;
            priorities.raise(blocks, priorities.default);
        }
    }

    /// Has blocks that have no priority evicted before all others from the next time they are cached, where blocks are
    /// evicted by priority: no request is known to need them.
    fn spend(&mut self, pool: PoolId, block: BlockId) {
        if let Some(slabs) = self.as_slabs_mut() {
            slabs.pools[pool.index()].priorities.spend(block);
        }
    }

    /// Has a cached block that has the priority `given` evicted before all others, where blocks are evicted by
    /// priority.
    fn spend_cached(&mut self, pool: PoolId, block: BlockId, given: u64) {
        if let Some(slabs) = self.as_slabs_mut() {
            slabs.pools[pool.index()].spend_cached(block, given);
        }
    }

    /// Gives blocks at least a priority, and another one than before, from the next time they are cached, where
    /// blocks are evicted by priority.
    fn raise_priorities(&mut self, pool: PoolId, blocks: &[BlockId], least: u64) {
        if let Some(slabs) = self.as_slabs_mut() {
            slabs.pools[pool.index()].priorities.raise(blocks, least);
        }
    }

    /// Sets the priorities of blocks, at once of those that are cached, where blocks are evicted by priority.
    fn reprioritize(&mut self, pool: PoolId, blocks: impl Iterator<Item = (BlockId, u64)>) {
        if let Some(slabs) = self.as_slabs_mut() {
            slabs.pools[pool.index()].reprioritize(blocks);
        }
    }

    /// A block's priority. By age, the tick at which it last lost its last owner; 0 in a fixed store.
    fn priority(&self, pool: PoolId, block: BlockId) -> u64 {
        self.as_slabs().map_or(0, |slabs| slabs.pools[pool.index()].priorities.get(block))
    }

    /// Treats a cached block as if it had just lost its last owner. Does nothing in a fixed store.
    fn refresh(&mut self, pool: PoolId, block: BlockId) {
        if let Some(slabs) = self.as_slabs_mut() {
            slabs.pools[pool.index()].refresh(block);
        }
    }

    /// Lets time pass. The clock only orders ages; one tick a scheduler step is enough.
    fn tick(&mut self) {
        self.journal_mut().now += 1;
        let now = self.now();
        if let Some(slabs) = self.as_slabs_mut() {
            slabs.pools.iter_mut().for_each(|pool| pool.priorities.now = now);
        }
    }

    /// Ticks since the start.
    fn now(&self) -> u64 {
        self.journal().now
    }

    /// Whether content under `key` was evicted lately, if that is remembered; a fixed store never does.
    fn was_evicted(&self, pool: PoolId, key: &Key) -> bool {
        self.as_slabs().is_some_and(|slabs| slabs.lost_keys[pool.index()].contains(key))
    }

    /// Keys whose blocks were evicted since they were last drained, in order.
    fn evicted(&mut self) -> &mut Vec<Key> {
        &mut self.journal_mut().evicted
    }
}

impl<S: Store> EvictionOrder for S {}
