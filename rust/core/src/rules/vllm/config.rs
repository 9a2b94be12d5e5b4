//! The facts of the model and the engine that the manager needs.

use super::release::ReleaseRules;
use crate::engine::LookupGroup;
use crate::error::Error;
use crate::group::{GroupKind, GroupSpec};
use crate::ids::PoolId;
use crate::learn::Checkpoints;
use crate::learn::checkpoint_policy::{CheckpointFormat, CheckpointPolicy};

/// Configuration of one group.
#[derive(Clone, Copy, Debug)]
pub struct GroupConfig {
    /// How it keeps blocks.
    pub kind: GroupKind,
    /// Tokens a block.
    pub block_size: u32,
    /// Where its blocks come from: 0 where all groups share one pool of equal blocks, as in vLLM.
    pub pool: PoolId,
    /// Where its checkpoints lie, if they are kept in another format than running states.
    pub kept: Option<PoolId>,
    /// Whether a hit is shortened by what the drafter must compute again.
    pub use_eagle: bool,
    /// Blocks that a request needs at most at a time, where blocks are recycled.
    pub admission_cap: Option<u32>,
    /// Whether new blocks are zeroed by the worker.
    pub zeroes_new_blocks: bool,
    /// Whether it takes part in prefix caching, if its kind can. One that does not is never entered,
    /// and shortens no hit.
    pub is_cached: bool,
}

impl GroupConfig {
    /// A group of the first pool, with all that is optional switched off.
    pub fn new(kind: GroupKind, block_size: u32) -> Self {
        Self {
            kind,
            block_size,
            pool: PoolId(0),
            kept: None,
            use_eagle: false,
            admission_cap: None,
            zeroes_new_blocks: false,
            is_cached: true,
        }
    }

    /// Whether later requests can hit what the group computed.
    pub(crate) fn is_cacheable(&self) -> bool {
        self.is_cached && self.kind.is_cacheable()
    }

    pub(crate) fn spec(&self) -> GroupSpec {
        GroupSpec { kind: self.kind, block_size: self.block_size, pool: self.pool }
    }
}

/// How prefixes are found.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// Caching is off.
    None,
    /// One group, whose blocks are hash blocks.
    Unitary {
        /// Meaning as in [`LookupGroup::use_eagle`].
        use_eagle: bool,
    },
    /// Several groups that must agree on a length. Full attention comes first.
    Hybrid {
        /// The groups, by spec.
        specs: Vec<LookupGroup>,
        /// Whether hits may end inside a block, at any hash block.
        fine_grained: bool,
    },
}

/// The whole configuration. Sizes are in tokens.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the engine")]
pub struct ManagerConfig {
    /// Decisions that vLLM's releases take differently.
    pub release: ReleaseRules,
    /// Groups by number.
    pub groups: Vec<GroupConfig>,
    /// How prefixes are found.
    pub lookup: Lookup,
    /// Tokens a digest stands for.
    pub hash_block_size: u32,
    /// Least common multiple of the groups' block sizes.
    pub scheduler_block_size: u32,
    /// Tokens of the longest request.
    pub max_model_len: u32,
    /// Whether changes of the prefix cache are noted.
    pub enable_events: bool,
    /// Whether it is noted when blocks are allocated, accessed and evicted. Ids alone tell blocks
    /// apart, so there must be one pool.
    pub enable_residency: bool,
    /// `None` keeps every checkpoint of sliding-window and recurrent groups, 0 only those where a
    /// prompt can be resumed, more one in that many tokens as well.
    pub retention_interval: Option<u32>,
    /// Computed tokens at the end that a drafter may compute again.
    pub num_reprefillable: u32,
    /// Tokens after a block that its digest covers.
    pub num_hash_lookahead: u32,
    /// Whether any group drops blocks for a drafter, so that prompts resume one block earlier.
    pub drops_eagle_block: bool,
    /// Whether recurrent checkpoints follow the drafter's replay boundary.
    pub drops_eagle_checkpoint: bool,
    /// Whether recurrent groups keep a checkpoint where requests were seen to diverge.
    pub shared_prefix_checkpoint: bool,
    /// Blocks that an admission leaves free; slabs, where pools share slabs.
    pub watermark_blocks: u32,
    /// Where states are kept for later requests by our own rules; `None` for vLLM's. With it, a state
    /// stays in the block that its request got first, and what is kept of it are copies.
    pub checkpoints: Option<CheckpointPolicy>,
    /// Tokens that divide the distance from a chunk's start to a state that a worker can keep from inside the chunk;
    /// `None` where a chunk ends at each.
    pub prefill_checkpoint_alignment: Option<u32>,
}

impl ManagerConfig {
    /// All rules of releases, with all that is optional switched off. Sizes are in tokens.
    pub fn new(
        groups: Vec<GroupConfig>,
        lookup: Lookup,
        hash_block_size: u32,
        scheduler_block_size: u32,
        max_model_len: u32,
    ) -> Self {
        Self {
            release: ReleaseRules::ALL,
            groups,
            lookup,
            hash_block_size,
            scheduler_block_size,
            max_model_len,
            enable_events: false,
            enable_residency: false,
            retention_interval: None,
            num_reprefillable: 0,
            num_hash_lookahead: 0,
            drops_eagle_block: false,
            drops_eagle_checkpoint: false,
            shared_prefix_checkpoint: false,
            watermark_blocks: 0,
            checkpoints: None,
            prefill_checkpoint_alignment: None,
        }
    }

    /// The rules by which checkpoints are left, if they are.
    pub(crate) fn checkpoint_rules(&self) -> Option<Checkpoints> {
        self.checkpoints.map(|policy| Checkpoints {
            policy,
            grain: self.hit_alignment(),
            has_drafts: self.has_drafts(),
        })
    }

