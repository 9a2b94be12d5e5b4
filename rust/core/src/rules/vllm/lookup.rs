//! The longest prefix that can be found, as vLLM's coordinators find it.

use super::KvCacheManager;
use super::config::Lookup;
use crate::engine::hit::HitLimit;
use crate::engine::lookup::{Candidate, Finder};
use crate::group::{Found, GroupBlocks};
use crate::ids::GroupId;
use crate::learn::windows::reach_of_attention;
use crate::store::{EvictionOrder, Store};
use hybrid_blocks_hash::Digest;

/// Blocks of every group for a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComputedBlocks {
    /// Blocks by group.
    pub blocks: GroupBlocks,
    /// Tokens of the prefix.
    pub num_tokens: u32,
    /// Tokens after it that some group holds and another one does not.
    pub num_uncached: u32,
}

/// A hit, and why it is not longer.
pub(crate) struct Explained {
    pub(crate) hit: ComputedBlocks,
    pub(crate) ended_by: HitLimit,
    /// Leading tokens whose full attention is there.
    pub(crate) attention: u32,
}

impl<S: Store> KvCacheManager<S> {
    fn finder<'a>(&'a self, digests: &'a [Digest]) -> Finder<'a, S> {
        self.engine.cache.finder(digests, self.config.hit_alignment())
    }

    /// Tokens that no look-up for a hit of at most `limit` tokens goes past.
    const fn most(&self, limit: u32) -> u32 {
        if self.config.release.looks_past_limit { u32::MAX } else { limit }
    }

    /// The longest cached prefix of at most `limit` tokens of a request; none of a request that is not
    /// known. Takes nothing.
    pub fn longest_hit(&self, handle: u64, limit: u32) -> ComputedBlocks {
        let finder = self.finder(self.digests(handle));
        match &self.config.lookup {
            Lookup::None => ComputedBlocks {
                blocks: vec![Vec::new(); self.config.groups.len()],
                ..ComputedBlocks::default()
            },
            Lookup::Unitary { use_eagle } => {
                let Found { blocks, num_tokens, .. } =
                    finder.find(&[GroupId(0)], limit, *use_eagle);
                ComputedBlocks { blocks, num_tokens, num_uncached: 0 }
            }
            Lookup::Hybrid { specs, .. } => {
                let mut candidate = Candidate::new(limit, specs.len()).within(self.most(limit));
                finder.reconcile(specs, |_| true, &mut candidate);
                let num_tokens = candidate.num_tokens;
                let num_uncached = candidate.longest.saturating_sub(num_tokens);
                let blocks = finder.agreed(specs, candidate);
                ComputedBlocks { blocks, num_tokens, num_uncached }
            }
        }
    }

    /// As [`KvCacheManager::longest_hit`], and what ended it. The search asks full attention first,
    /// then windows, then states, and so learns what each of them alone denies: `num_uncached` is
    /// what checkpoints alone lack.
    pub(crate) fn explained_hit(&self, handle: u64, limit: u32) -> Explained {
        let Lookup::Hybrid { specs, .. } = &self.config.lookup else {
            let hit = self.longest_hit(handle, limit);
            return Explained { attention: hit.num_tokens, hit, ended_by: HitLimit::default() };
        };
        let finder = self.finder(self.digests(handle));
        let mut candidate = Candidate::new(limit, specs.len()).within(self.most(limit));
        finder.reconcile(specs, |group| group.kind().is_full(), &mut candidate);
        let attention = candidate.num_tokens;
        finder.reconcile(specs, |group| !group.kind().is_recurrent(), &mut candidate);
        let resumable = candidate.num_tokens;
        finder.reconcile(specs, |_| true, &mut candidate);
        let num_tokens = candidate.num_tokens;
        let grain = self.config.hit_alignment();
        let first = &self.engine.cache.groups[specs[0].groups[0].index()];
        let next = first.key_at(finder.digests, attention + first.spec.block_size);
        let ended_by = if num_tokens == limit / grain * grain {
            HitLimit::Complete
        } else if num_tokens < resumable {
            HitLimit::NoCheckpoint
        } else if resumable < attention {
            HitLimit::WindowEvicted
        } else if next.is_some_and(|key| finder.store.was_evicted(first.kept, &key)) {
            HitLimit::AttentionEvicted
        } else {
            HitLimit::Unseen
        };
        let blocks = finder.agreed(specs, candidate);
        let most = reach_of_attention(finder.groups, attention, resumable);
        let hit = ComputedBlocks { blocks, num_tokens, num_uncached: most - num_tokens };
        Explained { hit, ended_by, attention }
    }

    /// The longest cached prefix of each group on its own, with its tokens.
    pub fn hit_per_group(&self, digests: &[Digest], limit: u32) -> (GroupBlocks, Vec<u32>) {
        let finder = self.finder(digests);
        let mut blocks = vec![Vec::new(); self.config.groups.len()];
        let mut lengths = vec![0; self.config.groups.len()];
        if let Lookup::Hybrid { specs, .. } = &self.config.lookup {
            for spec in specs {
                let eagle = spec.use_eagle;
                let limit = if eagle {
                    finder.with_eagle_margin(spec, limit).min(self.most(limit))
                } else {
                    limit
                };
                let found = finder.find(&spec.groups, limit, eagle);
                for (group, own) in spec.groups.iter().zip(found.blocks) {
                    blocks[group.index()] = own;
                    lengths[group.index()] = found.num_tokens;
                }
            }
        }
        (blocks, lengths)
    }
}
