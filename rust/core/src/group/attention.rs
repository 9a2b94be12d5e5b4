//! What full, sliding-window and chunked attention have in common: blocks by position, of which a
//! leading part may be looked at no more.

use std::ops::Range;

use super::{Group, GroupKind, Table, chunked, full, sliding_window};
use crate::digest::Digest;
use crate::error::Error;
use crate::ids::BlockId;
use crate::prefix_index::{Key, RunCursor};
use crate::store::{BlockStore, Store};

impl Group {
    fn num_skipped_tokens(&self, num_computed: u32) -> u32 {
        match self.spec.kind {
            GroupKind::SlidingWindow { window } => {
                sliding_window::num_skipped_tokens(window, num_computed)
            }
            GroupKind::Chunked { chunk } => chunked::num_skipped_tokens(chunk, num_computed),
            _ => full::num_skipped_tokens(),
        }
    }

    /// Leading blocks that nothing computed after `num_computed` tokens looks at.
    pub(super) fn num_skipped_blocks(&self, num_computed: u32) -> u32 {
        self.num_skipped_tokens(num_computed) / self.spec.block_size
    }

    /// The first number of computed tokens after `num_computed` at which one more leading block is
    /// looked at no more.
    pub(super) fn next_skipped_block(&self, num_computed: u32) -> u32 {
        let num_tokens =
            (self.num_skipped_blocks(num_computed) + 1).saturating_mul(self.spec.block_size);
        match self.spec.kind {
            GroupKind::SlidingWindow { window } => {
                sliding_window::num_computed_until(window, num_tokens)
            }
            GroupKind::Chunked { chunk } => chunked::num_computed_until(chunk, num_tokens),
            _ => u32::MAX,
        }
    }

    pub(super) fn key(&self, digests: &[Digest], block: usize) -> Key {
        Key { digest: digests[(block + 1) * self.ratio - 1], group: self.id }
    }

    fn is_cached(&self, store: &BlockStore, digests: &[Digest], block: usize) -> bool {
        store.get(self.spec.pool, &self.key(digests, block)).is_some()
    }

    /// Leading blocks, at most `limit` tokens of them, that are all cached.
    pub(crate) fn longest_run(&self, store: &BlockStore, digests: &[Digest], limit: u32) -> u32 {
        let num_blocks = (limit / self.spec.block_size) as usize;
        let keys = (0..num_blocks).map(|block| self.key(digests, block));
        store.prefix_index(self.spec.pool).get_run(keys).count() as u32
    }

    /// Whether the content of a block that is not cached was evicted not long ago.
    pub(crate) fn was_evicted(&self, store: &BlockStore, digests: &[Digest], block: u32) -> bool {
        store.was_evicted(self.spec.pool, &self.key(digests, block as usize))
    }

    /// The longest prefix, at most `limit` tokens and a multiple of `alignment`, of which all blocks
    /// that are still looked at are cached.
    pub(super) fn longest_window(
        &self,
        store: &BlockStore,
        digests: &[Digest],
        limit: u32,
        alignment: u32,
    ) -> u32 {
        let block_size = self.spec.block_size;
        let mut hit = limit / alignment * alignment;
        loop {
            let mut needed = self.num_skipped_blocks(hit)..hit / block_size;
            match needed.rfind(|&block| !self.is_cached(store, digests, block as usize)) {
                Some(missing) => hit = missing * block_size / alignment * alignment,
                None => return hit,
            }
        }
    }

    /// Fill `table` with the cached blocks of a hit of `hit` tokens and take a share in each.
    pub(super) fn adopt_blocks(
        &self,
        store: &mut BlockStore,
        digests: &[Digest],
        hit: u32,
        table: &mut Table,
    ) -> Result<(), Error> {
        let num_blocks = hit / self.spec.block_size;
        let num_skipped = self.num_skipped_blocks(hit).min(num_blocks);
        table.blocks.reserve(num_blocks as usize);
        table.blocks.resize(num_skipped as usize, BlockId::NULL);
        let mut cursor = RunCursor::default();
        for block in num_skipped..num_blocks {
            let key = self.key(digests, block as usize);
            let Some(id) = store.get_after(self.spec.pool, cursor, &key) else {
                return Err(Error::InvalidArgument(format!(
                    "group {}: block {block} of a hit of {hit} tokens is not cached",
                    self.id
                )));
            };
            store.touch(self.spec.pool, id)?;
            table.blocks.push(id);
            cursor.step(id);
        }
        table.num_hashed = num_blocks;
        table.num_skipped = num_skipped;
        Ok(())
    }

    /// Most blocks that a request of `num_tokens` tokens holds at once, if at most `step` tokens
    /// are computed in one step.
    pub(super) fn peak_span(&self, num_tokens: u64, step: u32) -> u64 {
        let block_size = u64::from(self.spec.block_size);
        let span = match self.spec.kind {
            GroupKind::SlidingWindow { window } => sliding_window::span(window, step),
            GroupKind::Chunked { chunk } => chunked::span(chunk, step),
            _ => full::span(num_tokens),
        };
        num_tokens.div_ceil(block_size).min(span.div_ceil(block_size) + 1)
    }

    /// Enter the blocks that `num_computed` tokens fill into the prefix index. Returns them.
    pub(super) fn commit_blocks(
        &self,
        store: &mut BlockStore,
        digests: &[Digest],
        num_computed: u32,
        table: &mut Table,
    ) -> Range<u32> {
        let num_full = num_computed / self.spec.block_size;
        let new = table.num_hashed..num_full.max(table.num_hashed);
        let mut previous = match new.start.checked_sub(1) {
            Some(last) if !new.is_empty() => table.blocks[last as usize],
            _ => BlockId::NULL,
        };
        for block in new.clone() {
            let id = table.blocks[block as usize];
            if !previous.is_null() {
                store.follow(self.spec.pool, previous, id);
            }
            previous = id;
            if !id.is_null() {
                let key = self.key(digests, block as usize);
                store.insert_sole(self.spec.pool, id, &key, (block + 1) * self.spec.block_size);
            }
        }
        table.num_hashed = new.end;
        new
    }

    /// Give back the blocks that nothing after `num_computed` tokens looks at, last one first.
    /// Returns their positions.
    pub(super) fn skip_blocks(
        &self,
        store: &mut BlockStore,
        num_computed: u32,
        table: &mut Table,
    ) -> Result<Range<u32>, Error> {
        let until = self.num_skipped_blocks(num_computed).min(table.blocks.len() as u32);
        let skipped = table.num_skipped..until.max(table.num_skipped);
        let range = skipped.start as usize..skipped.end as usize;
        store.free(self.spec.pool, table.blocks[range.clone()].iter().rev().copied())?;
        table.blocks[range].fill(BlockId::NULL);
        table.num_skipped = skipped.end;
        Ok(skipped)
    }
}
