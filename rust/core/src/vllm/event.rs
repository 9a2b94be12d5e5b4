//! Changes of the prefix cache, with what is needed to describe them to others.

use crate::ids::GroupId;
use crate::prefix_index::Key;

/// A change, in the order in which changes happen. Stored blocks are those of the request named in
/// the call that stored them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Full blocks of the request's table can be hit.
    Stored {
        /// Group.
        group: GroupId,
        /// First block of the range that was looked at.
        first_block: u32,
        /// Its end.
        end_block: u32,
        /// The blocks of the range that were stored.
        stored: Vec<u32>,
    },
    /// A block can be hit up to a hash block's end inside it.
    StoredTail {
        /// Group.
        group: GroupId,
        /// Tokens up to that end.
        num_tokens: u32,
    },
    /// A block can be hit no more.
    Removed(Key),
}
