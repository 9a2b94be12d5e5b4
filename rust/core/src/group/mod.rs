//! Cache groups: which blocks a request needs in each kind of layer.
//!
//! A kind is one row of the tables in `kind.rs`, and one file that answers a `Search` if its prefixes can be found:
//!
//! | file | layers |
//! |---|---|
//! | `full` | attention over all tokens, MLA included |
//! | `sliding_window`, `chunked` | attention over a part of the tokens |
//! | `mamba_in_place`, `mamba_aligned` | recurrent states as vLLM keeps them |

pub(crate) mod chunked;
pub(crate) mod full;
mod kind;
pub(crate) mod mamba_aligned;
pub(crate) mod mamba_in_place;
mod search;
pub(crate) mod sliding_window;
mod table;

pub(crate) use kind::gcd;
pub use kind::{GroupKind, Role, Storage};
pub use search::GroupBlocks;
pub(crate) use search::{Found, Search};
pub(crate) use table::{Table, empty};

use std::ops::Range;

use crate::error::Error;
use crate::ids::{GroupId, PoolId};
use crate::prefix_index::Key;
use hybrid_blocks_hash::Digest;

/// A group as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Kind of the group's layers.
    pub kind: GroupKind,
    /// Tokens a block, a multiple of the hash block.
    pub block_size: u32,
    /// Where its blocks come from.
    pub pool: PoolId,
}

/// A group at work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) spec: GroupSpec,
    /// The pool of the blocks that keys name. It is that of `spec`, whose blocks tables name, unless checkpoints are
    /// kept in another format.
    pub(crate) kept: PoolId,
    /// Hash blocks a block; 0 for kinds that are never cached and have blocks of another size.
    hash_blocks: u32,
    /// Blocks behind the end of a hit that its look-up must find too: a drafter drops them.
    pub(crate) num_dropped: u32,
    /// Whether its windows are kept where checkpoints are, and elsewhere only while nothing else needs their memory.
    pub(crate) is_placed: bool,
}

impl Group {
    pub(crate) fn new(id: GroupId, spec: GroupSpec, hash_block_size: u32) -> Result<Self, Error> {
        let GroupSpec { kind, block_size, .. } = spec;
        if hash_block_size == 0 || block_size == 0 {
            return Err(Error::InvalidConfig(format!(
                "group {id}: blocks of {block_size} tokens over hash blocks of {hash_block_size}; \
                 both must be at least 1"
            )));
        }
        if !kind.keeps_anything() {
            return Err(Error::InvalidConfig(format!(
                "group {id} keeps nothing; its window, chunk or number of states must be at least 1"
            )));
        }
        if kind.is_cacheable() && !block_size.is_multiple_of(hash_block_size) {
            return Err(Error::InvalidConfig(format!(
                "group {id}: block size {block_size} is not a multiple of the hash block size \
                 {hash_block_size}"
            )));
        }
        let hash_blocks = block_size / hash_block_size;
        Ok(Self { id, spec, kept: spec.pool, hash_blocks, num_dropped: 0, is_placed: false })
    }

    pub(crate) fn kind(&self) -> GroupKind {
        self.spec.kind
    }

    /// Whether a key never names a block of a table: checkpoints are kept in a pool of their own.
    #[inline]
    pub(crate) fn keeps_apart(&self) -> bool {
        self.kept != self.spec.pool
    }

    /// Hash blocks a block.
    pub(crate) fn hash_blocks_per_block(&self) -> usize {
        self.hash_blocks as usize
    }

    /// The key of a full block, by its position.
    pub(crate) fn key(&self, digests: &[Digest], position: u32) -> Key {
        let digest = digests[(position as usize + 1) * self.hash_blocks as usize - 1];
        Key { digest, group: self.id }
    }

    /// The key of what `num_tokens` tokens leave, a multiple of the block size above 0.
    pub(crate) fn key_at(&self, digests: &[Digest], num_tokens: u32) -> Option<Key> {
        let block = (num_tokens / self.spec.block_size).checked_sub(1)? as usize;
        let digest = *digests.get((block + 1) * self.hash_blocks as usize - 1)?;
        Some(Key { digest, group: self.id })
    }

