//! The coordinator: what all groups together can do.

use crate::digest::Digest;
use crate::error::Error;
use crate::group::{Group, GroupKind, GroupSpec};
use crate::hit::{Hit, HitLimit};
use crate::ids::{GroupId, PoolId};
use crate::store::{BlockStore, Store};

/// The groups of a model.
#[derive(Debug)]
pub(crate) struct Coordinator {
    groups: Vec<Group>,
    /// A hit ends where every group has a block border.
    alignment: u32,
    /// Some group has work to do at every multiple of this many tokens.
    commit_interval: u32,
    has_states: bool,
    has_windows: bool,
}

impl Coordinator {
    pub(crate) fn new(specs: &[GroupSpec], hash_block_size: u32) -> Result<Self, Error> {
        let groups = (0..)
            .map(GroupId)
            .zip(specs)
            .map(|(id, &spec)| Group::new(id, spec, hash_block_size))
            .collect::<Result<Vec<_>, _>>()?;
        // Encoder blocks have no part in the decoder's lengths.
        let sizes = || {
            let decoder = |spec: &&GroupSpec| !matches!(spec.kind, GroupKind::Cross { .. });
            specs.iter().filter(decoder).map(|spec| spec.block_size)
        };
        let Some(commit_interval) = sizes().reduce(gcd) else {
            return Err(Error::InvalidConfig(
                "a manager needs at least one group of decoder layers".to_owned(),
            ));
        };
        if groups.len() >= usize::from(u16::MAX) {
            return Err(Error::InvalidConfig(format!("{} groups are too many", groups.len())));
        }
        let alignment = sizes().try_fold(1u32, lcm).ok_or_else(|| {
            Error::InvalidConfig("the block sizes have no common multiple below 2^32".to_owned())
        })?;
        let has_states = groups.iter().any(Group::is_state);
        let has_windows = groups.iter().any(Group::is_window);
        Ok(Self { groups, alignment, commit_interval, has_states, has_windows })
    }

    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The longest prefix of at most `limit` tokens after which every group can go on.
    ///
    /// What full attention holds is closed under shortening, so those groups are asked once. The
    /// windows shorten the candidate in turn until none does; the states come last, so that what
    /// they alone deny is known.
    pub(crate) fn longest_hit(&self, store: &BlockStore, digests: &[Digest], limit: u32) -> Hit {
        let most = limit / self.alignment * self.alignment;
        let (mut hit, mut reason) = (most, HitLimit::Complete);
        for group in self.groups.iter().filter(|group| group.spec.kind == GroupKind::Full) {
            let run = group.longest_run(store, digests, hit);
            let run_tokens = run * group.spec.block_size;
            if run_tokens < hit {
                let aligned = run_tokens / self.alignment * self.alignment;
                reason = if group.was_evicted(store, digests, run) {
                    HitLimit::AttentionEvicted
                } else if aligned < run_tokens {
                    HitLimit::Alignment
                } else {
                    HitLimit::Unseen
                };
                hit = aligned;
            }
        }
        let windowed = |group: &&Group| !group.is_constant() && group.spec.kind != GroupKind::Full;
        let resumable = self.agree(store, digests, hit, windowed);
        if resumable < hit {
            (hit, reason) = (resumable, HitLimit::WindowEvicted);
        }
        let restorable = self.agree(store, digests, hit, |group| {
            group.is_state() || (windowed(group) && self.has_states)
        });
        if restorable == hit {
            return Hit { num_tokens: hit, limit: reason, branch: 0 };
        }
        Hit { num_tokens: restorable, limit: HitLimit::NoCheckpoint, branch: hit }
    }

    /// The longest length, at most `hit`, at which all `chosen` groups can go on.
    fn agree(
        &self,
        store: &BlockStore,
        digests: &[Digest],
        mut hit: u32,
        chosen: impl Fn(&&Group) -> bool + Clone,
    ) -> u32 {
        let chosen = self.groups.iter().filter(chosen);
        let num_chosen = chosen.clone().count();
        let mut agreed = 0;
        for group in chosen.cycle() {
            if hit == 0 || agreed == num_chosen {
                break;
            }
            let own = group.longest_resumable(store, digests, hit, self.alignment);
            agreed = if own == hit { agreed + 1 } else { 1 };
            hit = own;
        }
        hit
    }

    /// The grain of lengths at which every group can be resumed.
    pub(crate) fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The first group that keeps recurrent states.
    pub(crate) fn first_state(&self) -> Option<&Group> {
        self.groups.iter().find(|group| group.is_state())
    }

    /// Whether some group keeps recurrent states.
    pub(crate) fn has_states(&self) -> bool {
        self.has_states
    }

    /// Whether some group looks back over a part of the tokens only.
    pub(crate) fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// The next number of computed tokens at which some group has work to do.
    pub(crate) fn next_commit(&self, num_computed: u32) -> u32 {
        let next = (num_computed / self.commit_interval + 1).saturating_mul(self.commit_interval);
        self.groups.iter().fold(next, |next, group| next.min(group.next_skip(num_computed)))
    }

    /// Slabs (blocks in a fixed pool) that a request of `num_tokens` tokens alone needs at most, and
    /// those that exist.
    pub(crate) fn slabs_for(
        &self,
        store: &BlockStore,
        num_tokens: u64,
        max_chunk: u32,
    ) -> (u64, u64) {
        let mut demand = vec![0; store.num_pools() as usize];
        for group in &self.groups {
            demand[group.spec.pool.index()] += group.peak_blocks(num_tokens, max_chunk);
        }
        let slabs = demand.iter().enumerate().map(|(pool, &blocks)| {
            u64::div_ceil(blocks, u64::from(store.blocks_per_slab(PoolId(pool as u32))))
        });
        (slabs.sum(), store.num_slabs())
    }

    /// Tokens of the longest request that fits alone.
    pub(crate) fn max_request_tokens(&self, store: &BlockStore, max_chunk: u32) -> u32 {
        let fits = |num_tokens: u32| {
            let (needed, available) = self.slabs_for(store, u64::from(num_tokens), max_chunk);
            needed <= available
        };
        let (mut low, mut high) = (0, u32::MAX / 2);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }
}

fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn lcm(a: u32, b: u32) -> Option<u32> {
    (a / gcd(a, b)).checked_mul(b)
}
