//! The coordinator: what all groups together can do.

use crate::digest::Digest;
use crate::error::Error;
use crate::group::{Group, GroupKind, GroupSpec};
use crate::ids::{GroupId, PoolId};
use crate::store::BlockStore;

/// The groups of a model.
#[derive(Debug)]
pub(crate) struct Coordinator {
    groups: Vec<Group>,
    /// A hit ends where every group has a block border.
    alignment: u32,
    /// Some group has work to do at every multiple of this many tokens.
    commit_interval: u32,
}

impl Coordinator {
    pub(crate) fn new(specs: &[GroupSpec], hash_block_size: u32) -> Result<Self, Error> {
        let groups = (0..)
            .map(GroupId)
            .zip(specs)
            .map(|(id, &spec)| Group::new(id, spec, hash_block_size))
            .collect::<Result<Vec<_>, _>>()?;
        let sizes = || specs.iter().map(|spec| spec.block_size);
        let Some(commit_interval) = sizes().min() else {
            return Err(Error::InvalidConfig("a manager needs at least one group".to_owned()));
        };
        if groups.len() >= usize::from(u16::MAX) {
            return Err(Error::InvalidConfig(format!("{} groups are too many", groups.len())));
        }
        let alignment = sizes().try_fold(1u32, lcm).ok_or_else(|| {
            Error::InvalidConfig("the block sizes have no common multiple below 2^32".to_owned())
        })?;
        Ok(Self { groups, alignment, commit_interval })
    }

    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The longest prefix of at most `limit` tokens after which every group can go on.
    ///
    /// What full attention holds is closed under shortening, so those groups are asked once. The
    /// others shorten the candidate in turn until none does.
    pub(crate) fn longest_hit(&self, store: &BlockStore, digests: &[Digest], limit: u32) -> u32 {
        let mut hit = limit / self.alignment * self.alignment;
        let is_full = |group: &&Group| group.spec.kind == GroupKind::Full;
        for group in self.groups.iter().filter(is_full) {
            hit = group.longest_run(store, digests, hit, self.alignment);
        }
        let bounded = self.groups.iter().filter(|group| !is_full(group));
        let num_bounded = bounded.clone().count();
        let mut agreed = 0;
        for group in bounded.cycle() {
            if hit == 0 || agreed == num_bounded {
                break;
            }
            let own = group.longest_resumable(store, digests, hit, self.alignment);
            agreed = if own == hit { agreed + 1 } else { 1 };
            hit = own;
        }
        hit
    }

    /// The next number of computed tokens at which some group has work to do.
    pub(crate) fn next_commit(&self, num_computed: u32) -> u32 {
        (num_computed / self.commit_interval + 1).saturating_mul(self.commit_interval)
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

fn lcm(a: u32, b: u32) -> Option<u32> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}