    /// Leading blocks that nothing computed after `num_computed` tokens looks at.
    pub(crate) fn num_skipped_blocks(&self, num_computed: u32) -> u32 {
        self.spec.kind.num_skipped_tokens(num_computed) / self.spec.block_size
    }

    /// Positions of the blocks that a hit of `num_tokens` tokens needs, where the group keeps windows.
    pub(crate) fn needed_at(&self, num_tokens: u32) -> Range<u32> {
        let end = num_tokens / self.spec.block_size;
        match self.spec.kind {
            GroupKind::SlidingWindow { window, .. } => {
                // A look-up asks for the last block of the smallest window too.
                let need =
                    sliding_window::window_blocks(window, self.spec.block_size, false).max(1);
                end.saturating_sub(need)..end + self.num_dropped
            }
            GroupKind::Chunked { chunk } => num_tokens / chunk * chunk / self.spec.block_size..end,
            _ => 0..end,
        }
    }

    /// The first number of computed tokens after `num_computed` at which one more leading block is
    /// looked at no more.
    #[inline]
    pub(crate) fn next_skip(&self, num_computed: u32) -> u32 {
        if !self.spec.kind.skips() {
            return u32::MAX;
        }
        let next = self.num_skipped_blocks(num_computed) + 1;
        self.spec.kind.num_computed_until(next.saturating_mul(self.spec.block_size))
    }

    /// Blocks in the table of a request of `num_tokens` tokens, those given back included.
    pub(crate) fn table_len(&self, num_tokens: u64) -> u64 {
        self.spec.kind.table_len(num_tokens, self.spec.block_size)
    }

    /// Blocks missing until `num_tokens` tokens have room.
    pub(crate) fn num_missing(&self, table: &Table, num_tokens: u32) -> u64 {
        self.table_len(u64::from(num_tokens)).saturating_sub(table.blocks.len() as u64)
    }

    /// Tokens that have room in `table`.
    pub(crate) fn room(&self, table: &Table) -> u32 {
        self.spec.kind.room(table.blocks.len() as u32, self.spec.block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_needs_the_blocks_that_the_next_token_looks_at() {
        for (size, block_size) in [(2, 2), (3, 2), (5, 4), (16, 4), (33, 16), (128, 16)] {
            for kind in [
                GroupKind::Full,
                GroupKind::sliding_window(size),
                GroupKind::Chunked { chunk: size },
            ] {
                let spec = GroupSpec { kind, block_size, pool: PoolId(0) };
                let mut group = Group::new(GroupId(0), spec, 1).unwrap();
                for blocks in 0..60 {
                    let end = blocks * block_size;
                    let needed = group.num_skipped_blocks(end)..blocks;
                    assert_eq!(group.needed_at(end), needed, "{kind:?} after {end} tokens");
                }
                group.num_dropped = 1;
                let dropped = u32::from(matches!(kind, GroupKind::SlidingWindow { .. }));
                assert_eq!(group.needed_at(8 * block_size).end, 8 + dropped);
            }
        }
    }

    #[test]
    fn the_next_skip_is_the_first_length_at_which_a_block_is_given_back() {
        for (window, block_size) in [(1, 2), (3, 2), (5, 4), (16, 4), (128, 16)] {
            for kind in [
                GroupKind::sliding_window(window),
                GroupKind::SlidingWindow { window, extra_retained: 3 },
                GroupKind::Chunked { chunk: window },
                GroupKind::MambaInPlace { num_speculative: 1 },
            ] {
                let spec = GroupSpec { kind, block_size, pool: PoolId(0) };
                let group = Group::new(GroupId(0), spec, 1).unwrap();
                for num_computed in 0..400 {
                    let skipped = |n| group.num_skipped_blocks(n);
                    let next =
                        (num_computed + 1..2_000).find(|&n| skipped(n) > skipped(num_computed));
                    assert_eq!(next, Some(group.next_skip(num_computed)), "{kind:?}");
                }
            }
        }
    }
}
