//! Cache groups: which blocks a request needs in each kind of layer.
//!
//! | file | layers |
//! |---|---|
//! | `full`, `sliding_window`, `chunked` | how far attention looks back |
//! | `attention` | what follows from that, for all three |
//! | `state` | Mamba, `GatedDeltaNet`, KDA, short convolution |
//! | `cross` | attention over an encoder's tokens |

mod attention;
mod chunked;
mod cross;
mod full;
mod sliding_window;
mod state;
mod table;

use std::ops::Range;

use crate::digest::Digest;
use crate::error::Error;
use crate::event::Event;
use crate::ids::{GroupId, PoolId};
use crate::store::{BlockStore, Store};
pub(crate) use table::Table;

/// What the layers of a group keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupKind {
    /// Attention over all tokens; also latent attention, whose page holds one vector a token.
    Full,
    /// Attention over the token itself and the `window - 1` before it.
    SlidingWindow {
        /// Tokens looked at, at least 1.
        window: u32,
    },
    /// Attention within aligned chunks.
    Chunked {
        /// Tokens a chunk, at least 1.
        chunk: u32,
    },
    /// A recurrent state of fixed size. Its block size is the grain of lengths at which a checkpoint
    /// may be kept.
    State {
        /// State slots a request: 1, and 1 more for each speculative token.
        slots: u32,
    },
    /// Attention over the tokens of an encoder.
    Cross {
        /// Encoder tokens a request, at most.
        encoder_tokens: u32,
    },
}

/// A group as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// What its layers keep.
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
    /// Hash blocks a block.
    ratio: usize,
}

impl Group {
    pub(crate) fn new(id: GroupId, spec: GroupSpec, hash_block_size: u32) -> Result<Self, Error> {
        let GroupSpec { kind, block_size, .. } = spec;
        if hash_block_size == 0 || block_size == 0 || block_size % hash_block_size != 0 {
            return Err(Error::InvalidConfig(format!(
                "group {id}: block size {block_size} is not a multiple of the hash block size \
                 {hash_block_size}"
            )));
        }
        match kind {
            GroupKind::SlidingWindow { window: 0 }
            | GroupKind::Chunked { chunk: 0 }
            | GroupKind::State { slots: 0 }
            | GroupKind::Cross { encoder_tokens: 0 } => {
                Err(Error::InvalidConfig(format!("group {id}: {kind:?} keeps nothing")))
            }
            _ => Ok(Self { id, spec, ratio: (block_size / hash_block_size) as usize }),
        }
    }

    /// Whether the group holds a fixed number of blocks a request, whatever its length.
    pub(crate) fn is_constant(&self) -> bool {
        matches!(self.spec.kind, GroupKind::State { .. } | GroupKind::Cross { .. })
    }

    pub(crate) fn is_state(&self) -> bool {
        matches!(self.spec.kind, GroupKind::State { .. })
    }

    pub(crate) fn is_window(&self) -> bool {
        matches!(self.spec.kind, GroupKind::SlidingWindow { .. } | GroupKind::Chunked { .. })
    }

    /// The longest prefix, at most `limit` tokens and a multiple of `alignment`, after which this
    /// group can go on.
    pub(crate) fn longest_resumable(
        &self,
        store: &BlockStore,
        digests: &[Digest],
        limit: u32,
        alignment: u32,
    ) -> u32 {
        match self.spec.kind {
            GroupKind::State { .. } => self.longest_checkpoint(store, digests, limit, alignment),
            GroupKind::Cross { .. } => limit,
            _ => self.longest_window(store, digests, limit, alignment),
        }
    }

    /// Take a share in what is cached of a hit of `hit` tokens.
    pub(crate) fn adopt(
        &self,
        store: &mut BlockStore,
        digests: &[Digest],
        hit: u32,
        table: &mut Table,
    ) -> Result<(), Error> {
        match self.spec.kind {
            GroupKind::State { .. } => self.adopt_checkpoint(store, digests, hit, table),
            GroupKind::Cross { .. } => Ok(()),
            _ => self.adopt_blocks(store, digests, hit, table),
        }
    }

    /// Undo [`Group::adopt`], exactly, if nothing else happened since.
    pub(crate) fn undo_adopt(&self, store: &mut BlockStore, table: &mut Table) {
        let held = table.blocks.iter().chain(&table.fork);
        for &block in held.rev().filter(|block| !block.is_null()) {
            store.undo_touch(self.spec.pool, block);
        }
        table.clear();
    }

