//! The longest prefix after which every group can go on, and why it is not longer.

use super::BlockManager;
use super::request::Match;
use crate::engine::LookupGroup;
use crate::engine::lookup::{Candidate, Finder};
use crate::error::Error;
use crate::group::{Group, GroupSpec, gcd};
use crate::ids::GroupId;
use crate::rules::hit::{Hit, HitLimit};
use crate::rules::windows::{has_places, reach_of_attention};
use crate::store::{EvictionOrder, Store};

/// What the groups' block sizes and kinds mean for prefixes.
#[derive(Debug)]
pub(super) struct Lengths {
    /// A hit ends where every group has a block border.
    pub(super) alignment: u32,
    /// Some group has work to do at every multiple of this many tokens.
    pub(super) commit_interval: u32,
    /// Every group that a hit needs content of on its own, those of full attention first.
    specs: Vec<LookupGroup>,
    /// The first group that keeps recurrent states, which stands for all.
    pub(super) first_state: Option<usize>,
    pub(super) has_windows: bool,
}

impl Lengths {
    pub(super) fn new(specs: &[GroupSpec]) -> Result<Self, Error> {
        let sizes = || specs.iter().filter(|it| it.kind.is_cacheable()).map(|it| it.block_size);
        let Some(commit_interval) = sizes().reduce(gcd) else {
            return Err(Error::InvalidConfig(
                "a manager needs at least one group of decoder layers".to_owned(),
            ));
        };
        if specs.len() >= usize::from(u16::MAX) {
            return Err(Error::InvalidConfig(format!("{} groups are too many", specs.len())));
        }
        if let Some(spec) = specs.iter().find(|spec| spec.kind.is_mamba()) {
            return Err(Error::InvalidConfig(format!(
                "{:?} is for vLLM's rules; give recurrent layers as states",
                spec.kind
            )));
        }
        let alignment = sizes().try_fold(1u32, lcm).ok_or_else(|| {
            Error::InvalidConfig("the block sizes have no common multiple below 2^32".to_owned())
        })?;
        let of = |is_full: bool| {
            let groups = (0..specs.len()).filter(move |&at| {
                specs[at].kind.is_full() == is_full && specs[at].kind.needs_content()
            });
            groups.map(|at| LookupGroup { groups: vec![GroupId(at as u32)], use_eagle: false })
        };
        Ok(Self {
            alignment,
            commit_interval,
            specs: of(true).chain(of(false)).collect(),
            first_state: specs.iter().position(|spec| spec.kind.is_state()),
            has_windows: specs.iter().any(|spec| spec.kind.is_window()),
        })
    }

    /// Have windows kept where checkpoints are.
    pub(super) fn place_windows(&self, groups: &mut [Group]) {
        if !has_places(groups) {
            return;
        }
        for group in self.specs.iter().flat_map(|spec| &spec.groups) {
            let group = &mut groups[group.index()];
            group.is_placed = group.kind().is_window();
        }
    }

    /// Whether some group keeps recurrent states.
    pub(super) fn has_states(&self) -> bool {
        self.first_state.is_some()
    }

    /// The longest prefix of at most `limit` tokens after which every group can go on.
    ///
    /// Full attention is asked first, then windows, then states, so that what each of them alone
    /// denies is known.
    fn longest_hit<S: Store>(&self, finder: &Finder<'_, S>, limit: u32) -> Match {
        let most = limit / self.alignment * self.alignment;
        let mut candidate = Candidate::new(most, self.specs.len());
        finder.reconcile(&self.specs, |group| group.kind().is_full(), &mut candidate);
        let limit = self.limit_of_attention(finder, most, &candidate);
        let attention = candidate.num_tokens;
        if attention == 0 {
            return Match { hit: Hit { limit, ..Hit::default() }, ..Match::default() };
        }
        finder.reconcile(&self.specs, |group| group.kind().is_window(), &mut candidate);
        let resumable = candidate.num_tokens;
        finder.reconcile(&self.specs, |_| true, &mut candidate);
        let num_tokens = candidate.num_tokens;
        let branch = reach_of_attention(finder.groups, attention, resumable);
        let hit = if num_tokens < resumable {
            Hit { num_tokens, limit: HitLimit::NoCheckpoint, branch }
        } else if resumable < attention {
            let branch = if branch > num_tokens { branch } else { 0 };
            Hit { num_tokens, limit: HitLimit::WindowEvicted, branch }
        } else {
            Hit { num_tokens, limit, branch: 0 }
        };
        let blocks = finder.agreed(&self.specs, candidate);
        Match { hit, blocks, ..Match::default() }
    }

