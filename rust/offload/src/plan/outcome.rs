//! [`Plan`]: what one look-up found.

use hybrid_blocks::{BlockId, Key};

/// One chunk to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Place among the group's chunks; for a state, the length at which it was kept, in units of the group's
    /// block, less 1.
    pub chunk: u32,
    /// Name of the chunk.
    pub key: Key,
    /// The tier to load it from, as an index into the tiers asked.
    pub tier: u8,
    /// The slot of that tier.
    pub slot: BlockId,
}

impl Load {
    /// The tier of a chunk that was not found yet.
    pub const NOWHERE: u8 = u8::MAX;
}

/// The prefix to restore: the longest that every group can, or a shorter one that is there sooner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Tokens of the prefix, those that the device holds already included; 0 if there is none beyond them.
    pub num_tokens: u32,
    /// Tokens beyond it, or beyond what the device holds, that could be restored as well and are sooner
    /// computed.
    pub num_passed_by: u32,
    /// The chunks to load, by group, first chunk first. No chunk is there that the device holds or
    /// that nothing looks at.
    pub loads: Vec<Vec<Load>>,
}

impl Plan {
    /// Whether anything is to be restored.
    pub fn is_hit(&self) -> bool {
        self.num_tokens > 0
    }
}
