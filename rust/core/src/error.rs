//! Everything that can go wrong. A failed call has changed nothing.

use std::fmt;

use crate::ids::{BlockId, GroupId};
use hybrid_blocks_hash::HashError;

/// Unit in which a store counts room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Single blocks: there is one pool.
    Blocks,
    /// Whole slabs: several pools share them.
    Slabs,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blocks => "blocks",
            Self::Slabs => "slabs",
        })
    }
}

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size or a combination of sizes that no manager can have.
    #[error("{0}")]
    InvalidConfig(String),
    /// An argument that is wrong whatever the state.
    #[error("{0}")]
    InvalidArgument(String),
    /// Tokens or extra keys that cannot be hashed.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// A call wanted more room than owners have left.
    #[error("{needed} {unit} are needed and {available} are available; free or preempt a request")]
    OutOfBlocks {
        /// Unit of both numbers.
        unit: Unit,
        /// How many must be had whole.
        needed: u64,
        /// How many hold no block with an owner.
        available: u64,
    },
    /// A request that would not fit into the empty cache.
    #[error(
        "request of {num_tokens} tokens needs {needed} {unit} of {available} in all; \
         at most {fits} tokens fit"
    )]
    RequestTooLarge {
        /// Tokens of the request.
        num_tokens: u64,
        /// Unit of the next two numbers.
        unit: Unit,
        /// How many it needs.
        needed: u64,
        /// How many there are.
        available: u64,
        /// Tokens that would fit.
        fits: u64,
    },
    /// A block id outside the pool.
    #[error("block {block} is not one of this pool's blocks (ids 1 to {})", num_blocks - 1)]
    ForeignBlock {
        /// Id of the block.
        block: BlockId,
        /// Ids below this are valid.
        num_blocks: u32,
    },
    /// A block was freed more often than it was taken.
    #[error("block {block} has no owner to take away: freed twice, or never allocated")]
    NotLive {
        /// Id of the block.
        block: BlockId,
    },
    /// The cache cannot be dropped while blocks have owners.
    #[error("{num_blocks} blocks still have owners; free their requests first")]
    BlocksInUse {
        /// Blocks with an owner.
        num_blocks: u32,
    },
    /// A handle that names no request, or a request that was freed.
    #[error("no request has handle {handle}: it was freed, or never added")]
    UnknownRequest {
        /// Handle of the call.
        handle: u64,
    },
    /// A request id that is already in use.
    #[error("request id {0:?} is in use; free that request first or choose another id")]
    DuplicateRequest(String),
    /// A group number that the manager does not have.
    #[error("group {group} does not exist; there are {num_groups}")]
    UnknownGroup {
        /// Number of the group.
        group: GroupId,
        /// Groups there are.
        num_groups: u32,
    },
}

/// Returns an `Err` with a message from an integrity check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;
