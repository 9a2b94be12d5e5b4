//! [`QueuePool`]: blocks that wait in one queue, in vLLM's order.

use super::block_states::{ABSENT, BlockStates, EVICTABLE, HASHED};
use super::links::{Links, List};
use crate::error::Error;
use crate::ids::BlockId;

/// A pool that owns all its blocks for good.
///
/// The queue starts with the lowest ids. Freed blocks without content come back at its front, in the
/// order in which they are freed; cached ones wait behind it, the one freed last at the end. Both
/// lists in a row are exactly vLLM's free queue.
///
/// Struct of arrays, 12 bytes a block: 4 for the state, 8 for the links.
#[derive(Debug)]
pub struct QueuePool {
    pub(crate) blocks: BlockStates,
    pub(super) links: Links,
    /// Blocks that the current call took the last owner from.
    orphaned: Vec<u32>,
}

impl QueuePool {
    /// A pool of blocks `1..num_blocks`; block 0 is the null block.
    pub(crate) fn new(num_blocks: u32) -> Result<Self, Error> {
        let blocks = BlockStates::new(num_blocks, 0)?;
        let mut pool = Self { blocks, links: Links::new(num_blocks, 2), orphaned: Vec::new() };
        pool.blocks.words[0] = ABSENT;
        pool.blocks.num_free = num_blocks - 1;
        pool.links.push_front_all(pool.free_list(), 1..num_blocks);
        Ok(pool)
    }

    fn cached_list(&self) -> List {
        self.links.list(0)
    }

    fn free_list(&self) -> List {
        self.links.list(1)
    }

