//! How a manager is set up.

use crate::checkpoint::Placement;
use crate::digest::Digest;
use crate::group::GroupSpec;
use crate::hash::Algorithm;
use crate::policy::Policy;

/// How a manager is set up.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct Config {
    /// Groups, by id.
    pub groups: Vec<GroupSpec>,
    /// Tokens a digest stands for.
    pub hash_block_size: u32,
    /// Whether computed blocks can be hit by later requests.
    pub enable_caching: bool,
    /// Whether changes of the prefix cache are kept for [`crate::Manager::take_events`].
    pub enable_events: bool,
    /// Whether changes of block tables are kept for [`crate::Manager::take_delta`].
    pub enable_delta: bool,
    /// Whether live blocks may be moved together when a request lacks whole slabs only.
    pub enable_compaction: bool,
    /// Which cached content goes first.
    pub policy: Policy,
    /// Where recurrent states are kept for later requests.
    pub placement: Placement,
    /// How tokens are hashed, for requests that are given as tokens.
    pub hashing: Hashing,
    /// Most tokens of one request that are computed in one step.
    pub max_chunk: u32,
}

/// How the digests of token sequences are made.
#[derive(Clone, Copy, Debug)]
pub struct Hashing {
    /// Encoding and hash function.
    pub algorithm: Algorithm,
    /// The digest before the first block's.
    pub seed: Digest,
}