    /// Why the groups of full attention hold no more than they do. The one that holds least decides.
    fn limit_of_attention<S: Store>(
        &self,
        finder: &Finder<'_, S>,
        most: u32,
        candidate: &Candidate,
    ) -> HitLimit {
        let mut shortest = (most, HitLimit::Complete);
        for (at, spec) in self.specs.iter().enumerate() {
            let Some(found) = candidate.found(at).filter(|found| found.num_tokens < shortest.0)
            else {
                continue;
            };
            let group: &Group = &finder.groups[spec.groups[0].index()];
            let next = group.key(finder.digests, found.num_present);
            let limit = if finder.store.was_evicted(group.spec.pool, &next) {
                HitLimit::AttentionEvicted
            } else if found.num_tokens < found.num_present * group.spec.block_size {
                HitLimit::Alignment
            } else {
                HitLimit::Unseen
            };
            shortest = (found.num_tokens, limit);
        }
        shortest.1
    }
}

impl BlockManager {
    /// How many leading tokens need not be computed: the longest prefix that every group can
    /// restore, at most all tokens but one, and what ends it. Takes nothing. Nothing for a request
    /// that holds blocks.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn match_prefix(&mut self, handle: u64) -> Result<Hit, Error> {
        let row = self.engine.requests.row(handle)?;
        if self.engine.requests.progress(row).running {
            return Ok(Hit::default());
        }
        Ok(self.matched(row))
    }

    /// The match to tell of, searched for anew unless it still is the longest.
    pub(super) fn matched(&mut self, row: usize) -> Hit {
        let stamp = self.cache_stamp();
        let known = &mut self.engine.requests.rows[row].rest.matched;
        if let Some(matched) = known.as_mut().filter(|it| it.stamp == stamp && !it.is_outgrown) {
            matched.is_promised = true;
            return matched.hit;
        }
        self.search(row, true)
    }

    /// What the first allocation adopts: the match that was told of, or `None` if it stands no more;
    /// the longest one if none was.
    pub(super) fn adoptable(&mut self, row: usize) -> Option<Hit> {
        let stamp = self.cache_stamp();
        match &self.engine.requests.rows[row].rest.matched {
            Some(matched)
                if matched.stamp == stamp && (matched.is_promised || !matched.is_outgrown) =>
            {
                Some(matched.hit)
            }
            Some(matched) if matched.is_promised => {
                let hit = matched.hit;
                let held = self.longest_match(row, hit.num_tokens);
                if held.hit.num_tokens != hit.num_tokens {
                    return None;
                }
                let matched = Match { hit, is_outgrown: true, is_promised: true, ..held };
                self.engine.requests.rows[row].rest.matched = Some(matched);
                Some(hit)
            }
            _ => Some(self.search(row, false)),
        }
    }

    fn search(&mut self, row: usize, is_promised: bool) -> Hit {
        let matched = Match { is_promised, ..self.longest_match(row, u32::MAX) };
        let hit = matched.hit;
        self.engine.requests.rows[row].rest.matched = Some(matched);
        hit
    }

    fn longest_match(&self, row: usize, limit: u32) -> Match {
        let cache = &self.engine.cache;
        let stamp = self.cache_stamp();
        if !cache.enable_caching {
            return Match { stamp, ..Match::default() };
        }
        let limit = limit.min(self.engine.requests.progress(row).num_tokens.saturating_sub(1));
        let finder = cache.finder(&self.engine.requests.rows[row].digests, self.lengths.alignment);
        Match { stamp, ..self.lengths.longest_hit(&finder, limit) }
    }

    /// While this does not change, the blocks of a match are still there and still hold it.
    pub(super) fn cache_stamp(&self) -> (u64, u64) {
        (self.engine.cache.store.num_changes(), self.stats.moves)
    }
}

fn lcm(a: u32, b: u32) -> Option<u32> {
    (a / gcd(a, b)).checked_mul(b)
}
