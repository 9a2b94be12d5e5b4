//! Which blocks of a [`SlabPool`] are handed out, and in which order its cached ones are evicted.

use super::SlabPool;
use crate::ids::{BlockId, SlabId};

/// Cached blocks among which one is searched that lies beside live ones, or has the lowest priority of such: enough
/// to pass over those of a few idle slabs, and so few that a long queue costs no more.
const MOST_LOOKED_AT: usize = 512;

impl SlabPool {
    /// Appends up to `most` free blocks of one slab to `out`: of slab `near` if it has any, else of
    /// the fullest slab with room. Returns how many.
    pub(crate) fn take_free_run(
        &mut self,
        near: Option<SlabId>,
        most: u64,
        out: &mut Vec<BlockId>,
    ) -> u32 {
        let Some(slab) = near
            .filter(|&slab| self.slabs.owns(slab) && self.slabs.num_free_in(slab) > 0)
            .or_else(|| self.slabs.fullest_with_room())
        else {
            return 0;
        };
        let count = most.min(u64::from(self.slabs.num_free_in(slab))) as u32;
        self.slabs.on_live(slab, count, count);
        let start = out.len();
        self.links.pop_front_all(self.free_list_of(slab), count, out, BlockId);
        self.own_free(&out[start..]);
        count
    }

    fn own_free(&mut self, blocks: &[BlockId]) {
        self.blocks.own_free(blocks);
        if self.priorities.is_explicit() {
            for &block in blocks {
                self.priorities.set(block, 0);
            }
        }
    }

    /// Takes a free block of the fullest slab that holds live blocks and has room.
    pub(crate) fn take_free_beside_live(&mut self) -> Option<BlockId> {
        let slab = self.slabs.fullest_live_with_room()?;
        self.slabs.on_live(slab, 1, 1);
        let block = BlockId(self.links.pop_front(self.free_list_of(slab))?);
        self.own_free(&[block]);
        Some(block)
    }

    /// Owns a slab and appends up to `most` of its blocks to `out`, the lowest first; the others become
    /// free. Returns how many.
    pub(crate) fn adopt(&mut self, slab: SlabId, most: u64, out: &mut Vec<BlockId>) -> u32 {
        let blocks = self.slabs.blocks_of(slab);
        let count = most.min(blocks.len() as u64) as u32;
        self.slabs.adopt(slab);
        self.slabs.on_live(slab, count, count);
        self.blocks.words[blocks.start as usize..blocks.end as usize].fill(0);
        let list = self.free_list_of(slab);
        self.links.clear(list);
        self.blocks.num_free += blocks.len() as u32;
        self.links.push_front_all(list, blocks.start + count..blocks.end);
        let start = out.len();
        out.extend((blocks.start..blocks.start + count).map(BlockId));
        self.own_free(&out[start..]);
        count
    }

    /// The cached block that is evicted next.
    pub(crate) fn next_evicted(&mut self) -> Option<BlockId> {
        let (links, blocks) = (&self.links, &self.blocks);
        let oldest = || links.front(links.list(0));
        self.priorities.lowest(oldest, |block| blocks.is_evictable(block)).map(BlockId)
    }

    /// The cached block in a slab that holds live blocks that is evicted next: the one of the lowest priority among
    /// the oldest cached blocks, else the oldest.
    pub(crate) fn next_evicted_beside_live(&self) -> Option<BlockId> {
        let mut cached = self.links.iter(self.cached_list()).map(BlockId);
        let is_slack = |block: &BlockId| self.is_slack(*block);
        if self.priorities.is_explicit() {
            let oldest = cached.by_ref().take(MOST_LOOKED_AT).filter(is_slack);
            if let Some(lowest) = oldest.min_by_key(|&block| self.priorities.get(block)) {
                return Some(lowest);
            }
        }
        cached.find(is_slack)
    }

    /// Whether a block lies beside live ones, in a slab that no other pool can have.
    fn is_slack(&self, block: BlockId) -> bool {
        self.slabs.num_live_in(self.slabs.slab_of(block.0)) > 0
    }

    /// Up to `count` of the oldest cached blocks that lie beside live ones, the next to be evicted first.
    pub(crate) fn next_evicted_in_slack(&self, count: usize) -> Vec<BlockId> {
        let oldest = self.links.iter(self.cached_list()).take(count.max(MOST_LOOKED_AT));
        let slack = oldest.map(BlockId).filter(|&block| self.is_slack(block));
        if !self.priorities.is_explicit() {
            return slack.take(count).collect();
        }
        let mut lowest: Vec<_> = slack.collect();
        lowest.sort_by_key(|&block| self.priorities.get(block));
        lowest.truncate(count);
        lowest
    }

    /// Takes a cached block for new content. Its keys are the caller's to drop.
    pub(crate) fn evict(&mut self, block: BlockId) {
        self.links.remove(block.0);
        let is_spent = self.priorities.is_spent(block);
        self.priorities.set(block, 0);
        self.blocks.own_evicted(block);
        self.blocks.num_evicted -= u64::from(is_spent);
        self.slabs.on_live(self.slabs.slab_of(block.0), 1, 0);
    }

    /// Treats a cached block as if it had just lost its last owner.
    pub(crate) fn refresh(&mut self, block: BlockId) {
        if self.blocks.is_evictable(block.0) {
            self.links.remove(block.0);
            self.links.push_back(self.cached_list(), block.0);
            let (slab, priority) = (self.slabs.slab_of(block.0), self.priorities.enter(&[block.0]));
            self.slabs.refresh(slab, priority);
            if self.priorities.is_explicit() {
                // The block may have a lower priority than before.
                self.find_priority(slab);
            }
        }
    }

    /// Sets the priorities of blocks, at once of those that are cached: neither their age nor that of their slabs
    /// changes. Does nothing by age.
    pub(crate) fn reprioritize(&mut self, blocks: impl Iterator<Item = (BlockId, u64)>) {
        if !self.priorities.is_explicit() {
            return;
        }
        let mut changed = None;
        for (block, priority) in blocks {
            self.priorities.set(block, priority);
            if self.blocks.is_evictable(block.0) {
                self.priorities.restore(block.0);
                let slab = self.slabs.slab_of(block.0);
                if let Some(other) = changed.replace(slab).filter(|&other| other != slab) {
                    self.find_priority(other);
                }
            }
        }
        if let Some(slab) = changed {
            self.find_priority(slab);
        }
    }

    /// Has a cached block evicted before all others, if its priority is still `given`. Does nothing by age.
    pub(crate) fn spend_cached(&mut self, block: BlockId, given: u64) {
        if self.priorities.is_explicit()
            && self.blocks.is_evictable(block.0)
            && self.priorities.get(block) == given
        {
            self.priorities.set(block, 0);
            self.priorities.spend(block);
            self.priorities.restore(block.0);
            self.find_priority(self.slabs.slab_of(block.0));
        }
    }

    /// The cached blocks of a slab that somebody may need.
    pub(crate) fn num_needed_in(&self, slab: SlabId) -> u64 {
        self.cached_in(slab).filter(|&block| !self.priorities.is_spent(block)).count() as u64
    }

    /// Sets the priority of an idle slab again.
    fn find_priority(&mut self, slab: SlabId) {
        if self.slabs.num_live_in(slab) == 0 {
            self.slabs.idle.set_priority(slab, self.highest_in(slab));
        }
    }
}
