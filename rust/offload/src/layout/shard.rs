//! [`Part::shard`]: the heads of a part that one tensor-parallel rank holds.

use std::ops::Range;

use super::{Part, PartKind};
use crate::error::Error;

/// A rank's share of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The heads that it holds.
    pub heads: Range<u32>,
    /// Whether it stores them: where several ranks hold the same head, the first one does.
    pub is_stored: bool,
}

impl Shard {
    pub(super) fn num_heads(&self) -> u64 {
        u64::from(self.heads.end - self.heads.start)
    }
}

impl Part {
    /// The heads of `rank`, as vLLM splits them: evenly, or each head on several ranks in a row.
    ///
    /// All ranks together store every head once, whatever `tp_size` is. So ranks of one size load the
    /// chunks that ranks of another size stored.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] unless `rank < tp_size`, and one of `tp_size` and the heads is a multiple
    /// of the other; of [`PartKind::Opaque`], unless each rank has a head.
    pub fn shard(&self, tp_size: u32, rank: u32) -> Result<Shard, Error> {
        if rank >= tp_size {
            return Err(Error::InvalidConfig(format!(
                "rank {rank} of {tp_size} tensor-parallel ranks; ranks count from 0"
            )));
        }
        let num_heads = self.num_heads;
        if self.kind == PartKind::Opaque && num_heads != tp_size {
            return Err(Error::InvalidConfig(format!(
                "{self:?} is of {num_heads} ranks and its structure is not known; {tp_size} \
                 tensor-parallel ranks cannot share it"
            )));
        }
        if num_heads.is_multiple_of(tp_size) {
            let own = num_heads / tp_size;
            return Ok(Shard { heads: rank * own..(rank + 1) * own, is_stored: true });
        }
        if tp_size.is_multiple_of(num_heads) {
            let replicas = tp_size / num_heads;
            let head = rank / replicas;
            let is_stored = rank.is_multiple_of(replicas);
            return Ok(Shard { heads: head..head + 1, is_stored });
        }
        Err(Error::InvalidConfig(format!(
            "{self:?} has {num_heads} heads, which {tp_size} tensor-parallel ranks cannot share \
             evenly; use a size that divides the heads or is a multiple of them"
        )))
    }
}
