//! How a manager is set up.

use crate::group::GroupSpec;
use crate::ids::PoolId;
use crate::learn::checkpoint_policy::CheckpointPolicy;
use hybrid_blocks_hash::Algorithm;
use hybrid_blocks_hash::Digest;

/// How a manager is set up. [`Config::new`] gives what is not said otherwise:
///
/// ```
/// # use hybrid_blocks::{Config, GroupKind, GroupSpec, PoolId};
/// let groups = vec![GroupSpec { kind: GroupKind::Full, block_size: 16, pool: PoolId(0) }];
/// let config = Config { enable_events: true, ..Config::new(groups, 16) };
/// assert!(config.enable_caching);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// Groups, by id.
    pub groups: Vec<GroupSpec>,
    /// By group, the pool where its checkpoints lie, if it keeps states and [`CheckpointPolicy::format`] is not that of
    /// running ones; empty if none has any.
    pub kept_pools: Vec<Option<PoolId>>,
    /// Tokens a digest stands for.
    pub hash_block_size: u32,
    /// Whether computed blocks can be hit by later requests.
    pub enable_caching: bool,
    /// Whether changes of the prefix cache are kept for [`crate::BlockManager::take_events`].
    pub enable_events: bool,
    /// Where recurrent states are kept for later requests.
    pub checkpoints: CheckpointPolicy,
    /// How tokens are hashed, for requests that are given as tokens.
    pub hashing: Hashing,
    /// Most tokens of one request that are computed in all steps in flight.
    pub max_in_flight_tokens: u32,
    /// Tokens of the longest request; none, for as many as fit alone.
    pub max_request_tokens: Option<u32>,
    /// Slabs (blocks of a fixed pool) that the admission of a request beside others leaves free.
    pub watermark: u32,
    /// Tokens that divide the distance from a chunk's start to a state that the engine can keep from inside the chunk,
    /// see [`crate::BlockManager::take_prefill_checkpoints`]; `None` where a chunk ends at each.
    pub prefill_checkpoint_alignment: Option<u32>,
}

impl Config {
    /// Groups that are cached, least recently used first to go, and what is usual for the rest: checkpoints where
    /// the default policy puts them, up to 8,192 tokens of a request in flight, no request too long that fits, no
    /// events.
    pub fn new(groups: Vec<GroupSpec>, hash_block_size: u32) -> Self {
        Self {
            groups,
            kept_pools: Vec::new(),
            hash_block_size,
            enable_caching: true,
            enable_events: false,
            checkpoints: CheckpointPolicy::default(),
            hashing: Hashing::default(),
            max_in_flight_tokens: 8_192,
            max_request_tokens: None,
            watermark: 0,
            prefill_checkpoint_alignment: None,
        }
    }
}

/// How the digests of token sequences are made.
#[derive(Clone, Copy, Debug)]
pub struct Hashing {
    /// Encoding and hash function.
    pub algorithm: Algorithm,
    /// The digest before the first block's.
    pub seed: Digest,
}

impl Default for Hashing {
    /// `sha256` from a seed of zeros.
    fn default() -> Self {
        Self { algorithm: Algorithm::Sha256, seed: Digest::from([0; 32]) }
    }
}
