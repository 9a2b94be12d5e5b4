//! What the manager is told about the model and the engine.

use crate::error::Error;
use crate::ids::GroupId;

/// How a group keeps blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every token attends to every earlier one, MLA included.
    Full,
    /// A token attends to the last `window` tokens, itself included.
    SlidingWindow {
        /// Tokens.
        window: u32,
        /// Tokens below the window that are kept nevertheless.
        extra_retained: u32,
    },
    /// A token attends to the earlier tokens of its chunk.
    Chunked {
        /// Tokens.
        chunk: u32,
    },
    /// A recurrent state in a block that is rewritten in place, with more blocks for the states
    /// after each draft token.
    MambaInPlace {
        /// Blocks for draft tokens.
        num_speculative: u32,
    },
    /// A recurrent state that moves to a new block at every block border, so that the old block can
    /// be kept as a checkpoint.
    MambaAligned {
        /// Blocks for draft tokens.
        num_speculative: u32,
        /// Tokens that a checkpoint written inside a chunk must be aligned to, relative to the
        /// chunk's start; `None` where the kernels write none.
        checkpoint_alignment: Option<u32>,
        /// Whether such checkpoints get a block of their own.
        has_checkpoint_blocks: bool,
    },
}

impl Kind {
    pub(crate) fn is_full(self) -> bool {
        self == Self::Full
    }

    pub(crate) fn is_mamba(self) -> bool {
        matches!(self, Self::MambaInPlace { .. } | Self::MambaAligned { .. })
    }

    pub(crate) fn is_aligned(self) -> bool {
        matches!(self, Self::MambaAligned { .. })
    }

    /// Whether a prefix that ends inside a block can be found.
    pub(crate) fn supports_fine_grained(self) -> bool {
        self.is_full() || self.is_mamba()
    }

    /// Leading tokens that nothing computed after `num_computed` tokens looks at.
    pub(crate) fn num_skipped_tokens(self, num_computed: u32) -> u32 {
        match self {
            Self::Full => 0,
            Self::SlidingWindow { window, extra_retained } => {
                (num_computed + 1).saturating_sub(window + extra_retained)
            }
            Self::Chunked { chunk } => num_computed / chunk * chunk,
            Self::MambaInPlace { .. } | Self::MambaAligned { .. } => num_computed.saturating_sub(1),
        }
    }
}

/// One group.
#[derive(Clone, Copy, Debug)]
pub struct GroupConfig {
    /// How it keeps blocks.
    pub kind: Kind,
    /// Tokens a block.
    pub block_size: u32,
    /// Whether a hit is shortened by what the drafter must compute again.
    pub use_eagle: bool,
    /// Blocks that a request needs at most at a time, where blocks are recycled.
    pub admission_cap: Option<u32>,
    /// Whether new blocks are zeroed by the worker.
    pub zeroes_new_blocks: bool,
}

/// Groups of one spec, looked up together.
#[derive(Clone, Debug)]
pub struct LookupGroup {
    /// Their numbers; the first one's spec stands for all.
    pub groups: Vec<GroupId>,
    /// Whether one of them drops what the drafter must compute again.
    pub use_eagle: bool,
}

/// How prefixes are found.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// Caching is off.
    None,
    /// One group, whose blocks are hash blocks.
    Unitary {
        /// As [`LookupGroup::use_eagle`].
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

/// The vLLM whose decisions are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// 0.32.
    V0_32,
    /// 0.33.
    V0_33,
}

/// What a release decides differently.
pub(crate) struct Rules {
    /// Whether sparse retention keeps, for a drafter's group, the block below a junction too: a
    /// request that diverges right after the junction resumes there.
    pub(crate) keeps_block_below_junction: bool,
    /// Whether a running state that has its key already is left alone.
    pub(crate) keys_running_state_once: bool,
}

impl Release {
    /// All differences between releases.
    pub(crate) const fn rules(self) -> Rules {
        match self {
            Self::V0_32 => {
                Rules { keeps_block_below_junction: false, keys_running_state_once: false }
            }
            Self::V0_33 => {
                Rules { keeps_block_below_junction: true, keys_running_state_once: true }
            }
        }
    }
}

impl std::str::FromStr for Release {
    type Err = Error;

    /// The release that vLLM calls itself, such as `0.33`.
    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "0.32" => Ok(Self::V0_32),
            "0.33" => Ok(Self::V0_33),
            _ => Err(Error::InvalidConfig(format!("no release {name:?} of vLLM is known"))),
        }
    }
}

/// The whole configuration. Sizes are in tokens.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the engine")]
pub struct Config {
    /// Whose decisions these are.
    pub release: Release,
    /// The groups.
    pub groups: Vec<GroupConfig>,
    /// How prefixes are found.
    pub lookup: Lookup,
    /// Tokens a digest stands for.
    pub hash_block_size: u32,
    /// Least common multiple of the groups' block sizes.
    pub scheduler_block_size: u32,
    /// Longest request.
    pub max_model_len: u32,
    /// Whether changes of the prefix cache are noted.
    pub enable_events: bool,
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
    /// Blocks that an admission leaves free.
    pub watermark_blocks: u32,
}

impl Config {
    /// Whether prefixes are kept.
    #[must_use]
    pub fn enable_caching(&self) -> bool {
        !matches!(self.lookup, Lookup::None)
    }

    /// Whether [`shared_prefix_boundary`](super::RequestProgress::shared_prefix_boundary) is heeded.
    #[must_use]
    pub fn heeds_shared_prefix_boundary(&self) -> bool {
        self.retention_interval.is_some() || self.groups.iter().any(|it| it.kind.is_aligned())
    }

    pub(crate) fn is_hybrid(&self) -> bool {
        matches!(self.lookup, Lookup::Hybrid { .. })
    }

    pub(crate) fn is_fine_grained(&self) -> bool {
        matches!(self.lookup, Lookup::Hybrid { fine_grained: true, .. })
    }

    /// What the length of a hit is a multiple of.
    pub(crate) fn hit_alignment(&self) -> u32 {
        if self.is_fine_grained() { self.hash_block_size } else { self.scheduler_block_size }
    }

    /// Whether a manager can be made of it.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] where sizes do not fit each other.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::InvalidConfig(what));
        if self.hash_block_size == 0 || self.scheduler_block_size == 0 {
            return refuse("a block size of 0 tokens; give at least 1".to_owned());
        }
        for (number, group) in self.groups.iter().enumerate() {
            let size = group.block_size;
            if size == 0 || (self.enable_caching() && size % self.hash_block_size != 0) {
                return refuse(format!(
                    "group {number} has blocks of {size} tokens, not a multiple of the hash block \
                     of {}; choose a hash block that divides it",
                    self.hash_block_size
                ));
            }
            if matches!(group.kind, Kind::Chunked { chunk: 0 }) {
                return refuse(format!("group {number} has chunks of 0 tokens"));
            }
        }
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
}
