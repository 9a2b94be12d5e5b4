//! [`Slabs`]: which slabs a pool owns and how full each is, kept so that no question needs a scan.

use fixedbitset::FixedBitSet;

use super::idle_slabs::IdleSlabs;
use super::links::{Links, List};
use crate::ids::SlabId;

const NOT_OWNED: u32 = u32::MAX;

/// The slabs of a pool that hold live blocks, and their other blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BesideLive {
    /// Slabs with a live block; in a fixed store live blocks.
    pub num_slabs: u64,
    /// Their blocks without an owner whose content can be found.
    pub num_cached: u64,
    /// Their blocks without owner and content.
    pub num_free: u64,
}

/// Occupancy of the slabs of one [`SlabPool`](super::SlabPool).
///
/// Slabs with free blocks wait in one list per number of free blocks: allocations fill the fullest one
/// first, so that slabs that are nearly empty become empty. Slabs without a live block wait in `idle`:
/// another pool may take them whole.
#[derive(Debug)]
pub(crate) struct Slabs {
    blocks_per_slab: u32,
    /// Free blocks of each slab, or [`NOT_OWNED`].
    pub(super) free: Vec<u32>,
    pub(super) live: Vec<u32>,
    pub(super) by_free: Links,
    /// Numbers of free blocks that some slab has.
    pub(super) occupied: FixedBitSet,
    pub(super) idle: IdleSlabs,
    pub(super) num_owned: u32,
    pub(super) slack: u64,
}

impl Slabs {
    pub(crate) fn new(num_slabs: u32, blocks_per_slab: u32) -> Self {
        Self {
            blocks_per_slab,
            free: vec![NOT_OWNED; num_slabs as usize],
            live: vec![0; num_slabs as usize],
            by_free: Links::new(num_slabs, blocks_per_slab),
            occupied: FixedBitSet::with_capacity(blocks_per_slab as usize + 1),
            idle: IdleSlabs::new(num_slabs),
            num_owned: 0,
            slack: 0,
        }
    }

    #[inline]
    pub(crate) fn slab_of(&self, block: u32) -> SlabId {
        SlabId(block / self.blocks_per_slab)
    }

    pub(crate) fn blocks_per_slab(&self) -> u32 {
        self.blocks_per_slab
    }

    pub(crate) fn blocks_of(&self, slab: SlabId) -> std::ops::Range<u32> {
        slab.0 * self.blocks_per_slab..(slab.0 + 1) * self.blocks_per_slab
    }

    pub(crate) fn owns(&self, slab: SlabId) -> bool {
        self.free[slab.index()] != NOT_OWNED
    }

    /// Slabs that the pool owns.
    pub(crate) fn num_owned(&self) -> u32 {
        self.num_owned
    }

    /// Owned slabs without a live block.
    pub(crate) fn num_idle(&self) -> u32 {
        self.idle.num
    }

    /// Blocks without an owner in slabs that hold live blocks: room that only this pool can use.
    pub(crate) fn slack(&self) -> u64 {
        self.slack
    }

    /// Counts slabs with live blocks, and their other blocks; looks at each slab.
    pub(crate) fn beside_live(&self) -> BesideLive {
        let num_free = self.live().map(|slab| u64::from(self.free[slab.index()])).sum();
        let num_slabs = u64::from(self.num_owned - self.idle.num);
        BesideLive { num_slabs, num_cached: self.slack - num_free, num_free }
    }

    pub(crate) fn num_free_in(&self, slab: SlabId) -> u32 {
        self.free[slab.index()]
    }

    pub(crate) fn num_live_in(&self, slab: SlabId) -> u32 {
        self.live[slab.index()]
    }

    /// The highest priority of a cached block of the slab since it was adopted.
    pub(crate) fn priority(&self, slab: SlabId) -> u64 {
        self.idle.priority(slab)
    }

    pub(super) fn bucket(&self, free: u32) -> List {
        self.by_free.list(free - 1)
    }

    fn leave_bucket(&mut self, slab: SlabId) {
        let free = self.free[slab.index()];
        if free == 0 {
            return;
        }
        self.by_free.remove(slab.0);
        if self.by_free.front(self.bucket(free)).is_none() {
            self.occupied.remove(free as usize);
        }
    }

    fn enter_bucket(&mut self, slab: SlabId) {
        let free = self.free[slab.index()];
        if free == 0 {
            return;
        }
        self.by_free.push_front(self.bucket(free), slab.0);
        self.occupied.insert(free as usize);
    }

    /// The slab with the fewest free blocks, but at least one.
    pub(crate) fn fullest_with_room(&self) -> Option<SlabId> {
        let free = self.occupied.minimum()? as u32;
        self.by_free.front(self.bucket(free)).map(SlabId)
    }

