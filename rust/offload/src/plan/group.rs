//! [`OffloadGroup`]: a group as a look-up sees it.

use hybrid_blocks::GroupKind;

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

/// The chunks that a group must hold so that a request can resume from a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Every chunk from the start.
    Full,
    /// The chunks that the next token looks at.
    Window,
    /// The state after the last token.
    State,
    /// Nothing: it is computed again.
    Free,
}

impl OffloadGroup {
    pub(crate) fn role(&self) -> Role {
        match self.kind {
            GroupKind::Full => Role::Full,
            GroupKind::SlidingWindow { window: 0..=1, .. } => Role::Free,
            GroupKind::SlidingWindow { .. } | GroupKind::Chunked { .. } => Role::Window,
            GroupKind::State { .. }
            | GroupKind::MambaInPlace { .. }
            | GroupKind::MambaAligned { .. } => Role::State,
            _ => Role::Free,
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
