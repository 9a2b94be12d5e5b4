//! [`EvictionQueue`]: cached blocks, the lowest priority first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A heap that forgets lazily: an entry whose block was taken or got another priority since is dropped
/// when it comes to the top. Blocks of equal priority go in the order of insertion.
#[derive(Debug, Default)]
pub(super) struct EvictionQueue {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    num_pushed: u64,
}

impl EvictionQueue {
    pub(super) fn push(&mut self, priority: u64, block: u32) {
        self.num_pushed += 1;
        self.heap.push(Reverse((priority, self.num_pushed, block)));
    }

    /// The first block that `is_valid` with its priority.
    pub(super) fn peek(&mut self, is_valid: impl Fn(u32, u64) -> bool) -> Option<u32> {
        while let Some(&Reverse((priority, _, block))) = self.heap.peek() {
            if is_valid(block, priority) {
                return Some(block);
            }
            self.heap.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_priority_comes_first_and_stale_entries_never() {
        let mut queue = EvictionQueue::default();
        let mut priority = [5, 3, 3, 9];
        for block in 0..4 {
            queue.push(priority[block as usize], block);
        }
        assert_eq!(queue.peek(|block, at| priority[block as usize] == at), Some(1));
        priority[1] = 7;
        queue.push(7, 1);
        assert_eq!(queue.peek(|block, at| priority[block as usize] == at), Some(2));
        assert_eq!(queue.peek(|block, at| block != 2 && priority[block as usize] == at), Some(0));
        assert_eq!(queue.peek(|_, _| false), None);
    }
}
