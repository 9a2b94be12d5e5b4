//! [`WorthQueue`]: cached blocks, the least worth keeping first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A priority queue that forgets lazily: an entry whose block was taken or valued anew since is
/// dropped when it comes to the top. Equal worth goes in the order of insertion.
#[derive(Debug, Default)]
pub(crate) struct WorthQueue {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    num_pushed: u64,
}

impl WorthQueue {
    pub(crate) fn push(&mut self, worth: u64, block: u32) {
        self.num_pushed += 1;
        self.heap.push(Reverse((worth, self.num_pushed, block)));
    }

    /// The first block that `is_valid` with its worth.
    pub(crate) fn peek(&mut self, is_valid: impl Fn(u32, u64) -> bool) -> Option<u32> {
        while let Some(&Reverse((worth, _, block))) = self.heap.peek() {
            if is_valid(block, worth) {
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
    fn the_least_worth_comes_first_and_stale_entries_never() {
        let mut queue = WorthQueue::default();
        let mut worth = [5, 3, 3, 9];
        for block in 0..4 {
            queue.push(worth[block as usize], block);
        }
        assert_eq!(queue.peek(|block, at| worth[block as usize] == at), Some(1));
        worth[1] = 7;
        queue.push(7, 1);
        assert_eq!(queue.peek(|block, at| worth[block as usize] == at), Some(2));
        assert_eq!(queue.peek(|block, at| block != 2 && worth[block as usize] == at), Some(0));
        assert_eq!(queue.peek(|_, _| false), None);
    }
}
