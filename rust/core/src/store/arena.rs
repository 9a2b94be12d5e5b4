//! The arena: which slabs nobody owns.

use crate::ids::SlabId;

/// Slabs of equal size. A slab is free here or owned by one pool.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(super) num_slabs: u32,
    pub(super) free: Vec<SlabId>,
}

impl Arena {
    /// All slabs are free but the first, which is kept back for the null block.
    pub(crate) fn new(num_slabs: u32) -> Self {
        Self { num_slabs, free: (1..num_slabs).rev().map(SlabId).collect() }
    }

    pub(crate) fn num_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Take the slab given back last, or the lowest that was never used.
    pub(crate) fn take(&mut self) -> Option<SlabId> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, slab: SlabId) {
        debug_assert!(slab.0 < self.num_slabs);
        self.free.push(slab);
    }
}