    /// As [`Slabs::fullest_with_room`], among slabs that hold live blocks and are `allowed`.
    pub(crate) fn fullest_live_with_room(&self) -> Option<SlabId> {
        self.occupied
            .ones()
            .flat_map(|free| self.by_free.iter(self.bucket(free as u32)))
            .map(SlabId)
            .find(|&slab| self.live[slab.index()] > 0)
    }

    /// Returns the number of owned slabs.
    pub(crate) fn owned(&self) -> impl Iterator<Item = SlabId> + '_ {
        (0..self.free.len() as u32).map(SlabId).filter(|&slab| self.owns(slab))
    }

    /// Owned slabs that hold live blocks.
    pub(crate) fn live(&self) -> impl Iterator<Item = SlabId> + '_ {
        self.owned().filter(|slab| self.live[slab.index()] > 0)
    }

    /// The owned slab without a live block that another pool takes first: the one idle longest, or the one
    /// of the lowest priority.
    pub(crate) fn first_idle(&mut self) -> Option<SlabId> {
        self.idle.first()
    }

    /// Owns a slab whose blocks are all free.
    pub(crate) fn adopt(&mut self, slab: SlabId) {
        debug_assert!(!self.owns(slab));
        self.free[slab.index()] = self.blocks_per_slab;
        self.live[slab.index()] = 0;
        self.idle.set_priority(slab, 0);
        self.num_owned += 1;
        self.enter_bucket(slab);
        self.idle.enter(slab);
    }

    /// Stops owning a slab whose blocks are all free.
    pub(crate) fn give_up(&mut self, slab: SlabId) {
        debug_assert_eq!(self.free[slab.index()], self.blocks_per_slab);
        self.leave_bucket(slab);
        self.idle.leave(slab);
        self.num_owned -= 1;
        self.free[slab.index()] = NOT_OWNED;
    }

    pub(crate) fn is_all_free(&self, slab: SlabId) -> bool {
        self.free[slab.index()] == self.blocks_per_slab
    }

    /// `count` blocks of `slab` got an owner; `num_free` of them kept no content.
    pub(crate) fn on_live(&mut self, slab: SlabId, count: u32, num_free: u32) {
        if num_free > 0 {
            self.leave_bucket(slab);
            self.free[slab.index()] -= num_free;
            self.enter_bucket(slab);
        }
        let live = &mut self.live[slab.index()];
        if *live == 0 {
            self.slack += u64::from(self.blocks_per_slab - count);
            *live = count;
            self.idle.leave(slab);
        } else {
            *live += count;
            self.slack -= u64::from(count);
        }
    }

    /// `count` blocks of `slab` lost their last owner; `num_free` of them keep no content, and
    /// `priority` is the highest of the others.
    pub(crate) fn on_dead(&mut self, slab: SlabId, count: u32, num_free: u32, priority: u64) {
        self.raise_priority(slab, priority);
        if self.lose_live(slab, count) {
            self.idle.enter(slab);
        }
        if num_free > 0 {
            self.add_free(slab, num_free);
        }
    }

    /// `num_free` more blocks of `slab` are free.
    pub(super) fn add_free(&mut self, slab: SlabId, num_free: u32) {
        self.leave_bucket(slab);
        self.free[slab.index()] += num_free;
        self.enter_bucket(slab);
    }

    /// Takes `count` live blocks from the counts. Says whether they were the slab's last ones.
    fn lose_live(&mut self, slab: SlabId, count: u32) -> bool {
        let live = &mut self.live[slab.index()];
        *live -= count;
        let is_idle = *live == 0;
        if is_idle {
            self.slack -= u64::from(self.blocks_per_slab - count);
        } else {
            self.slack += u64::from(count);
        }
        is_idle
    }

    fn raise_priority(&mut self, slab: SlabId, priority: u64) {
        self.idle.set_priority(slab, self.idle.priority(slab).max(priority));
    }

    /// A cached block of the slab has a higher priority again.
    pub(crate) fn refresh(&mut self, slab: SlabId, priority: u64) {
        self.raise_priority(slab, priority);
        if self.live[slab.index()] == 0 {
            self.idle.move_to_back(slab);
        }
    }

    /// Undoes the latest [`Slabs::on_live`] of a cached block.
    pub(crate) fn undo_live(&mut self, slab: SlabId) {
        if self.lose_live(slab, 1) {
            self.idle.restore(slab);
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.by_free.memory_bytes()
            + self.idle.memory_bytes()
            + self.free.len() * 2 * size_of::<u32>()
            + self.occupied.len() / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_for_slabs_and_for_the_numbers_of_blocks_that_may_be_free() {
        // Links of 64 slabs in 128 lists and in 1 list, 64 slabs' counts, priorities and places, a bit
        // for each slab and for each number.
        let expected = 8 * (64 + 128) + 8 * (64 + 1) + 64 * (8 + 16) + 64 / 8 + 128 / 8;
        assert_eq!(Slabs::new(64, 128).memory_bytes(), expected);
    }
}
