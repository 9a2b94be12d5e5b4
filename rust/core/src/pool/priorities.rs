//! [`Priorities`]: how much each cached block of a [`SlabPool`](super::SlabPool) is worth keeping.

use super::eviction_queue::{Entry, EvictionQueue};
use crate::ids::BlockId;

/// The priority of blocks that no request is known to need.
const SPENT: u64 = 1;

/// A priority a block; the lowest is evicted first.
///
/// By default the priority is the tick at which the block lost its last owner. That is the order of
/// the pool's list of cached blocks. Once [`Self::make_explicit`] was called it is what
/// [`Self::set`] and [`Self::raise`] said, the default where they said nothing, and a heap keeps
/// the order. 0 stands for none.
#[derive(Debug)]
pub(crate) struct Priorities {
    of: Box<[u64]>,
    queue: Option<EvictionQueue>,
    /// Entries of the queue so far: blocks of equal priority go in the order in which they came.
    num_entered: i64,
    /// The time, for the ages of what is cached.
    pub(crate) now: u64,
    /// The priority of blocks that are cached without one.
    pub(crate) default: u64,
    /// Whether [`Self::spend`] was ever called.
    has_spent: bool,
}

impl Priorities {
    pub(super) fn new(num_blocks: u32) -> Self {
        Self {
            of: vec![0; num_blocks as usize].into_boxed_slice(),
            queue: None,
            num_entered: 0,
            now: 0,
            default: 0,
            has_spent: false,
        }
    }

    /// Orders by what [`Self::set`] says from now on. To be called before a block is cached.
    pub(super) fn make_explicit(&mut self) {
        self.queue = Some(EvictionQueue::new(self.of.len() as u32));
    }

    pub(super) fn is_explicit(&self) -> bool {
        self.queue.is_some()
    }

    /// A block's priority; by age, the tick at which it last lost its last owner.
    pub(crate) fn get(&self, block: BlockId) -> u64 {
        self.of[block.index()]
    }

    /// Sets a block's priority from the next time it is cached. Does nothing by age.
    pub(crate) fn set(&mut self, block: BlockId, priority: u64) {
        if self.is_explicit() {
            self.of[block.index()] = priority;
        }
    }

    /// Raises the priorities of blocks, to `least` or more, from the next time they are cached: a block that had
    /// one already gets another one. Does nothing by age.
    pub(crate) fn raise(&mut self, blocks: &[BlockId], least: u64) {
        if self.is_explicit() {
            for block in blocks {
                let priority = &mut self.of[block.index()];
                *priority = if *priority == 0 { least } else { least.max(*priority + 1) };
            }
        }
    }

    /// Has a block without a priority evicted before all others from the next time it is cached. Does nothing by age.
    pub(crate) fn spend(&mut self, block: BlockId) {
        if self.is_explicit() && self.of[block.index()] == 0 {
            self.of[block.index()] = SPENT;
            self.has_spent = true;
        }
    }

    /// Whether no request is known to need a block.
    pub(super) fn is_spent(&self, block: BlockId) -> bool {
        self.has_spent && self.of[block.index()] == SPENT
    }

    /// Takes in blocks that have just been cached. Returns the highest of their priorities.
    pub(super) fn enter(&mut self, blocks: &[u32]) -> u64 {
        if !self.is_explicit() {
            for &block in blocks {
                self.of[block as usize] = self.now;
            }
            return self.now;
        }
        blocks.iter().fold(0, |highest, &block| {
            let priority = &mut self.of[block as usize];
            if *priority == 0 {
                *priority = self.default;
            }
            let highest = highest.max(*priority);
            self.restore(block);
            highest
        })
    }

    /// Puts a block, which is cached again after an undone touch, back to its place.
    pub(super) fn restore(&mut self, block: u32) {
        if let Some(queue) = &mut self.queue {
            self.num_entered += 1;
            let priority = self.of[block as usize];
            let entry = Entry { priority, order: self.num_entered, id: block };
            queue.push(entry, |it| self.of[it.id as usize] == it.priority);
        }
    }

    /// The evictable block of the lowest priority, or `oldest` where the order is by age.
    pub(super) fn lowest(
        &mut self,
        oldest: impl Fn() -> Option<u32>,
        is_evictable: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        match &mut self.queue {
            Some(queue) => {
                queue.peek(|it| is_evictable(it.id) && self.of[it.id as usize] == it.priority)
            }
            None => oldest(),
        }
    }

    /// The first of some cached blocks that would never be found as the one of the lowest priority.
    pub(super) fn first_lost(&self, mut cached: impl Iterator<Item = u32>) -> Option<u32> {
        let queue = self.queue.as_ref()?;
        let mut waits = vec![false; self.of.len()];
        for entry in queue.iter().filter(|it| self.of[it.id as usize] == it.priority) {
            waits[entry.id as usize] = true;
        }
        cached.find(|&block| !waits[block as usize])
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.of) + self.queue.as_ref().map_or(0, EvictionQueue::memory_bytes)
    }
}
