//! [`GroupLayout`]: the bytes of one stored chunk of a group, whatever the number of ranks.

use super::StateFormat;
use crate::error::Error;

/// The kind of a part's bytes. The numbers are part of [`LayoutVersion`](super::LayoutVersion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartKind {
    /// Keys and values of attention heads. The attention backend decides what a head holds.
    KeyValue = 1,
    /// Bytes that every rank holds alike, such as latent vectors of MLA. They count as one head.
    Replicated = 2,
    /// The last inputs of a causal convolution. A convolution over several inputs is several parts,
    /// as each of them is split on its own.
    Convolution = 3,
    /// The recurrent states of heads.
    Recurrent = 4,
    /// Bytes of unknown structure. Each rank's share counts as a head, so the layout holds for one
    /// number of ranks.
    Opaque = 5,
}

/// Bytes `[row][head][byte]` that tensor-parallel ranks split by head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The kind of the bytes.
    pub kind: PartKind,
    /// How often all heads follow one another, such as once a token.
    pub rows: u32,
    /// Heads of the whole model, not of one rank.
    pub num_heads: u32,
    /// Bytes of one head in one row.
    pub bytes_per_head: u64,
    /// Whether the bytes are numbers of 32 bits, which [`StateFormat`] can make smaller.
    pub is_float32: bool,
}

impl Part {
    fn checked_num_bytes(&self) -> Option<u64> {
        let heads = u64::from(self.num_heads) * u64::from(self.rows);
        self.bytes_per_head.checked_mul(heads)
    }
}

/// A group's chunk: its parts one after another, in the order in which one rank alone would hold them.
///
/// So an engine without tensor parallelism stores its chunks as they are, and others re-order theirs
/// with a [`ChunkCodec`](super::ChunkCodec). Parts are those of the first layer, then of the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLayout {
    parts: Vec<Part>,
    state_format: Option<StateFormat>,
}

impl GroupLayout {
    /// A layout of `parts`, with recurrent states in `state_format`, or as they are.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if a size is 0, a chunk has more than 2^40 bytes, or heads of 32-bit
    /// numbers hold a part of one.
    pub fn new(parts: Vec<Part>, state_format: Option<StateFormat>) -> Result<Self, Error> {
        let wrong = |why: &str, part: &dyn std::fmt::Debug| {
            Err(Error::InvalidConfig(format!("layout with {part:?}: {why}")))
        };
        if parts.is_empty() {
            return wrong("it needs at least one part", &parts);
        }
        let mut total = 0u64;
        for part in &parts {
            if part.rows == 0 || part.num_heads == 0 || part.bytes_per_head == 0 {
                return wrong("every size must be at least 1", part);
            }
            if part.is_float32 && !part.bytes_per_head.is_multiple_of(4) {
                return wrong("a number of 32 bits has 4 bytes", part);
            }
            match part.checked_num_bytes().and_then(|bytes| total.checked_add(bytes)) {
                Some(bytes) if bytes <= 1 << 40 => total = bytes,
                _ => return wrong("the chunk has over 2^40 bytes", part),
            }
        }
        Ok(Self { parts, state_format })
    }

    /// The parts, in the order in which they lie in a chunk.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// In which format recurrent states are stored, if not in their own.
    pub fn state_format(&self) -> Option<StateFormat> {
        self.state_format
    }

    /// The format of a part, where it is not stored as it is.
    pub fn format_of(&self, part: &Part) -> Option<StateFormat> {
        let is_state = part.kind == PartKind::Recurrent && part.is_float32;
        self.state_format.filter(|_| is_state)
    }

    /// Bytes that a head of a part has in a stored chunk, in one row.
    pub(super) fn stored_head_bytes(&self, part: &Part) -> u64 {
        match self.format_of(part) {
            Some(format) => format.head_bytes(part.bytes_per_head / 4),
            None => part.bytes_per_head,
        }
    }

    /// Bytes of a stored chunk.
    pub fn num_bytes(&self) -> u64 {
        let heads = |part: &Part| u64::from(part.num_heads) * u64::from(part.rows);
        self.parts.iter().map(|part| heads(part) * self.stored_head_bytes(part)).sum()
    }
}