    /// Blocks a request of `num_tokens` tokens has in its table.
    fn table_len(&self, num_tokens: u64) -> u64 {
        match self.spec.kind {
            GroupKind::State { slots } => u64::from(slots),
            GroupKind::Cross { encoder_tokens } => {
                cross::num_blocks(encoder_tokens, self.spec.block_size)
            }
            _ => num_tokens.div_ceil(u64::from(self.spec.block_size)),
        }
    }

    /// Blocks missing until `num_tokens` tokens have room.
    pub(crate) fn num_missing(&self, table: &Table, num_tokens: u32) -> u64 {
        self.table_len(u64::from(num_tokens)).saturating_sub(table.blocks.len() as u64)
    }

    /// Tokens that have room in `table`.
    pub(crate) fn room(&self, table: &Table) -> u32 {
        if self.is_constant() {
            u32::MAX
        } else {
            (table.blocks.len() as u32).saturating_mul(self.spec.block_size)
        }
    }

    /// Most blocks that a request of `num_tokens` tokens holds at once, if at most `step` tokens
    /// are computed in one step.
    pub(crate) fn peak_blocks(&self, num_tokens: u64, step: u32) -> u64 {
        if self.is_constant() {
            self.table_len(num_tokens)
        } else {
            self.peak_span(num_tokens, step)
        }
    }

    /// Have what [`Group::commit`] looks at first fetched.
    #[inline]
    pub(crate) fn read_ahead(
        &self,
        store: &BlockStore,
        digests: &[Digest],
        num_computed: u32,
        table: &Table,
    ) -> u32 {
        let block = table.num_hashed;
        if self.is_constant() || num_computed / self.spec.block_size <= block {
            return 0;
        }
        let key = self.key(digests, block as usize);
        store.read_ahead(self.spec.pool, table.blocks[block as usize], &key)
    }

    /// Enter the blocks that `num_computed` tokens fill into the prefix index. Returns them.
    pub(crate) fn commit(
        &self,
        store: &mut BlockStore,
        digests: &[Digest],
        num_computed: u32,
        table: &mut Table,
    ) -> Range<u32> {
        if self.is_constant() {
            return 0..0;
        }
        self.commit_blocks(store, digests, num_computed, table)
    }

    /// The event that tells of freshly committed blocks.
    pub(crate) fn stored_event(
        &self,
        handle: u64,
        digests: &[Digest],
        new: Range<u32>,
        table: &Table,
    ) -> Option<Event> {
        let stored: Vec<Digest> = new
            .clone()
            .filter(|&block| !table.blocks[block as usize].is_null())
            .map(|block| self.key(digests, block as usize).digest)
            .collect();
        (!stored.is_empty()).then(|| Event::Stored {
            handle,
            group: self.id,
            first_block: new.start,
            block_size: self.spec.block_size,
            parent: new.start.checked_sub(1).map(|block| self.key(digests, block as usize).digest),
            digests: stored,
        })
    }

    /// The first number of computed tokens after `num_computed` at which [`Group::skip`] finds a
    /// block.
    #[inline]
    pub(crate) fn next_skip(&self, num_computed: u32) -> u32 {
        if self.is_window() { self.next_skipped_block(num_computed) } else { u32::MAX }
    }

    /// Give back what nothing after `num_computed` tokens looks at. Returns the positions.
    pub(crate) fn skip(
        &self,
        store: &mut BlockStore,
        num_computed: u32,
        table: &mut Table,
    ) -> Result<Range<u32>, Error> {
        if self.is_constant() {
            return Ok(0..0);
        }
        self.skip_blocks(store, num_computed, table)
    }

    /// Give back all blocks, the last one first, so that the end of a prefix goes before its start.
    pub(crate) fn release(&self, store: &mut BlockStore, table: &mut Table) -> Result<(), Error> {
        let held = &table.blocks[table.num_skipped as usize..];
        debug_assert!(held.iter().all(|block| !block.is_null()));
        store.free(self.spec.pool, held.iter().rev().copied())?;
        table.clear();
        Ok(())
    }

    /// Positions of a hit's blocks in the table.
    pub(crate) fn hit_positions(&self, hit: u32) -> Range<u32> {
        if self.is_constant() { 0..0 } else { 0..hit / self.spec.block_size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_skip_is_the_first_length_at_which_a_block_is_given_back() {
        for (window, block_size) in [(1, 2), (3, 2), (5, 4), (16, 4), (128, 16)] {
            for kind in [GroupKind::SlidingWindow { window }, GroupKind::Chunked { chunk: window }]
            {
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
