//! The longest prefix that can be found, per kind of group and for several groups together.

use crate::group::{
    Found, Group, GroupBlocks, GroupKind, Search, chunked, full, mamba_in_place, sliding_window,
};
use crate::ids::GroupId;
use crate::store::Store;
use hybrid_blocks_hash::Digest;

/// Groups of one spec, looked up together.
#[derive(Clone, Debug)]
pub struct LookupGroup {
    /// Their numbers; the first one's spec stands for all.
    pub groups: Vec<GroupId>,
    /// Whether one of them drops what the drafter must compute again.
    pub use_eagle: bool,
}

/// Looks for the prefixes of one request.
#[derive(Debug)]
pub(crate) struct Finder<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) groups: &'a [Group],
    pub(crate) digests: &'a [Digest],
    pub(crate) hash_block_size: u32,
    /// Tokens that divide the length of each hit.
    pub(crate) alignment: u32,
}

/// A search that several groups share: what each has found so far, and the length to beat.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// The length that all groups asked so far can restore.
    pub(crate) num_tokens: u32,
    /// The longest length that a group was found to hold on the way.
    pub(crate) longest: u32,
    /// Answers of the specs, in their order.
    answers: Vec<Answer>,
    /// Tokens that no look-up goes past, not even a drafter's for what it then drops.
    most: u32,
}

/// Answer of one spec so far.
#[derive(Clone, Debug, Default)]
struct Answer {
    found: Option<Found>,
    /// Whether it has dropped what the drafter must compute again.
    eagle_done: bool,
}

impl Candidate {
    pub(crate) fn new(limit: u32, num_specs: usize) -> Self {
        let answers = vec![Answer::default(); num_specs];
        Self { num_tokens: limit, longest: 0, answers, most: u32::MAX }
    }

    /// With no look-up past `most` tokens.
    pub(crate) fn within(self, most: u32) -> Self {
        Self { most, ..self }
    }
}

impl<S: Store> Finder<'_, S> {
    fn first<'g>(&'g self, spec: &LookupGroup) -> &'g Group {
        &self.groups[spec.groups[0].index()]
    }

    /// Shortens the candidate until every one of the `asked` specs can restore it. Lengths only
    /// fall, so this ends. What full attention holds is closed under shortening, so one search is
    /// enough.
    pub(crate) fn reconcile(
        &self,
        specs: &[LookupGroup],
        asked: impl Fn(&Group) -> bool,
        candidate: &mut Candidate,
    ) {
        let is_simple = specs.len() == 2 && self.first(&specs[0]).kind().is_full();
        loop {
            let mut length = candidate.num_tokens;
            for (at, spec) in specs.iter().enumerate() {
                let group = self.first(spec);
                if length == 0 {
                    break;
                }
                if !asked(group) {
                    continue;
                }
                if let Some(found) = &candidate.answers[at].found {
                    if group.kind().is_full() {
                        length = length.min(found.num_tokens);
                        continue;
                    }
                    if !spec.use_eagle && found.num_tokens == length {
                        continue;
                    }
                }
                let drop_eagle = spec.use_eagle && !candidate.answers[at].eagle_done;
                let limit = if drop_eagle {
                    self.with_eagle_margin(spec, length).min(candidate.most)
                } else {
                    length
                };
                let new = self.find(&spec.groups, limit, drop_eagle);
                if drop_eagle {
                    candidate.answers[at].eagle_done = true;
                } else if new.num_tokens < length {
                    candidate.answers.iter_mut().for_each(|answer| answer.eagle_done = false);
                }
                length = new.num_tokens;
                candidate.answers[at].found = Some(new);
                candidate.longest = candidate.longest.max(length);
            }
            let is_stable = length >= candidate.num_tokens;
            candidate.num_tokens = length.min(candidate.num_tokens);
            if is_stable || is_simple {
                return;
            }
        }
    }

    /// The blocks of what was agreed on, by group.
    pub(crate) fn agreed(&self, specs: &[LookupGroup], candidate: Candidate) -> GroupBlocks {
        let mut blocks = vec![Vec::new(); self.groups.len()];
        if candidate.num_tokens == 0 {
            return blocks;
        }
        for (spec, Answer { found, .. }) in specs.iter().zip(candidate.answers) {
            let first = self.first(spec);
            let keep = candidate.num_tokens.div_ceil(first.spec.block_size) as usize;
            for (group, mut own) in spec.groups.iter().zip(found.unwrap_or_default().blocks) {
                if first.kind().is_full() {
                    own.truncate(keep);
                }
                blocks[group.index()] = own;
            }
        }
        blocks
    }

    /// A drafter's groups match one unit more, which they then drop. Recurrent groups never drop.
    pub(crate) fn with_eagle_margin(&self, spec: &LookupGroup, limit: u32) -> u32 {
        let group = self.first(spec);
        if group.kind().is_mamba() {
            return limit;
        }
        let is_fine = self.alignment < group.spec.block_size
            && group.spec.block_size > self.hash_block_size
            && group.kind().supports_fine_grained();
        let margin = if is_fine { self.hash_block_size } else { group.spec.block_size };
        (limit + margin).min(self.digests.len() as u32 * self.hash_block_size)
    }

    /// Returns the longest prefix of at most `limit` tokens that groups of one spec hold.
    pub(crate) fn find(&self, groups: &[GroupId], limit: u32, drop_eagle: bool) -> Found {
        let search = Search {
            store: self.store,
            all: self.groups,
            digests: self.digests,
            hash_block_size: self.hash_block_size,
            alignment: self.alignment,
            groups,
        };
        match search.first().kind() {
            GroupKind::Full => full::find(&search, limit, drop_eagle),
            GroupKind::SlidingWindow { window, .. } => {
                sliding_window::find(&search, limit, window, drop_eagle)
            }
            GroupKind::Chunked { chunk } => chunked::find(&search, limit, chunk),
            GroupKind::MambaInPlace { .. } | GroupKind::MambaAligned { .. } => {
                mamba_in_place::find(&search, limit)
            }
            _ => Found { blocks: search.none(), num_tokens: limit },
        }
    }
}
