//! [`Stored`]: a stored group in chunks.

use hybrid_blocks::{GroupId, Role};

use super::group::OffloadGroup;

/// A stored group, its chunks and what it must hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) id: GroupId,
    pub(super) group: OffloadGroup,
    pub(super) role: Role,
}

impl Stored {
    /// Tokens a chunk.
    pub(super) fn chunk(&self) -> u32 {
        self.group.chunk_tokens
    }

    /// Tokens after a length whose chunk must be there too.
    pub(super) fn margin(&self) -> u32 {
        if self.group.use_eagle && self.role != Role::State { self.chunk() } else { 0 }
    }

    /// The first chunk that a request reads when it resumes from `num_tokens`.
    pub(super) fn first_needed(&self, num_tokens: u32) -> u32 {
        self.group.first_needed(num_tokens) / self.chunk()
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
