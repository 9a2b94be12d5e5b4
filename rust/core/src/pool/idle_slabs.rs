//! [`IdleSlabs`]: the slabs of a pool without a live block, in the order in which other pools may take them.

use fixedbitset::FixedBitSet;

use super::eviction_queue::{Entry, EvictionQueue};
use super::links::Links;
use crate::ids::SlabId;

/// Slabs wait in a list, the one idle longest first. Once [`Self::order_by_priority`] was called, the one
/// of the lowest priority goes first, among equal ones the first in the list.
///
/// A heap keeps that order. The places in the list are numbered for it, upwards from front to back.
#[derive(Debug)]
pub(super) struct IdleSlabs {
    pub(super) links: Links,
    pub(super) num: u32,
    /// The highest priority of a cached block of each slab since the slab was adopted.
    priority: Box<[u64]>,
    is_idle: FixedBitSet,
    /// The number of each slab's place.
    place: Box<[i64]>,
    back: i64,
    queue: Option<EvictionQueue>,
}

impl IdleSlabs {
    pub(super) fn new(num_slabs: u32) -> Self {
        Self {
            links: Links::new(num_slabs, 1),
            num: 0,
            priority: vec![0; num_slabs as usize].into_boxed_slice(),
            is_idle: FixedBitSet::with_capacity(num_slabs as usize),
            place: vec![0; num_slabs as usize].into_boxed_slice(),
            back: 0,
            queue: None,
        }
    }

    /// Orders by priority from now on. To be called before a slab is idle.
    pub(super) fn order_by_priority(&mut self) {
        self.queue = Some(EvictionQueue::new(self.priority.len() as u32));
    }

    pub(super) fn priority(&self, slab: SlabId) -> u64 {
        self.priority[slab.index()]
    }

    /// Sets the priority of a slab, idle or not.
    pub(super) fn set_priority(&mut self, slab: SlabId, priority: u64) {
        if self.priority[slab.index()] != priority {
            self.priority[slab.index()] = priority;
            if self.is_idle[slab.index()] {
                self.enqueue(slab);
            }
        }
    }

    /// A slab that was not idle is so from now on, as the last of all.
    pub(super) fn enter(&mut self, slab: SlabId) {
        self.num += 1;
        self.is_idle.insert(slab.index());
        self.push_back(slab);
    }

    /// A slab is idle no more.
    pub(super) fn leave(&mut self, slab: SlabId) {
        self.num -= 1;
        self.is_idle.remove(slab.index());
        self.links.remove(slab.0);
    }

    /// Undoes the latest [`Self::leave`] that is not yet undone.
    pub(super) fn restore(&mut self, slab: SlabId) {
        self.num += 1;
        self.is_idle.insert(slab.index());
        self.links.restore(slab.0);
        self.enqueue(slab);
    }

    /// An idle slab becomes the last of all.
    pub(super) fn move_to_back(&mut self, slab: SlabId) {
        self.links.remove(slab.0);
        self.push_back(slab);
    }

    fn push_back(&mut self, slab: SlabId) {
        self.links.push_back(self.links.list(0), slab.0);
        self.back += 1;
        self.place[slab.index()] = self.back;
        self.enqueue(slab);
    }

    fn enqueue(&mut self, slab: SlabId) {
        let entry = self.entry(slab);
        let Self { queue: Some(queue), is_idle, priority, place, .. } = self else { return };
        queue.push(entry, |it| is_current(is_idle, priority, place, it));
    }

    fn entry(&self, slab: SlabId) -> Entry {
        let (priority, order) = (self.priority[slab.index()], self.place[slab.index()]);
        Entry { priority, order, id: slab.0 }
    }

    /// The slab that another pool takes first.
    pub(super) fn first(&mut self) -> Option<SlabId> {
        let Self { queue, is_idle, priority, place, links, .. } = self;
        match queue {
            Some(queue) => queue.peek(|it| is_current(is_idle, priority, place, it)),
            None => links.front(links.list(0)),
        }
        .map(SlabId)
    }

