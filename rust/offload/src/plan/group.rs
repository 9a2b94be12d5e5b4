//! [`OffloadGroup`]: a group as a look-up sees it, and [`Stored`]: one that is stored, in chunks.

use hybrid_blocks::{GroupId, GroupKind, Role};

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

/// A stored group, its chunks and what it must hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) id: GroupId,
    pub(super) group: OffloadGroup,
    pub(super) role: Role,
}

impl Stored {
    pub(super) fn new(id: GroupId, group: OffloadGroup) -> Self {
        let role = match group.kind {
            // The next token looks at itself alone.
            GroupKind::SlidingWindow { window: 0..=1, .. } => Role::None,
            kind => kind.role(),
        };
        Self { id, group, role }
    }

    /// Tokens a chunk.
    pub(super) fn chunk(&self) -> u32 {
        self.group.chunk_tokens
    }

    /// Tokens after a length whose chunk must be there too.
    pub(super) fn margin(&self) -> u32 {
        if self.group.use_eagle && self.role != Role::State { self.chunk() } else { 0 }
    }

    /// The first chunk that a request reads when it resumes from `num_tokens`. A window keeps chunks below itself for
    /// running requests, which are not needed here.
    pub(super) fn first_needed(&self, num_tokens: u32) -> u32 {
        let kind = match self.group.kind {
            GroupKind::SlidingWindow { window, .. } => GroupKind::sliding_window(window),
            kind => kind,
        };
        kind.num_skipped_tokens(num_tokens) / self.chunk()
    }

    pub(super) fn index(&self) -> usize {
        self.id.index()
    }

    /// Whole chunks of a length.
    pub(super) fn chunks_in(&self, length: u32) -> u32 {
        length / self.chunk()
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        self.group.chunk_bytes
    }

    /// The first chunk to load for a length, where the device holds `num_computed` tokens.
    pub(super) fn first_wanted(&self, num_computed: u32, length: u32) -> u32 {
        match self.role {
            Role::State => self.chunks_in(length).saturating_sub(1),
            _ => self.first_needed(length).max(self.chunks_in(num_computed)),
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
