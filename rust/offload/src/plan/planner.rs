//! [`Planner`]: which prefix every group can restore, and from where.

use hybrid_blocks::{GroupId, Role};

use super::group::{OffloadGroup, Stored, lcm};
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
        let all = all.map(|(id, &group)| Stored::new(id, group));
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
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    pub(super) fn stored(&self) -> impl Iterator<Item = &Stored> {
        self.full.iter().chain(&self.windows).chain(&self.states)
    }
}
