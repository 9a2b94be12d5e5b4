//! [`Planner`]: which prefix every group can restore, and from where.

use hybrid_blocks::{Digest, GroupId, Role};

use super::cost::Costs;
use super::group::{OffloadGroup, lcm};
use super::outcome::Plan;
use super::search::{MAX_TIERS, Search};
use super::stored::Stored;
use super::tier::Tier;
use crate::error::Error;

/// Answers which prefix of a prompt is to be restored, from which tiers, in one call.
#[derive(Clone, Debug)]
pub struct Planner {
    pub(super) num_groups: usize,
    pub(super) hash_block_size: u32,
    pub(super) states: Vec<Stored>,
    pub(super) windows: Vec<Stored>,
    pub(super) full: Vec<Stored>,
    /// Tokens that divide the length of each hit.
    pub(super) alignment: u32,
}

impl Planner {
    /// A planner for `groups`; those without a chunk are not stored.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if no group is stored, or a chunk is no multiple of the hash block.
    pub fn new(groups: &[OffloadGroup], hash_block_size: u32) -> Result<Self, Error> {
        let all = (0..).map(GroupId).zip(groups);
        let all = all.map(|(id, &group)| Stored { id, group, role: group.role() });
        let is_stored = |it: &Stored| it.role != Role::None && it.chunk() > 0;
        let stored: Vec<_> = all.filter(is_stored).collect();
        let is_whole =
            |it: &Stored| hash_block_size > 0 && it.chunk().is_multiple_of(hash_block_size);
        if let Some(broken) = stored.iter().find(|it| !is_whole(it)) {
            return Err(Error::InvalidConfig(format!(
                "chunks of {} tokens in group {} over hash blocks of {hash_block_size}: a chunk is \
                 a multiple of the hash block, both at least 1",
                broken.chunk(),
                broken.id
            )));
        }
        if stored.is_empty() {
            return Err(Error::InvalidConfig(format!("none of {groups:?} can be stored")));
        }
        let alignment = stored.iter().fold(1, |all, it| lcm(all, u64::from(it.chunk())));
        let of = |role| stored.iter().filter(|it| it.role == role).copied().collect();
        Ok(Self {
            num_groups: groups.len(),
            hash_block_size,
            states: of(Role::State),
            windows: of(Role::Window),
            full: of(Role::Full),
            alignment: u32::try_from(alignment).map_err(|_| {
                let chunks: Vec<_> = stored.iter().map(Stored::chunk).collect();
                Error::InvalidConfig(format!("chunks of {chunks:?} tokens have no common multiple"))
            })?,
        })
    }

    /// Tokens that divide the length of each hit.
    #[must_use]
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The longest prefix of at most `limit` tokens that the device and the tiers hold together.
    ///
    /// `digests` has one entry a hash block. The device holds the first `num_computed` tokens. `tiers`
    /// come in order of preference, at most 8; further ones are not asked.
    ///
    /// A binary search rules out lengths that lack attention; only an absent chunk counts. States
    /// decide next, then windows, then each attention chunk below the length. A missing chunk
    /// shortens the length to before it, so a group looks for no chunk twice.
    #[must_use]
    pub fn plan(
        &self,
        tiers: &[&dyn Tier],
        digests: &[Digest],
        num_computed: u32,
        limit: u32,
    ) -> Plan {
        self.plan_soonest(tiers, &Costs::default(), digests, num_computed, limit)
    }

    /// The prefix from which a request can go on soonest, as far as costs are known; else the longest.
    ///
    /// Of several tiers that hold a chunk, the one counts that would read all chunks up to `limit`
    /// soonest. The length is then the one for which reading, and computing what lies between it and
    /// the longest, takes the least time. Tiers are read side by side.
    #[must_use]
    pub fn plan_soonest(
        &self,
        tiers: &[&dyn Tier],
        costs: &Costs<'_>,
        digests: &[Digest],
        num_computed: u32,
        limit: u32,
    ) -> Plan {
        let tiers = &tiers[..tiers.len().min(MAX_TIERS)];
        Search::new(self, tiers, digests, num_computed).run(costs, limit)
    }

    pub(super) fn stored(&self) -> impl Iterator<Item = &Stored> {
        self.full.iter().chain(&self.windows).chain(&self.states)
    }
}