    /// Idle slabs in the order of the list.
    pub(super) fn iter(&self) -> impl Iterator<Item = SlabId> + '_ {
        self.links.iter(self.links.list(0)).map(SlabId)
    }

    /// Whether every slab in the list is marked as idle, waits in the queue, and stands behind those of lower
    /// numbers. Looks at everything.
    pub(super) fn is_sound(&self) -> bool {
        let is_marked = |slab: SlabId| self.is_idle[slab.index()];
        if self.is_idle.count_ones(..) != self.iter().count() || !self.iter().all(is_marked) {
            return false;
        }
        self.queue.as_ref().is_none_or(|queue| {
            let mut waits = self.is_idle.clone();
            waits.clear();
            let current = queue.iter().filter(|it| **it == self.entry(SlabId(it.id)));
            current.for_each(|it| waits.insert(it.id as usize));
            self.iter().all(|slab| waits[slab.index()])
                && self.iter().is_sorted_by_key(|slab| self.place[slab.index()])
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.links.memory_bytes()
            + self.priority.len() * (size_of::<u64>() + size_of::<i64>())
            + self.is_idle.len() / 8
            + self.queue.as_ref().map_or(0, EvictionQueue::memory_bytes)
    }
}

/// Whether an entry names a slab's place of now.
fn is_current(is_idle: &FixedBitSet, priority: &[u64], place: &[i64], entry: &Entry) -> bool {
    let at = entry.id as usize;
    is_idle[at] && (priority[at], place[at]) == (entry.priority, entry.order)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NUM_SLABS: u32 = 12;

    #[derive(Clone, Debug)]
    enum Op {
        Enter(u32),
        Leave(u32),
        LeaveAndComeBack(Vec<u32>),
        Back(u32),
        SetPriority(u32, u64),
        Steal,
    }

    fn op() -> impl Strategy<Value = Op> {
        let slab = 0..NUM_SLABS;
        prop_oneof![
            4 => slab.clone().prop_map(Op::Enter),
            2 => slab.clone().prop_map(Op::Leave),
            1 => prop::collection::vec(slab.clone(), 1..4).prop_map(Op::LeaveAndComeBack),
            1 => slab.clone().prop_map(Op::Back),
            4 => (slab, 0u64..4).prop_map(|(slab, priority)| Op::SetPriority(slab, priority)),
            2 => Just(Op::Steal),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

        /// The model: a list of slabs, looked through from its front for the lowest priority.
        #[test]
        fn the_first_slab_is_the_one_that_a_scan_of_the_list_finds(
            by_priority in any::<bool>(),
            ops in prop::collection::vec(op(), 0..400),
        ) {
            let mut idle = IdleSlabs::new(NUM_SLABS);
            if by_priority {
                idle.order_by_priority();
            }
            let mut list: Vec<u32> = Vec::new();
            let mut priority = [0; NUM_SLABS as usize];
            for op in ops {
                let at = |slab: &u32| list.iter().position(|other| other == slab);
                match op {
                    Op::Enter(slab) if at(&slab).is_none() => {
                        idle.enter(SlabId(slab));
                        list.push(slab);
                    }
                    Op::Leave(slab) => if let Some(at) = at(&slab) {
                        idle.leave(SlabId(slab));
                        list.remove(at);
                    },
                    Op::LeaveAndComeBack(mut slabs) => {
                        slabs.sort_unstable();
                        slabs.dedup();
                        slabs.retain(|slab| at(slab).is_some());
                        for &slab in &slabs {
                            idle.leave(SlabId(slab));
                        }
                        idle.first();
                        slabs.iter().rev().for_each(|&slab| idle.restore(SlabId(slab)));
                    }
                    Op::Back(slab) => if let Some(at) = at(&slab) {
                        idle.move_to_back(SlabId(slab));
                        list.remove(at);
                        list.push(slab);
                    },
                    Op::SetPriority(slab, to) => {
                        idle.set_priority(SlabId(slab), to);
                        priority[slab as usize] = to;
                    }
                    Op::Steal => {
                        let scan = || list.iter().min_by_key(|&&slab| priority[slab as usize]);
                        let expected = if by_priority { scan() } else { list.first() }.copied();
                        prop_assert_eq!(idle.first().map(|slab| slab.0), expected);
                    }
                    Op::Enter(_) => {}
                }
                prop_assert_eq!(idle.iter().map(|slab| slab.0).collect::<Vec<_>>(), list.clone());
                prop_assert_eq!(idle.num as usize, list.len());
                prop_assert!(idle.is_sound());
            }
        }
    }
}
