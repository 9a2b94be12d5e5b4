//! What others are told about the prefix cache.

use crate::digest::Digest;
use crate::ids::GroupId;
use crate::prefix_index::Key;

/// A change of the prefix cache, in the order in which changes happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Blocks can be hit from now on.
    Stored {
        /// The request that computed them.
        handle: u64,
        /// Group.
        group: GroupId,
        /// Position of the first one in the request's table.
        first_block: u32,
        /// Tokens a block.
        block_size: u32,
        /// Digest of the block before the first one.
        parent: Option<Digest>,
        /// Digests, one a block.
        digests: Vec<Digest>,
    },
    /// A block can be hit no more.
    Removed(Key),
    /// Nothing can be hit any more.
    Cleared,
}