    /// Blocks without owner, next to go first.
    pub fn iter_available(&self) -> impl Iterator<Item = BlockId> + '_ {
        let free = self.links.iter(self.free_list());
        free.chain(self.links.iter(self.cached_list())).map(BlockId)
    }

    /// The available block that goes right after `block`, or the very first.
    pub fn next_available(&self, block: Option<BlockId>) -> Option<BlockId> {
        let in_free = block.is_none_or(|block| !self.blocks.is_evictable(block.0));
        let next = match block {
            Some(block) => self.links.after(block.0),
            None => self.links.front(self.free_list()),
        };
        next.or_else(|| self.links.front(self.cached_list()).filter(|_| in_free)).map(BlockId)
    }

    /// The available block that goes right before `block`, or the very last.
    pub fn previous_available(&self, block: Option<BlockId>) -> Option<BlockId> {
        let in_cached = block.is_none_or(|block| self.blocks.is_evictable(block.0));
        let previous = match block {
            Some(block) => self.links.before(block.0),
            None => self.links.back(self.cached_list()),
        };
        previous.or_else(|| self.links.back(self.free_list()).filter(|_| in_cached)).map(BlockId)
    }

    /// Appends up to `most` free blocks to `out`, the front of the queue first. Returns how many.
    #[inline]
    pub(crate) fn take_free(&mut self, most: u64, out: &mut Vec<BlockId>) -> u32 {
        let count = most.min(u64::from(self.blocks.num_free)) as u32;
        let (queue, start) = (self.free_list(), out.len());
        self.links.pop_front_all(queue, count, out, BlockId);
        self.blocks.own_free(&out[start..]);
        count
    }

    /// Takes the cached block that goes next. Its keys are the caller's to drop.
    #[inline]
    pub(crate) fn evict(&mut self) -> Option<BlockId> {
        let block = self.links.pop_front(self.cached_list()).map(BlockId)?;
        self.blocks.own_evicted(block);
        Some(block)
    }

    /// Adds an owner to each block. Cached blocks leave the queue.
    #[inline]
    pub(crate) fn touch(&mut self, blocks: impl Iterator<Item = BlockId>) -> Result<(), Error> {
        let mut run = None;
        let touched = self.blocks.add_owners(blocks, |block, _| {
            run = Some(self.links.remove_after(run, block));
        });
        self.links.remove_run(run);
        touched
    }

    /// Undoes the latest touch of a live or cached block that is not yet undone, exactly.
    pub(crate) fn undo_touch(&mut self, block: BlockId) {
        if self.blocks.undo_add_owner(block) {
            self.links.restore(block.0);
        }
    }

    /// Takes one owner from each block. Blocks without owner and content go to the front of the queue,
    /// cached blocks to its end, both in the order given.
    pub(crate) fn free(
        &mut self,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        if self.free_sole(blocks.clone()) {
            return Ok(());
        }
        self.blocks.remove_owners(blocks, &mut self.orphaned)?;
        let orphaned = std::mem::take(&mut self.orphaned);
        self.enqueue(&orphaned);
        self.orphaned = orphaned;
        Ok(())
    }

    /// Frees blocks that all have one owner and no content worth keeping, in one pass: they join the
    /// queue while they are checked. Unless all are so, nothing changes.
    #[inline]
    fn free_sole(&mut self, blocks: impl Iterator<Item = BlockId> + Clone) -> bool {
        let mut num_sole = 0;
        let words = &mut self.blocks.words;
        let is_sole = |block: u32| match words.get_mut(block as usize) {
            Some(word) if *word == 1 => {
                *word = 0;
                num_sole += 1;
                true
            }
            _ => false,
        };
        let queue = self.links.list(1);
        if !self.links.push_front_if(queue, blocks.clone().map(|block| block.0), is_sole) {
            blocks.take(num_sole).for_each(|block| self.blocks.words[block.index()] = 1);
            return false;
        }
        self.blocks.num_live -= num_sole as u32;
        self.blocks.num_free += num_sole as u32;
        true
    }

    /// Puts blocks that lost their last owner where they wait.
    fn enqueue(&mut self, orphaned: &[u32]) {
        let (cached, queue) = (self.cached_list(), self.free_list());
        let mut num_cached = 0;
        for &block in orphaned {
            let word = &mut self.blocks.words[block as usize];
            if *word & HASHED != 0 {
                *word |= EVICTABLE;
                self.links.push_back(cached, block);
                num_cached += 1;
            }
        }
        self.blocks.num_cached += num_cached;
        self.blocks.num_free += orphaned.len() as u32 - num_cached;
        let blocks = &self.blocks;
        let is_free = |block: &u32| num_cached == 0 || !blocks.is_evictable(*block);
        self.links.push_front_all(queue, orphaned.iter().copied().filter(is_free));
    }

    /// As [`Self::free`], but every block ends at the end of the queue, hashed or not: its content
    /// stays readable until the block is handed out again.
    pub(crate) fn free_warm(
        &mut self,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        if let Some(block) = blocks.clone().find(|&block| self.blocks.ref_count(block) == 0) {
            return Err(Error::NotLive { block });
        }
        let cached = self.cached_list();
        for block in blocks {
            // A block named more often than it has owners is let go once.
            if self.blocks.ref_count(block) > 0 && self.blocks.undo_add_owner(block) {
                self.links.push_back(cached, block.0);
            }
        }
        Ok(())
    }

    /// Notes that a block is in no index any more. An ownerless one keeps its place in the queue, as
    /// in vLLM.
    #[inline]
    pub(crate) fn clear_hashed(&mut self, block: BlockId) {
        self.blocks.words[block.index()] &= !HASHED;
    }

    /// Drops the content of every cached block.
    pub(crate) fn reset(&mut self) {
        let (cached, queue) = (self.cached_list(), self.free_list());
        for block in self.links.iter(cached) {
            self.blocks.words[block as usize] = 0;
        }
        self.links.append(queue, cached);
        self.blocks.num_free += std::mem::take(&mut self.blocks.num_cached);
    }

    /// Heap bytes held.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.memory_bytes() + self.links.memory_bytes()
    }
}
