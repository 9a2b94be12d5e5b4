//! The blocks of all requests, what they contain, and what happened to them lately.

use rustc_hash::FxHashSet;

use crate::digest::Digest;
use crate::error::{Error, Unit};
use crate::ids::{BlockId, GroupId, PoolId};
use crate::prefix_index::Key;
use crate::store::{FixedStore as BlockStore, Reservation, Store};

use super::config::{Config, GroupConfig};
use super::event::CacheEvent;
use super::request::Request;

/// The one pool.
pub(crate) const POOL: PoolId = PoolId(0);

/// A block of a recurrent group that holds the state at a boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundaryState {
    /// The request that computed it.
    pub request_id: String,
    /// Group.
    pub group: GroupId,
    /// Block.
    pub block: BlockId,
    /// Tokens up to the boundary.
    pub num_tokens: u32,
}

/// What a group hands over at the end of a step.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// New blocks that the worker must zero.
    pub(crate) new_blocks: Vec<BlockId>,
    /// Blocks to copy, source and destination. Both are held until the copy has run.
    pub(crate) copies: Vec<(BlockId, BlockId)>,
    /// States that a connector may save.
    pub(crate) boundary_states: Vec<BoundaryState>,
    /// States that exist only once the current step has run.
    pub(crate) cached_this_step: FxHashSet<Digest>,
}

/// What one call works on: the blocks with their contents, and what groups hand over.
#[derive(Debug)]
pub(crate) struct Cache<'a> {
    pub(crate) store: &'a mut BlockStore,
    pub(crate) config: &'a Config,
    pub(crate) outboxes: &'a mut [Outbox],
    pub(crate) events: &'a mut Vec<CacheEvent>,
}

impl Cache<'_> {
    pub(crate) fn group(&self, group: usize) -> GroupConfig {
        self.config.groups[group]
    }

    pub(crate) fn num_free(&self) -> u64 {
        u64::from(self.store.pool(POOL).num_available())
    }

    /// Append `num_blocks` new blocks to `out`.
    pub(crate) fn take(&mut self, num_blocks: u32, out: &mut Vec<BlockId>) -> Result<(), Error> {
        let (needed, available) = (u64::from(num_blocks), self.num_free());
        if needed > available {
            return Err(Error::OutOfBlocks { unit: Unit::Blocks, needed, available });
        }
        self.store.take(POOL, needed, None, &mut Reservation::default(), out);
        self.note_evictions();
        Ok(())
    }

    pub(crate) fn take_one(&mut self) -> Result<BlockId, Error> {
        let mut block = Vec::with_capacity(1);
        self.take(1, &mut block)?;
        Ok(block[0])
    }

    /// Add an owner to each block but the null block.
    pub(crate) fn touch(&mut self, blocks: &[BlockId]) -> Result<(), Error> {
        blocks.iter().filter(|block| !block.is_null()).try_for_each(|&b| self.store.touch(POOL, b))
    }

    /// Take an owner from each block but the null block, in the order in which they should go.
    pub(crate) fn free(
        &mut self,
        blocks: impl Iterator<Item = BlockId> + Clone,
    ) -> Result<(), Error> {
        self.store.free(POOL, blocks.filter(|block| !block.is_null()))
    }

    /// The block's first key, and the tokens it stands for.
    pub(crate) fn first_key(&self, block: BlockId) -> Option<(Key, u32)> {
        self.store.prefix_index(POOL).first_key(block)
    }

    /// Drop the keys of a block whose content its request changes or does not want any more.
    pub(crate) fn drop_own_keys(&mut self, block: BlockId) {
        self.store.drop_own_keys(POOL, block);
    }

    /// Note a change, after the evictions before it.
    pub(crate) fn note(&mut self, event: impl FnOnce() -> CacheEvent) {
        self.note_evictions();
        if self.config.enable_events {
            self.events.push(event());
        }
    }

    /// Note what was evicted since the last time.
    pub(crate) fn note_evictions(&mut self) {
        let evicted = self.store.evicted().drain(..);
        if self.config.enable_events {
            self.events.extend(evicted.map(CacheEvent::Removed));
        }
    }

    /// Replace a shared block that ends a hit by a private copy of it. Both stay owned until the
    /// copy has run.
    pub(crate) fn redirect(
        &mut self,
        request: &mut Request,
        group: usize,
        (position, source): (u32, BlockId),
        copy: BlockId,
    ) -> Result<(), Error> {
        let blocks = &mut request.tables[group].blocks;
        if blocks.get(position as usize) != Some(&source) {
            return Err(Error::InvalidArgument(format!(
                "block {source} was hit at position {position} of group {group}, but is not there"
            )));
        }
        blocks[position as usize] = copy;
        self.outboxes[group].copies.push((source, copy));
        self.store.touch(POOL, copy)
    }
}
