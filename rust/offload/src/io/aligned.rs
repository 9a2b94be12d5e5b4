//! [`AlignedBuffer`]: bytes whose address is a multiple of a page, as `O_DIRECT` needs them.

/// Bytes that addresses, lengths and offsets of direct transfers are multiples of. The unit of the files'
/// format, whatever pages the machine has.
pub const PAGE: usize = 4096;

/// Whether bytes can be transferred without a copy: address and length are multiples of a page.
pub fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().align_offset(PAGE) == 0 && bytes.len().is_multiple_of(PAGE)
}

/// Bytes, all 0 at first, that start at a page border and fill whole pages.
#[derive(Debug)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// At least `num_bytes` bytes, rounded up to whole pages.
    pub fn new(num_bytes: usize) -> Self {
        let len = num_bytes.next_multiple_of(PAGE);
        // A vector that is never resized keeps its address.
        let bytes = vec![0; len + PAGE - 1];
        let start = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, start, len }
    }
}

impl std::ops::Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