    /// Whether prefixes are kept.
    pub fn enable_caching(&self) -> bool {
        !matches!(self.lookup, Lookup::None)
    }

    /// Whether [`shared_prefix_boundary`](super::RequestProgress::shared_prefix_boundary) is heeded.
    pub fn heeds_shared_prefix_boundary(&self) -> bool {
        self.retention_interval.is_some() || self.groups.iter().any(|it| it.kind.is_aligned())
    }

    pub(crate) fn is_hybrid(&self) -> bool {
        matches!(self.lookup, Lookup::Hybrid { .. })
    }

    pub(crate) fn is_fine_grained(&self) -> bool {
        matches!(self.lookup, Lookup::Hybrid { fine_grained: true, .. })
    }

    /// Returns the tokens that divide the length of each hit.
    pub(crate) fn hit_alignment(&self) -> u32 {
        if self.is_fine_grained() { self.hash_block_size } else { self.scheduler_block_size }
    }

    /// The last multiple of `unit` in a prefill of `num_tokens` from which a later request can resume.
    ///
    /// Some tokens must be left to compute for the logits, and to complete the digest where that looks
    /// ahead; a drafter drops one unit, which leaves enough.
    pub(crate) fn checkpoint_position(&self, num_tokens: u32, unit: u32) -> u32 {
        if self.drops_eagle_checkpoint {
            return (num_tokens / unit * unit).saturating_sub(unit);
        }
        num_tokens.saturating_sub(self.num_hash_lookahead.max(1)) / unit * unit
    }

    /// As [`ManagerConfig::checkpoint_position`], of the checkpoint inside a chunk that ends there.
    pub(crate) fn checkpoint_inside(&self, num_tokens: u32) -> u32 {
        if self.release.places_checkpoints_at_hits {
            return self.checkpoint_position(num_tokens, self.hit_alignment());
        }
        let unit = self.hash_block_size;
        let last = num_tokens.saturating_sub(1) / unit * unit;
        if self.drops_eagle_checkpoint { last.saturating_sub(unit) } else { last }
    }

    /// As [`ManagerConfig::checkpoint_position`], of the state that a prompt leaves at its end.
    pub(crate) fn state_tail(&self, num_prompt: u32) -> u32 {
        if self.release.leaves_last_token || self.drops_eagle_checkpoint {
            return self.checkpoint_position(num_prompt, self.hash_block_size);
        }
        num_prompt / self.hash_block_size * self.hash_block_size
    }

    /// Whether a manager can be made of it.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] where sizes do not fit each other.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::InvalidConfig(what));
        if self.scheduler_block_size == 0 {
            return refuse("scheduler_block_size is 0 tokens; give at least 1".to_owned());
        }
        self.check_kept()?;
        if self.enable_residency && self.groups.iter().any(|group| group.pool != PoolId(0)) {
            return refuse("residency is told by block id, which takes one pool".to_owned());
        }
        if let Some(group) = self.groups.iter().find(|group| group.kind.is_state()) {
            return refuse(format!(
                "{:?} is for a BlockManager; give it as Mamba layers",
                group.kind
            ));
        }
        self.check_checkpoints()?;
        match &self.lookup {
            Lookup::Unitary { .. } if self.groups.len() != 1 => {
                refuse(format!("{} groups, but a lookup for one", self.groups.len()))
            }
            Lookup::Hybrid { specs, .. }
                if specs.iter().any(|spec| {
                    spec.groups.is_empty()
                        || spec.groups.iter().any(|group| group.index() >= self.groups.len())
                }) =>
            {
                refuse("a lookup names no group, or one that does not exist".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Checkpoints in another format are of another size, so they have a pool of their own.
    fn check_kept(&self) -> Result<(), Error> {
        if self.prefill_checkpoint_alignment == Some(0) {
            return Err(Error::InvalidConfig(
                "prefill_checkpoint_alignment is 0 tokens; give at least 1".to_owned(),
            ));
        }
        let format = self.checkpoints.map(|policy| policy.format).unwrap_or_default();
        let is_apart = format != CheckpointFormat::Full;
        for (group, config) in self.groups.iter().enumerate() {
            let wrong = match config.kept {
                Some(_) if self.prefill_checkpoint_alignment.is_some() => {
                    "converts them, which no forward pass does"
                }
                None if is_apart && config.kind.is_aligned() => "needs a pool of its own for them",
                Some(_) if !is_apart => "names a pool for them, which another format has alone",
                Some(_) if !config.kind.is_aligned() => "has none, and names a pool for them",
                Some(kept) if kept == config.pool => {
                    "names the pool of its running states for them"
                }
                _ => continue,
            };
            return Err(Error::InvalidConfig(format!(
                "checkpoints are kept in format {}; group {group} {wrong}",
                format.name()
            )));
        }
        Ok(())
    }

    /// Copies are of whole slabs: no state may move to another block by itself, and no block of
    /// attention may have to be copied.
    fn check_checkpoints(&self) -> Result<(), Error> {
        if self.checkpoints.is_none() {
            return Ok(());
        }
        for (group, config) in self.groups.iter().enumerate() {
            let size = config.block_size;
            if config.kind.is_aligned() && size < self.max_model_len {
                return Err(Error::InvalidConfig(format!(
                    "group {group} has a state block of {size} tokens; it must hold the longest \
                     request, {} tokens",
                    self.max_model_len
                )));
            }
            if config.kind.is_full() && self.is_fine_grained() && size != self.hash_block_size {
                return Err(Error::InvalidConfig(format!(
                    "group {group} has attention blocks of {size} tokens; hits end at multiples of \
                     {}, and a block cannot be copied: make them equal",
                    self.hash_block_size
                )));
            }
        }
        Ok(())
    }
}
