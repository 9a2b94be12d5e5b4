//! [`Table`]: one request's blocks in one group.

use crate::ids::BlockId;

/// The blocks of an attention group by position, or the state slots of a recurrent one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// Null where the content is not needed any more.
    pub(crate) blocks: Vec<BlockId>,
    /// Leading blocks that are in the prefix index or never will be.
    pub(super) num_hashed: u32,
    /// Leading blocks given back.
    pub(super) num_skipped: u32,
    /// The checkpoint that the request goes on from, held until it is copied.
    pub(crate) fork: Option<BlockId>,
}

impl Table {
    /// Blocks that are not given back yet.
    pub(crate) fn num_held(&self) -> u64 {
        self.blocks.len() as u64 - u64::from(self.num_skipped)
    }

    /// Empty it; the next request finds its memory there.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        *self = Self { blocks: std::mem::take(&mut self.blocks), ..Self::default() };
    }
}
