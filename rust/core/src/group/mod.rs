//! Cache groups: which blocks a request needs in each kind of layer.

mod chunked;
mod full;
mod sliding_window;

use crate::digest::Digest;
use crate::error::Error;
use crate::event::Event;
use crate::ids::{BlockId, GroupId, PoolId};
use crate::prefix_index::Key;
use crate::store::BlockStore;

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

/// One request's blocks in one group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// By position; null where the content is not needed any more.
    pub(crate) blocks: Vec<BlockId>,
    /// Leading blocks that are in the prefix index or never will be.
    num_keyed: u32,
    /// Leading blocks given back.
    num_skipped: u32,
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
            GroupKind::SlidingWindow { window: 0 } | GroupKind::Chunked { chunk: 0 } => {
                Err(Error::InvalidConfig(format!("group {id}: {kind:?} looks at no token")))
            }
            _ => Ok(Self { id, spec, ratio: (block_size / hash_block_size) as usize }),
        }
    }

    /// Leading tokens that nothing computed after `num_computed` tokens looks at.
    fn num_skipped_tokens(&self, num_computed: u32) -> u32 {
        match self.spec.kind {
            GroupKind::Full => full::num_skipped_tokens(),
            GroupKind::SlidingWindow { window } => {
                sliding_window::num_skipped_tokens(window, num_computed)
            }
            GroupKind::Chunked { chunk } => chunked::num_skipped_tokens(chunk, num_computed),
        }
    }

    /// Leading blocks that nothing computed after `num_computed` tokens looks at.
    fn num_skipped_blocks(&self, num_computed: u32) -> u32 {
        self.num_skipped_tokens(num_computed) / self.spec.block_size
    }

    fn key(&self, digests: &[Digest], block: usize) -> Key {
        Key { digest: digests[(block + 1) * self.ratio - 1], group: self.id }
    }

    fn is_cached(&self, store: &BlockStore, digests: &[Digest], block: usize) -> bool {
        store.get(self.spec.pool, &self.key(digests, block)).is_some()
    }

    /// The longest prefix, at most `limit` tokens and a multiple of `alignment`, of which all blocks
    /// are cached.
    pub(crate) fn longest_run(
        &self,
        store: &BlockStore,
        digests: &[Digest],
        limit: u32,
        alignment: u32,
    ) -> u32 {
        let num_blocks = (limit / self.spec.block_size) as usize;
        let run = (0..num_blocks).take_while(|&i| self.is_cached(store, digests, i)).count();
        run as u32 * self.spec.block_size / alignment * alignment
    }

    /// The longest prefix, at most `limit` tokens and a multiple of `alignment`, of which all blocks
    /// that are still looked at are cached.
    pub(crate) fn longest_resumable(
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
    pub(crate) fn adopt(
        &self,
        store: &mut BlockStore,
        digests: &[Digest],
        hit: u32,
        table: &mut Table,
    ) -> Result<(), Error> {
        let num_blocks = hit / self.spec.block_size;
        let num_skipped = self.num_skipped_blocks(hit).min(num_blocks);
        table.blocks.resize(num_skipped as usize, BlockId::NULL);
        for block in num_skipped..num_blocks {
            let key = self.key(digests, block as usize);
            let Some(id) = store.get(self.spec.pool, &key) else {
                return Err(Error::InvalidArgument(format!(
                    "group {}: block {block} of a hit of {hit} tokens is not cached",
                    self.id
                )));
            };
            store.touch(self.spec.pool, id)?;
            table.blocks.push(id);
        }
        table.num_keyed = num_blocks;
        table.num_skipped = num_skipped;
        Ok(())
    }

    /// Undo [`Group::adopt`], exactly, if nothing else happened since.
    pub(crate) fn undo_adopt(&self, store: &mut BlockStore, table: &mut Table) {
        for &block in table.blocks.iter().rev().filter(|block| !block.is_null()) {
            store.undo_touch(self.spec.pool, block);
        }
        *table = Table::default();
    }

    /// Blocks missing until `num_tokens` tokens have room.
    pub(crate) fn num_missing(&self, table: &Table, num_tokens: u32) -> u64 {
        u64::from(num_tokens.div_ceil(self.spec.block_size))
            .saturating_sub(table.blocks.len() as u64)
    }

    /// Most blocks that a request of `num_tokens` tokens holds at once, if at most `chunk` tokens
    /// are computed in one step.
    pub(crate) fn peak_blocks(&self, num_tokens: u64, chunk: u32) -> u64 {
        let all = num_tokens.div_ceil(u64::from(self.spec.block_size));
        let span = match self.spec.kind {
            GroupKind::Full => return all,
            GroupKind::SlidingWindow { window } => u64::from(window) - 1 + u64::from(chunk),
            GroupKind::Chunked { chunk: local } => u64::from(local) + u64::from(chunk),
        };
        all.min(span.div_ceil(u64::from(self.spec.block_size)) + 1)
    }

    /// Enter the blocks that `num_computed` tokens fill into the prefix index. Returns them.
    pub(crate) fn commit(
        &self,
        store: &mut BlockStore,
        digests: &[Digest],
        num_computed: u32,
        table: &mut Table,
    ) -> std::ops::Range<u32> {
        let num_full = num_computed / self.spec.block_size;
        let new = table.num_keyed..num_full.max(table.num_keyed);
        for block in new.clone() {
            let id = table.blocks[block as usize];
            if !id.is_null() {
                let key = self.key(digests, block as usize);
                store.insert_key(self.spec.pool, id, key, (block + 1) * self.spec.block_size);
            }
        }
        table.num_keyed = new.end;
        new
    }

    /// The event that tells of freshly committed blocks.
    pub(crate) fn stored_event(
        &self,
        handle: u64,
        digests: &[Digest],
        new: std::ops::Range<u32>,
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

    /// Give back the blocks that nothing after `num_computed` tokens looks at, last one first.
    /// Returns their positions.
    pub(crate) fn skip(
        &self,
        store: &mut BlockStore,
        num_computed: u32,
        table: &mut Table,
    ) -> Result<std::ops::Range<u32>, Error> {
        let until = self.num_skipped_blocks(num_computed).min(table.blocks.len() as u32);
        let skipped = table.num_skipped..until.max(table.num_skipped);
        let range = skipped.start as usize..skipped.end as usize;
        store.free(self.spec.pool, table.blocks[range.clone()].iter().rev().copied())?;
        table.blocks[range].fill(BlockId::NULL);
        table.num_skipped = skipped.end;
        Ok(skipped)
    }

    /// Give back all blocks, the last one first, so that the end of a prefix goes before its start.
    pub(crate) fn release(&self, store: &mut BlockStore, table: &mut Table) -> Result<(), Error> {
        let held = table.blocks.iter().rev().filter(|block| !block.is_null()).copied();
        store.free(self.spec.pool, held)?;
        *table = Table::default();
        Ok(())
    }
}
