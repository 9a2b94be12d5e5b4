//! [`SlabPool`]: blocks that wait in the slabs they lie in.

use super::block_states::{ABSENT, BlockStates, EVICTABLE, HASHED};
use super::links::{Links, List};
use super::priorities::Priorities;
use super::slabs::Slabs;
use crate::error::Error;
use crate::ids::{BlockId, SlabId};

/// A pool that shares an arena with others: it owns whole slabs, takes more when it needs them and
/// gives back those whose last content is gone.
///
/// Each slab has its own list of free blocks; the cached blocks of all slabs wait in one list, the one
/// cached last at its end.
///
/// Struct of arrays, 20 bytes a block: 4 for the state, 8 for the links, 8 for the priority.
#[derive(Debug)]
pub(crate) struct SlabPool {
    pub(crate) blocks: BlockStates,
    pub(super) links: Links,
    pub(crate) slabs: Slabs,
    pub(crate) priorities: Priorities,
    /// Blocks that the current call took the last owner from.
    orphaned: Vec<u32>,
    /// Slabs whose last content is gone, some of them reused since.
    emptied: Vec<SlabId>,
}

impl SlabPool {
    /// A pool over an arena of `num_slabs` that owns no slab yet.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] unless `num_slabs * blocks_per_slab` lies in `1..=2^29`.
    pub(crate) fn new(num_slabs: u32, blocks_per_slab: u32) -> Result<Self, Error> {
        let num_blocks = num_slabs.checked_mul(blocks_per_slab).unwrap_or(0);
        Ok(Self {
            blocks: BlockStates::new(num_blocks, ABSENT)?,
            links: Links::new(num_blocks, 1 + num_slabs),
            slabs: Slabs::new(num_slabs, blocks_per_slab),
            priorities: Priorities::new(num_blocks),
            orphaned: Vec::new(),
            emptied: Vec::new(),
        })
    }

    /// Evicts what has the lowest priority first from now on. To be called before a block is cached.
    pub(crate) fn order_by_priority(&mut self) {
        self.priorities.make_explicit();
        self.slabs.idle.order_by_priority();
    }

    pub(super) fn cached_list(&self) -> List {
        self.links.list(0)
    }

    pub(super) fn free_list_of(&self, slab: SlabId) -> List {
        self.links.list(1 + slab.0)
    }

