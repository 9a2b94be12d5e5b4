//! The device memory behind the blocks, simulated: what was written where.

use std::collections::HashMap;

/// A block as the device sees it: the pool whose kernels cut the slab, and the id.
type Place = (u32, u32);

/// Granules so small that every pool's blocks are made of whole ones. Writing to a block of one pool
/// destroys what a block of another pool held in the same bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    granules_per_slab: u32,
    blocks_per_slab: Vec<u32>,
    written_as: HashMap<u32, Place>,
    contents: HashMap<Place, HashMap<u32, u64>>,
}

impl Memory {
    pub(crate) fn new(blocks_per_slab: &[u32]) -> Self {
        Self {
            granules_per_slab: blocks_per_slab.iter().product(),
            blocks_per_slab: blocks_per_slab.to_vec(),
            written_as: HashMap::new(),
            contents: HashMap::new(),
        }
    }

    fn granules(&self, (pool, block): Place) -> std::ops::Range<u32> {
        let size = self.granules_per_slab / self.blocks_per_slab[pool as usize];
        block * size..(block + 1) * size
    }

    fn is_intact(&self, place: Place) -> bool {
        self.granules(place).all(|at| self.written_as.get(&at) == Some(&place))
    }

    pub(crate) fn write(&mut self, place: Place, offset: u32, value: u64) {
        for granule in self.granules(place) {
            if self.written_as.insert(granule, place) != Some(place) {
                self.contents.remove(&place);
            }
        }
        self.contents.entry(place).or_default().insert(offset, value);
    }

    pub(crate) fn read(&self, place: Place, offset: u32) -> Option<u64> {
        self.is_intact(place).then(|| self.contents.get(&place)?.get(&offset).copied())?
    }

    /// Copies all bytes of a block onto another one of the same pool.
    pub(crate) fn copy(&mut self, src: Place, dst: Place) {
        let content = if self.is_intact(src) { self.contents.get(&src).cloned() } else { None };
        for granule in self.granules(dst) {
            self.written_as.insert(granule, dst);
        }
        self.contents.insert(dst, content.unwrap_or_default());
    }
}
