//! [`EvictionQueue`]: what can be evicted, the lowest priority first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A place in the order: by priority, and among equal ones by `order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) priority: u64,
    pub(super) order: i64,
    /// A block, or a slab.
    pub(super) id: u32,
}

/// A heap that forgets lazily: an entry is stale once its block was taken or got another place. It
/// is dropped when it comes to the top, or when more than half are stale.
#[derive(Debug)]
pub(super) struct EvictionQueue {
    heap: BinaryHeap<Reverse<Entry>>,
    num_ids: u32,
}

/// Entries that a queue may hold beside two for each id.
const SPARE: usize = 64;

impl EvictionQueue {
    /// An empty queue of ids below `num_ids`.
    pub(super) fn new(num_ids: u32) -> Self {
        Self { heap: BinaryHeap::new(), num_ids }
    }

    /// Adds an entry. Those that are not `current` go if there are too many.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry, is_current: impl Fn(&Entry) -> bool) {
        if self.heap.len() >= 2 * self.num_ids as usize + SPARE {
            self.drop_stale(is_current);
        }
        self.heap.push(Reverse(entry));
    }

    /// Keeps the first current entry of each id: at most half of what fits.
    #[cold]
    fn drop_stale(&mut self, is_current: impl Fn(&Entry) -> bool) {
        const NONE: usize = usize::MAX;
        let entries = std::mem::take(&mut self.heap).into_vec();
        let mut first = vec![NONE; self.num_ids as usize];
        for (at, Reverse(entry)) in entries.iter().enumerate().filter(|(_, it)| is_current(&it.0)) {
            let first = &mut first[entry.id as usize];
            if *first == NONE || *entry < entries[*first].0 {
                *first = at;
            }
        }
        let kept: Vec<_> = first.iter().filter_map(|&at| entries.get(at).copied()).collect();
        self.heap = kept.into();
    }

    /// Returns the first entry that `is_valid` accepts, and drops the entries before it.
    pub(super) fn peek(&mut self, is_valid: impl Fn(&Entry) -> bool) -> Option<u32> {
        let mut num_stale = 0;
        while let Some(Reverse(entry)) = self.heap.peek() {
            if is_valid(entry) {
                return Some(entry.id);
            }
            // All at once is cheaper than many one by one.
            num_stale += 1;
            if num_stale > SPARE + self.heap.len() / 16 {
                self.drop_stale(&is_valid);
            } else {
                self.heap.pop();
            }
        }
        None
    }

    /// All entries, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.heap.iter().map(|Reverse(entry)| entry)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.heap.capacity() * size_of::<Entry>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(priority: u64, order: i64, id: u32) -> Entry {
        Entry { priority, order, id }
    }

    #[test]
    fn the_lowest_priority_comes_first_and_stale_entries_never() {
        let mut queue = EvictionQueue::new(4);
        let mut priority = [5, 3, 3, 9];
        let is = |priority: [u64; 4]| move |it: &Entry| priority[it.id as usize] == it.priority;
        for id in 0..4 {
            queue.push(entry(priority[id as usize], id.into(), id), is(priority));
        }
        assert_eq!(queue.peek(is(priority)), Some(1));
        priority[1] = 7;
        queue.push(entry(7, 4, 1), is(priority));
        assert_eq!(queue.peek(is(priority)), Some(2));
        assert_eq!(queue.peek(|it| it.id != 2 && is(priority)(it)), Some(0));
        assert_eq!(queue.peek(|_| false), None);
    }

    #[test]
    fn many_stale_entries_before_a_current_one_go_and_it_is_found() {
        let mut queue = EvictionQueue::new(1_000);
        for id in 0..1_000 {
            queue.push(entry(u64::from(id), 0, id), |_| true);
        }
        let is_current = |it: &Entry| it.id >= 900 && it.id % 2 == 1;
        assert_eq!(queue.peek(is_current), Some(901));
        assert_eq!(queue.iter().filter(|it| is_current(it)).count(), 50);
        assert!(queue.heap.len() < 100, "{}", queue.heap.len());
    }

    #[test]
    fn entries_that_nobody_asks_for_do_not_pile_up_and_the_order_stays() {
        let mut queue = EvictionQueue::new(8);
        let mut current = [(0, 0); 8];
        for (order, id) in (0..10_000_i64).zip((0..8_usize).map(|id| id * 5 % 8).cycle()) {
            current[id] = (u64::try_from(order % 3).unwrap(), order);
            let is = |it: &Entry| current[it.id as usize] == (it.priority, it.order);
            queue.push(entry(current[id].0, order, id as u32), is);
            // One that is there twice.
            queue.push(entry(current[id].0, order, id as u32), is);
            assert!(queue.heap.len() <= 2 * 8 + SPARE, "{}", queue.heap.len());
        }
        let first = (0..8).min_by_key(|&id| current[id as usize]);
        assert_eq!(queue.peek(|it| current[it.id as usize] == (it.priority, it.order)), first);
    }
}
