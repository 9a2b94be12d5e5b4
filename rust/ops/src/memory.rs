//! The device memory behind the blocks, simulated: what was written where.

/// A block as the device sees it: the pool whose kernels cut the slab, and the id.
pub(crate) type Place = (u32, u32);

/// Content of a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// Bytes that no block of now wrote.
    Garbage,
    Zeroes,
    /// A part of a block.
    As(Place),
}

/// Granules so small that every pool's blocks are made of whole ones. Writing to a block of one pool
/// destroys what a block of another pool held in the same bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    granules_per_slab: u32,
    blocks_per_slab: Vec<u32>,
    granules: Vec<Written>,
    /// By pool and block, what was written at each offset.
    contents: Vec<Vec<Vec<Option<u64>>>>,
}

impl Memory {
    pub(crate) fn new(num_slabs: u32, blocks_per_slab: &[u32]) -> Self {
        let granules_per_slab: u32 = blocks_per_slab.iter().product();
        let contents = |&size: &u32| vec![Vec::new(); (num_slabs * size) as usize];
        Self {
            granules_per_slab,
            blocks_per_slab: blocks_per_slab.to_vec(),
            granules: vec![Written::Garbage; (num_slabs * granules_per_slab) as usize],
            contents: blocks_per_slab.iter().map(contents).collect(),
        }
    }

    fn granules(&self, (pool, block): Place) -> std::ops::Range<usize> {
        let size = self.granules_per_slab / self.blocks_per_slab[pool as usize];
        (block * size) as usize..((block + 1) * size) as usize
    }

    fn slab(&self, slab: u32) -> std::ops::Range<usize> {
        (slab * self.granules_per_slab) as usize..((slab + 1) * self.granules_per_slab) as usize
    }

    fn content(&self, (pool, block): Place) -> &Vec<Option<u64>> {
        &self.contents[pool as usize][block as usize]
    }

    fn content_mut(&mut self, (pool, block): Place) -> &mut Vec<Option<u64>> {
        &mut self.contents[pool as usize][block as usize]
    }

    fn is_intact(&self, place: Place) -> bool {
        self.granules[self.granules(place)].iter().all(|&it| it == Written::As(place))
    }

    /// Whether a block holds zeroes, or what was written to it as to a block of its pool.
    pub(crate) fn is_clean(&self, place: Place) -> bool {
        let mut granules = self.granules[self.granules(place)].iter();
        granules.all(|&it| it == Written::Zeroes || it == Written::As(place))
    }

    pub(crate) fn write(&mut self, place: Place, offset: u32, value: u64) {
        if !self.is_intact(place) {
            let granules = self.granules(place);
            self.granules[granules].fill(Written::As(place));
            self.content_mut(place).clear();
        }
        let (content, offset) = (self.content_mut(place), offset as usize);
        content.resize(content.len().max(offset + 1), None);
        content[offset] = Some(value);
    }

    pub(crate) fn read(&self, place: Place, offset: u32) -> Option<u64> {
        let content = self.content(place).get(offset as usize);
        content.copied().flatten().filter(|_| self.is_intact(place))
    }

    /// Fills a slab with zeroes.
    pub(crate) fn zero_slab(&mut self, slab: u32) {
        let granules = self.slab(slab);
        self.granules[granules].fill(Written::Zeroes);
    }

    /// Fills a block with zeroes.
    pub(crate) fn zero(&mut self, place: Place) {
        let granules = self.granules(place);
        self.granules[granules].fill(Written::Zeroes);
    }

    /// Copies all bytes of a block onto another one, converted for the kernels of its pool.
    pub(crate) fn copy(&mut self, src: Place, dst: Place) {
        self.copy_all(&[(src, dst)]);
    }

    /// Reads all sources, then write all destinations.
    pub(crate) fn copy_all(&mut self, copies: &[(Place, Place)]) {
        let read = copies.iter().map(|&(src, _)| {
            if self.is_intact(src) { self.content(src).clone() } else { Vec::new() }
        });
        let read: Vec<_> = read.collect();
        for (&(_, dst), content) in copies.iter().zip(read) {
            let granules = self.granules(dst);
            self.granules[granules].fill(Written::As(dst));
            *self.content_mut(dst) = content;
        }
    }
}