    /// Blocks without owner: the free ones slab by slab, then the cached ones, oldest first.
    pub(crate) fn iter_available(&self) -> impl Iterator<Item = BlockId> + '_ {
        let free = self.slabs.owned().flat_map(|slab| self.links.iter(self.free_list_of(slab)));
        free.chain(self.links.iter(self.cached_list())).map(BlockId)
    }

    /// The cached blocks of a slab.
    pub(crate) fn cached_in(&self, slab: SlabId) -> impl Iterator<Item = BlockId> + '_ {
        let blocks = self.slabs.blocks_of(slab);
        blocks.filter(|&block| self.blocks.is_evictable(block)).map(BlockId)
    }

    /// Adds an owner to each block. Cached blocks leave the eviction order.
    #[inline]
    pub(crate) fn touch(&mut self, blocks: impl Iterator<Item = BlockId>) -> Result<(), Error> {
        self.blocks.add_owners(blocks, |block, was_free| {
            self.links.remove(block);
            self.slabs.on_live(self.slabs.slab_of(block), 1, u32::from(was_free));
        })
    }

    /// Undoes the latest touch of a live or cached block that is not yet undone, exactly.
    pub(crate) fn undo_touch(&mut self, block: BlockId) {
        if self.blocks.undo_add_owner(block) {
            self.links.restore(block.0);
            self.slabs.undo_live(self.slabs.slab_of(block.0));
            self.priorities.restore(block.0);
        }
    }

    /// Takes one owner from each block. Blocks without owner and content become free in their slab,
    /// cached blocks go to the end of the eviction order, both in the order given.
    pub(crate) fn free(
        &mut self,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        let all_hashed = self.blocks.remove_owners(blocks, &mut self.orphaned)?;
        let orphaned = std::mem::take(&mut self.orphaned);
        self.put_back(&orphaned, all_hashed);
        self.orphaned = orphaned;
        Ok(())
    }

    /// Puts blocks that lost their last owner back, one run of the same slab at a time. `all_hashed` if
    /// they are known to be.
    fn put_back(&mut self, mut blocks: &[u32], all_hashed: bool) {
        while let Some(&first) = blocks.first() {
            let slab = self.slabs.slab_of(first);
            let range = self.slabs.blocks_of(slab);
            let len = blocks.iter().take_while(|block| range.contains(block)).count();
            let (run, rest) = blocks.split_at(len);
            let words = &self.blocks.words;
            let is_hashed = |block: &&u32| words[**block as usize] & HASHED != 0;
            let num_cached = if all_hashed { len } else { run.iter().filter(is_hashed).count() };
            let num_free = (len - num_cached) as u32;
            if num_free > 0 {
                let free = run.iter().rev().filter(|block| !is_hashed(block));
                self.links.push_front_all(self.links.list(1 + slab.0), free.copied());
            }
            let highest = if num_free == 0 {
                self.cache(run)
            } else {
                run.chunks(1).fold(0, |highest, one| {
                    let is_hashed = self.blocks.is_hashed(BlockId(one[0]));
                    highest.max(if is_hashed { self.cache(one) } else { 0 })
                })
            };
            self.blocks.num_free += num_free;
            self.blocks.num_cached += num_cached as u32;
            self.on_dead(slab, len as u32, num_free, highest);
            blocks = rest;
        }
    }

    /// Puts hashed blocks that lost their last owner among the cached. Returns the highest of their
    /// priorities.
    fn cache(&mut self, blocks: &[u32]) -> u64 {
        self.links.push_back_all(self.cached_list(), blocks.iter().copied());
        for &block in blocks {
            self.blocks.words[block as usize] |= EVICTABLE;
        }
        self.priorities.enter(blocks)
    }

    fn on_dead(&mut self, slab: SlabId, count: u32, num_free: u32, highest: u64) {
        self.slabs.on_dead(slab, count, num_free, highest);
        self.note_emptied(slab);
        if self.priorities.is_explicit() && self.slabs.num_live_in(slab) == 0 {
            // The block that had the highest priority may be gone since.
            self.slabs.idle.set_priority(slab, self.highest_in(slab));
        }
    }

    /// The highest priority of the cached blocks of a slab.
    pub(super) fn highest_in(&self, slab: SlabId) -> u64 {
        self.cached_in(slab).map(|block| self.priorities.get(block)).max().unwrap_or(0)
    }

    /// Notes that a block is in no index any more. An ownerless one becomes free.
    pub(crate) fn clear_hashed(&mut self, block: BlockId) {
        let word = &mut self.blocks.words[block.index()];
        *word &= !HASHED;
        if *word & EVICTABLE == 0 {
            return;
        }
        *word &= !EVICTABLE;
        self.links.remove(block.0);
        self.blocks.num_cached -= 1;
        self.push_free(block);
        let slab = self.slabs.slab_of(block.0);
        self.slabs.add_free(slab, 1);
        self.note_emptied(slab);
    }

    fn note_emptied(&mut self, slab: SlabId) {
        if self.slabs.is_all_free(slab) {
            self.emptied.push(slab);
        }
    }

    fn push_free(&mut self, block: BlockId) {
        let list = self.free_list_of(self.slabs.slab_of(block.0));
        self.links.push_front(list, block.0);
        self.blocks.num_free += 1;
    }

    /// Stops owning one of the slabs whose last content is gone.
    #[inline]
    pub(crate) fn give_up_emptied(&mut self) -> Option<SlabId> {
        while let Some(slab) = self.emptied.pop() {
            // The slab may have been noted twice, or a block of it allocated since.
            if self.slabs.is_all_free(slab) {
                let blocks = self.slabs.blocks_of(slab);
                self.slabs.give_up(slab);
                self.blocks.num_free -= blocks.end - blocks.start;
                self.blocks.words[blocks.start as usize..blocks.end as usize].fill(ABSENT);
                return Some(slab);
            }
        }
        None
    }

    /// Drops the content of every cached block.
    pub(crate) fn reset(&mut self) {
        while let Some(block) = self.next_evicted() {
            self.clear_hashed(block);
        }
    }

    /// Heap bytes held.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.memory_bytes()
            + self.links.memory_bytes()
            + self.priorities.memory_bytes()
            + self.slabs.memory_bytes()
    }
}
