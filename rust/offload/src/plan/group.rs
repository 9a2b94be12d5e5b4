//! [`OffloadGroup`]: a group as a look-up sees it.

use hybrid_blocks::{GroupKind, Role};

/// A group of layers whose blocks go down to other tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadGroup {
    /// The kind of its layers.
    pub kind: GroupKind,
    /// Tokens a chunk, a multiple of the hash block; 0 if it is not stored.
    pub chunk_tokens: u32,
    /// Bytes of one chunk, in all layers and of all ranks.
    pub chunk_bytes: u64,
    /// Whether a drafter reads it. The last entry of a drafter's chunk depends on the token after
    /// it. So a chunk counts only if the one after it is there too.
    pub use_eagle: bool,
}

impl OffloadGroup {
    pub(crate) fn role(&self) -> Role {
        match self.kind {
            // The next token looks at itself alone.
            GroupKind::SlidingWindow { window: 0..=1, .. } => Role::None,
            kind => kind.role(),
        }
    }

    /// The first token that a request reads when it resumes from `num_tokens`. A window keeps
    /// chunks below itself for running requests; they are not needed here.
    pub(crate) fn first_needed(&self, num_tokens: u32) -> u32 {
        match self.kind {
            GroupKind::SlidingWindow { window, .. } => {
                GroupKind::sliding_window(window).num_skipped_tokens(num_tokens)
            }
            kind => kind.num_skipped_tokens(num_tokens),
        }
    }
}

pub(crate) fn lcm(a: u64, b: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    a / gcd(a, b) * b
}
