//! [`Outbox`]: events, copies and residency since a caller last took them.

use crate::ids::{BlockId, GroupId, PoolId};
use crate::prefix_index::Key;
use hybrid_blocks_hash::Digest;

/// A change of the prefix cache, in the order in which changes happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// Full blocks of a request's table can be hit from now on.
    Stored {
        /// The request that computed them.
        handle: u64,
        /// Group of the blocks.
        group: GroupId,
        /// Tokens a block.
        block_size: u32,
        /// First position of the range that was looked at.
        first_block: u32,
        /// End of that range.
        end_block: u32,
        /// The positions of the range that were stored; the others are null, or not worth keeping.
        positions: Vec<u32>,
        /// Digest of the block before the first one.
        parent: Option<Digest>,
        /// Digests, one a position.
        digests: Vec<Digest>,
    },
    /// A state, or a part of a block, can be hit up to a length.
    StoredTail {
        /// The request that computed it.
        handle: u64,
        /// Group of the block.
        group: GroupId,
        /// Tokens a block.
        block_size: u32,
        /// Tokens up to its end.
        num_tokens: u32,
        /// Digest of those tokens.
        digest: Digest,
    },
    /// A block can be hit no more.
    Removed(Key),
    /// Nothing can be hit any more.
    Cleared,
}

impl CacheEvent {
    /// Returns the request that stored content.
    pub fn handle(&self) -> Option<u64> {
        match *self {
            Self::Stored { handle, .. } | Self::StoredTail { handle, .. } => Some(handle),
            _ => None,
        }
    }
}

/// Events of a block that residency metrics count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// The block got its first owner.
    Allocated,
    /// A request resumed from the content.
    Accessed,
    /// The block's content, if it had any, is gone.
    Evicted,
}

/// Bytes to be copied on the device before the next forward pass, from one block of a group to
/// another. Between two pools the copy also converts: from the format of a running state to that of a checkpoint, or
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockCopy {
    /// Group of both blocks.
    pub group: GroupId,
    /// Block that is read.
    pub src: BlockId,
    /// Block that is written.
    pub dst: BlockId,
    /// Pool of the source.
    pub src_pool: PoolId,
    /// Pool of the destination.
    pub dst_pool: PoolId,
}

impl BlockCopy {
    /// Returns both blocks with their pools.
    pub(crate) fn blocks(&self) -> [(PoolId, BlockId); 2] {
        [(self.src_pool, self.src), (self.dst_pool, self.dst)]
    }
}

/// A state to be kept from inside a forward pass: the worker writes what `src` holds after `position` tokens to `dst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillCheckpoint {
    /// The request whose prompt the pass computes.
    pub handle: u64,
    /// Group of both blocks.
    pub group: GroupId,
    /// Tokens up to the state.
    pub position: u32,
    /// Block of the request's running state.
    pub src: BlockId,
    /// Block that keeps the state.
    pub dst: BlockId,
}

/// A prefill checkpoint whose block has no key yet. The block is owned until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCheckpoint {
    pub(crate) checkpoint: PrefillCheckpoint,
    /// Pool of both blocks.
    pub(crate) pool: PoolId,
    /// Key that the block gets in a later step.
    pub(crate) key: Key,
    /// Whether a caller has taken the checkpoint, so that a worker writes it.
    pub(crate) is_taken: bool,
}

/// Messages for others, sent at the end of a step.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Whether anybody asks for events.
    pub(crate) enable_events: bool,
    /// Whether anybody asks for residency.
    pub(crate) enable_residency: bool,
    pub(crate) events: Vec<CacheEvent>,
    /// In the order in which they were asked for.
    pub(crate) copies: Vec<BlockCopy>,
    /// By request, ascending by position.
    pub(crate) checkpoints: Vec<PendingCheckpoint>,
    pub(crate) residency: Vec<(Residency, BlockId)>,
}

impl Outbox {
    /// Returns the blocks that copies and checkpoints under way own, with their pools.
    pub(crate) fn owned_blocks(&self) -> impl Iterator<Item = (PoolId, BlockId)> + '_ {
        let kept = self.checkpoints.iter().map(|it| (it.pool, it.checkpoint.dst));
        self.copies.iter().flat_map(BlockCopy::blocks).chain(kept)
    }

    /// Notes blocks that got their first owner, and with a cache that what they held is gone.
    pub(crate) fn note_allocated(&mut self, blocks: &[BlockId], enable_caching: bool) {
        if !self.enable_residency {
            return;
        }
        for &block in blocks {
            if enable_caching {
                self.residency.push((Residency::Evicted, block));
            }
            self.residency.push((Residency::Allocated, block));
        }
    }

    /// Notes what became of blocks.
    pub(crate) fn note_residency(
        &mut self,
        what: Residency,
        blocks: impl IntoIterator<Item = BlockId>,
    ) {
        if self.enable_residency {
            self.residency.extend(blocks.into_iter().map(|block| (what, block)));
        }
    }
}
