//! [`Shard`]: what one tensor-parallel rank reads and writes of a chunk.

use std::ops::Range;

use super::GroupLayout;
use crate::error::Error;

/// The heads and bytes of one rank, by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Heads that the rank computes, by part.
    pub heads: Vec<Range<u32>>,
    /// Bytes of the chunk that the rank loads, by part. They lie in rising order.
    pub loads: Vec<Range<u64>>,
    /// Bytes that the rank stores, by part. Where several ranks hold the same head, the first of them
    /// stores it, and the others have an empty range.
    pub stores: Vec<Range<u64>>,
}

impl GroupLayout {
    /// What `rank` of `tp_size` ranks reads and writes.
    ///
    /// The stored ranges of all ranks are the chunk, each byte once, whatever `tp_size` is. So ranks of
    /// one size load what those of another size stored.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] unless `rank < tp_size`, and one of `tp_size` and the heads of each part
    /// is a multiple of the other.
    pub fn shard(&self, tp_size: u32, rank: u32) -> Result<Shard, Error> {
        if rank >= tp_size {
            return Err(Error::InvalidConfig(format!(
                "rank {rank} of {tp_size} tensor-parallel ranks; ranks count from 0"
            )));
        }
        let mut shard = Shard { heads: Vec::new(), loads: Vec::new(), stores: Vec::new() };
        for (at, part) in self.parts().iter().enumerate() {
            let heads = heads_of(part.num_heads, tp_size, rank).ok_or_else(|| {
                Error::InvalidConfig(format!(
                    "part {at} has {} heads, which {tp_size} tensor-parallel ranks cannot share \
                     evenly; use a size that divides the heads or is a multiple of them",
                    part.num_heads
                ))
            })?;
            let byte = |head: u32| self.part_start(at) + u64::from(head) * self.head_bytes(at);
            let loads = byte(heads.start)..byte(heads.end);
            let replicas = (tp_size / part.num_heads).max(1);
            let is_first = rank.is_multiple_of(replicas);
            shard.stores.push(if is_first { loads.clone() } else { loads.start..loads.start });
            shard.loads.push(loads);
            shard.heads.push(heads);
        }
        Ok(shard)
    }
}

/// The heads of a rank, as vLLM splits them: evenly, or each head on several ranks in a row.
fn heads_of(num_heads: u32, tp_size: u32, rank: u32) -> Option<Range<u32>> {
    if num_heads.is_multiple_of(tp_size) {
        let own = num_heads / tp_size;
        Some(rank * own..(rank + 1) * own)
    } else if tp_size.is_multiple_of(num_heads) {
        let head = rank / (tp_size / num_heads);
        Some(head..head + 1)
    } else {
        None
    }
}
