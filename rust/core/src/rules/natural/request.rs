//! What the rules remember of a request.

use crate::engine::GroupBlocks;
use crate::engine::requests::RequestState;
use crate::hash::HashChain;
use crate::rules::hit::Hit;
use crate::rules::slabs::Trail;

/// Marks the requests of these rules.
#[derive(Debug)]
pub(crate) struct NaturalRequest;

impl RequestState for NaturalRequest {
    type Progress = Progress;
    type Rest = Request;
}

/// What a step looks at for every request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Tokens known.
    pub(crate) num_tokens: u32,
    /// Tokens computed, those of the adopted prefix included.
    pub(crate) num_computed: u32,
    /// Tokens that room was asked for.
    pub(crate) num_allocated: u32,
    /// Tokens that have room in every group: `num_allocated` up to the end of a block.
    pub(crate) room: u32,
    /// Computed tokens at which some group has a block to commit or to give back.
    pub(crate) next_commit: u32,
    /// Whether the request holds blocks.
    pub(crate) running: bool,
}

/// The rest.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// The chain that makes the digests, if the request was given as tokens.
    pub(crate) chain: Option<HashChain<i64>>,
    /// What it uses and leaves.
    pub(crate) trail: Trail,
    /// The priority of the content of each hash block, as far as it was said.
    pub(crate) priorities: Vec<u64>,
    /// The match found last.
    pub(crate) matched: Option<Match>,
}

/// A match in the prefix cache, with its blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Match {
    pub(crate) hit: Hit,
    /// By group; none where nothing was found.
    pub(crate) blocks: GroupBlocks,
    /// Changes of the cache before it: while there are no more, the blocks are still there.
    pub(crate) stamp: (u64, u64),
    /// More tokens are known by now, or more is cached, so that it may be too short. It is still what
    /// the first allocation adopts.
    pub(crate) is_outgrown: bool,
    /// Whether its length was told to somebody, who counts on it.
    pub(crate) is_promised: bool,
}
