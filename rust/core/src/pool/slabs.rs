//! [`Slabs`]: which slabs a pool owns and how full each is, kept so that no question needs a scan.

use fixedbitset::FixedBitSet;

use super::links::{Links, List};
use crate::ids::SlabId;

const NOT_OWNED: u32 = u32::MAX;

/// Occupancy of the slabs of one [`SlabPool`](super::SlabPool).
///
/// Slabs with free blocks wait in one list per number of free blocks: allocations fill the fullest one
/// first, so that slabs that are nearly empty become empty. Slabs without a live block wait in `idle`,
/// the one idle longest first: another pool may take them whole.
#[derive(Debug)]
pub(crate) struct Slabs {
    blocks_per_slab: u32,
    /// Free blocks of each slab, or [`NOT_OWNED`].
    pub(super) free: Vec<u32>,
    pub(super) live: Vec<u32>,
    pub(super) by_free: Links,
    /// Numbers of free blocks that some slab has.
    pub(super) occupied: FixedBitSet,
    pub(super) idle: Links,
    /// The highest priority of a cached block since the slab was adopted.
    pub(super) priority: Vec<u64>,
    pub(super) num_owned: u32,
    pub(super) num_idle: u32,
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
            idle: Links::new(num_slabs, 1),
            priority: vec![0; num_slabs as usize],
            num_owned: 0,
            num_idle: 0,
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

    /// Owned slabs.
    pub(crate) fn num_owned(&self) -> u32 {
        self.num_owned
    }

    /// Owned slabs without a live block.
    pub(crate) fn num_idle(&self) -> u32 {
        self.num_idle
    }

    /// Blocks with an owner.
    pub(crate) fn num_live(&self) -> u64 {
        u64::from(self.num_owned - self.num_idle) * u64::from(self.blocks_per_slab) - self.slack
    }

    /// Blocks without an owner in slabs that hold live blocks: room that only this pool can use.
    pub(crate) fn slack(&self) -> u64 {
        self.slack
    }

    pub(crate) fn num_free_in(&self, slab: SlabId) -> u32 {
        self.free[slab.index()]
    }

    pub(crate) fn num_live_in(&self, slab: SlabId) -> u32 {
        self.live[slab.index()]
    }

    /// The highest priority of a cached block of the slab since it was adopted.
    pub(crate) fn priority(&self, slab: SlabId) -> u64 {
        self.priority[slab.index()]
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
    pub(crate) fn fullest_live_with_room(
        &self,
        allowed: impl Fn(SlabId) -> bool,
    ) -> Option<SlabId> {
        self.occupied
            .ones()
            .flat_map(|free| self.by_free.iter(self.bucket(free as u32)))
            .map(SlabId)
            .find(|&slab| self.live[slab.index()] > 0 && allowed(slab))
    }

    /// Owned slabs.
    pub(crate) fn owned(&self) -> impl Iterator<Item = SlabId> + '_ {
        (0..self.free.len() as u32).map(SlabId).filter(|&slab| self.owns(slab))
    }

    /// Owned slabs that hold live blocks.
    pub(crate) fn live(&self) -> impl Iterator<Item = SlabId> + '_ {
        self.owned().filter(|slab| self.live[slab.index()] > 0)
    }

    /// Owned slabs without a live block, the one idle longest first.
    pub(crate) fn idle(&self) -> impl Iterator<Item = SlabId> + '_ {
        self.idle.iter(self.idle.list(0)).map(SlabId)
    }

    /// Own a slab whose blocks are all free.
    pub(crate) fn adopt(&mut self, slab: SlabId) {
        debug_assert!(!self.owns(slab));
        self.free[slab.index()] = self.blocks_per_slab;
        self.live[slab.index()] = 0;
        self.priority[slab.index()] = 0;
        self.num_owned += 1;
        self.enter_bucket(slab);
        self.enter_idle(slab);
    }

    /// Stop owning a slab whose blocks are all free.
    pub(crate) fn give_up(&mut self, slab: SlabId) {
        debug_assert_eq!(self.free[slab.index()], self.blocks_per_slab);
        self.leave_bucket(slab);
        self.leave_idle(slab);
        self.num_owned -= 1;
        self.free[slab.index()] = NOT_OWNED;
    }

    pub(crate) fn is_all_free(&self, slab: SlabId) -> bool {
        self.free[slab.index()] == self.blocks_per_slab
    }

    fn enter_idle(&mut self, slab: SlabId) {
        self.idle.push_back(self.idle.list(0), slab.0);
        self.num_idle += 1;
    }

    fn leave_idle(&mut self, slab: SlabId) {
        self.idle.remove(slab.0);
        self.num_idle -= 1;
    }

    /// `count` blocks of `slab` got an owner, of which `num_free` kept no content.
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
            self.leave_idle(slab);
        } else {
            *live += count;
            self.slack -= u64::from(count);
        }
    }

    /// `count` blocks of `slab` lost their last owner, of which `num_free` keep no content; `priority`
    /// is the highest of the others.
    pub(crate) fn on_dead(&mut self, slab: SlabId, count: u32, num_free: u32, priority: u64) {
        self.priority[slab.index()] = self.priority[slab.index()].max(priority);
        if self.lose_live(slab, count) {
            self.enter_idle(slab);
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

    /// A cached block of the slab has a higher priority again.
    pub(crate) fn refresh(&mut self, slab: SlabId, priority: u64) {
        self.priority[slab.index()] = self.priority[slab.index()].max(priority);
        if self.live[slab.index()] == 0 {
            self.idle.remove(slab.0);
            self.idle.push_back(self.idle.list(0), slab.0);
        }
    }

    /// The highest priority of the slab's cached blocks has fallen.
    pub(crate) fn demote(&mut self, slab: SlabId, priority: u64) {
        self.priority[slab.index()] = priority;
        if priority == 0 && self.live[slab.index()] == 0 {
            self.idle.remove(slab.0);
            self.idle.push_front(self.idle.list(0), slab.0);
        }
    }

    /// Undo the latest [`Slabs::on_live`] of a cached block.
    pub(crate) fn undo_live(&mut self, slab: SlabId) {
        if self.lose_live(slab, 1) {
            self.idle.restore(slab.0);
            self.num_idle += 1;
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.by_free.memory_bytes()
            + self.idle.memory_bytes()
            + self.free.len() * (2 * size_of::<u32>() + size_of::<u64>())
            + self.occupied.len() / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_for_slabs_and_for_the_numbers_of_blocks_that_may_be_free() {
        // Links of 3 slabs in 128 lists and in 1 list, 3 slabs' counts, a bit for each number.
        let expected = 8 * (3 + 128) + 8 * (3 + 1) + 3 * 16 + 128 / 8;
        assert_eq!(Slabs::new(3, 128).memory_bytes(), expected);
    }
}
