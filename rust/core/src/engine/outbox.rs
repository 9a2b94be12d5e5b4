//! What happened since it was last asked for: [`Outbox`].

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
    pub(crate) residency: Vec<(Residency, BlockId)>,
}

impl Outbox {
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
