//! [`ResumePoint`]: the hit that a prompt resumes from, and how the prompt begins because of that.

use crate::engine::cache::Cache;
use crate::engine::hit::HitLimit;
use crate::ids::BlockId;
use crate::learn::places::Beginning;
use crate::learn::traffic::{Shared, Traffic};
use crate::store::Store;
use hybrid_blocks_hash::Digest;

/// The hit that a prompt resumes from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResumePoint<'a> {
    /// Tokens of the hit.
    pub(crate) num_tokens: u32,
    /// Attention blocks go on up to here, but no checkpoint is there; 0 if that is not so.
    pub(crate) branch: u32,
    /// Blocks of the hit by group; none where nothing was found.
    pub(crate) blocks: &'a [Vec<BlockId>],
}

impl ResumePoint<'_> {
    /// How the prompt begins.
    pub(crate) fn beginning(&self, traffic: &Traffic) -> Beginning {
        let checkpoint = traffic.counted().and_then(|group| self.blocks.get(group)?.last());
        traffic.beginning(self.branch, checkpoint.copied().filter(|block| !block.is_null()))
    }

    /// How far the prompt shares blocks with earlier ones.
    pub(crate) fn shared<S: Store>(
        &self,
        traffic: &Traffic,
        cache: &Cache<S>,
        digests: &[Digest],
    ) -> Shared {
        traffic.shared(cache, digests, self.num_tokens, self.num_tokens.max(self.branch))
    }

    /// Where the prompt leaves an earlier one, if that is known although `ended_by` ended the hit.
    pub(crate) fn departure<S: Store>(
        &self,
        traffic: &Traffic,
        cache: &Cache<S>,
        digests: &[Digest],
        ended_by: HitLimit,
    ) -> Option<Shared> {
        let shared = self.shared(traffic, cache, digests);
        traffic.departure(cache, digests, shared, ended_by, self.beginning(traffic))
    }
}
