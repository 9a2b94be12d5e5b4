//! [`GroupLayout`]: the bytes of one chunk of a group, of all ranks together.

use crate::error::Error;

/// What the bytes of a part are. The numbers are part of [`LayoutVersion`](super::LayoutVersion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartKind {
    /// Keys, then values, of one attention head: `[2][tokens][head_dim]`.
    KeyValue = 1,
    /// One latent vector a token, as in MLA: `[tokens][latent_dim]`. It has one head.
    Latent = 2,
    /// The last inputs of a causal convolution that belong to one head: `[channels][width]`.
    Convolution = 3,
    /// The recurrent state of one head: `[key_dim][value_dim]`.
    Recurrent = 4,
}

/// Tensors of one kind, split by head between tensor-parallel ranks.
///
/// A convolution over queries, keys and values is three parts: each of them is split on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What the bytes are.
    pub kind: PartKind,
    /// Heads of the whole model, not of one rank.
    pub num_heads: u32,
    /// Bytes of one head in one layer and one block.
    pub bytes_per_head: u64,
}

/// The canonical layout of a group: `[part][head][layer][block of the chunk]`.
///
/// Heads stand outside layers, so that what a rank owns of a part is one range of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLayout {
    parts: Vec<Part>,
    num_layers: u32,
    blocks_per_chunk: u32,
}

impl GroupLayout {
    /// A layout of `num_layers` layers and `blocks_per_chunk` blocks.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if a size is 0 or a chunk has more than 2^40 bytes.
    pub fn new(parts: Vec<Part>, num_layers: u32, blocks_per_chunk: u32) -> Result<Self, Error> {
        let has_zero = parts.iter().any(|part| part.num_heads == 0 || part.bytes_per_head == 0);
        if has_zero || parts.is_empty() || num_layers == 0 || blocks_per_chunk == 0 {
            return Err(Error::InvalidConfig(format!(
                "layout of {parts:?}, {num_layers} layers, {blocks_per_chunk} blocks a chunk: \
                 every size must be at least 1"
            )));
        }
        let layout = Self { parts, num_layers, blocks_per_chunk };
        match layout.checked_num_bytes() {
            Some(bytes) if bytes <= 1 << 40 => Ok(layout),
            _ => Err(Error::InvalidConfig(format!("a chunk of {layout:?} has over 2^40 bytes"))),
        }
    }

    fn checked_num_bytes(&self) -> Option<u64> {
        self.parts.iter().try_fold(0u64, |sum, part| {
            let heads = u64::from(part.num_heads).checked_mul(u64::from(self.num_layers))?;
            let blocks = heads.checked_mul(u64::from(self.blocks_per_chunk))?;
            sum.checked_add(blocks.checked_mul(part.bytes_per_head)?)
        })
    }

    /// The parts, in the order in which they lie in a chunk.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Layers of the group.
    #[must_use]
    pub fn num_layers(&self) -> u32 {
        self.num_layers
    }

    /// Blocks a chunk.
    #[must_use]
    pub fn blocks_per_chunk(&self) -> u32 {
        self.blocks_per_chunk
    }

    /// Bytes of a chunk, of all ranks together.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        (0..self.parts.len()).map(|part| self.part_bytes(part)).sum()
    }

    /// Bytes of all layers and blocks of one head of a part.
    pub(super) fn head_bytes(&self, part: usize) -> u64 {
        let num_blocks = u64::from(self.num_layers) * u64::from(self.blocks_per_chunk);
        self.parts[part].bytes_per_head * num_blocks
    }

    pub(super) fn part_bytes(&self, part: usize) -> u64 {
        self.head_bytes(part) * u64::from(self.parts[part].num_heads)
    }

    /// The first byte of a part within the chunk.
    pub(super) fn part_start(&self, part: usize) -> u64 {
        (0..part).map(|before| self.part_bytes(before)).sum()
    }

    /// The first byte, within a chunk, of one head in one layer and block. Its length is the part's
    /// `bytes_per_head`.
    ///
    /// # Panics
    /// If an index is not below its count.
    #[must_use]
    pub fn offset(&self, part: usize, head: u32, layer: u32, block: u32) -> u64 {
        assert!(
            head < self.parts[part].num_heads
                && layer < self.num_layers
                && block < self.blocks_per_chunk,
            "head {head}, layer {layer}, block {block} of part {part} is outside {self:?}"
        );
        let slot = u64::from(layer) * u64::from(self.blocks_per_chunk) + u64::from(block);
        self.part_start(part)
            + u64::from(head) * self.head_bytes(part)
            + slot * self.parts[part].bytes_per_head
    }
}
