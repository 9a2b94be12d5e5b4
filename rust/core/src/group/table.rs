//! [`Table`]: one request's blocks in one group.

use super::mamba_aligned::MovingState;
use crate::ids::BlockId;

/// The blocks of a group by position, or the state slots of a recurrent one. 48 bytes.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Null where the content is not needed any more.
    pub(crate) blocks: Vec<BlockId>,
    /// [`Table::num_cached`] plus 1, or 0 for none.
    num_cached_plus_1: u32,
    /// Leading blocks given back, or never taken because a hit skipped them.
    pub(crate) num_skipped: u32,
    /// See [`Table::copy_source`]; null for none.
    copy_source: (u32, BlockId),
    moving: Option<Box<MovingState>>,
}

impl Table {
    /// Leading blocks that were entered into the prefix index, or never will be; `None` before the
    /// request is admitted.
    #[inline]
    pub(crate) fn num_cached(&self) -> Option<u32> {
        self.num_cached_plus_1.checked_sub(1)
    }

    #[inline]
    pub(crate) fn set_num_cached(&mut self, num_cached: u32) {
        self.num_cached_plus_1 = num_cached + 1;
    }

    /// A block that others hold, or will, to be copied before the request writes on: its position,
    /// and the block.
    #[inline]
    pub(crate) fn copy_source(&self) -> Option<(u32, BlockId)> {
        (!self.copy_source.1.is_null()).then_some(self.copy_source)
    }

    pub(crate) fn set_copy_source(&mut self, position: u32, block: BlockId) {
        self.copy_source = (position, block);
    }

    pub(crate) fn take_copy_source(&mut self) -> Option<(u32, BlockId)> {
        let source = self.copy_source();
        self.copy_source = (0, BlockId::NULL);
        source
    }

    /// What a moving state remembers, if it ever moved.
    pub(crate) fn moving(&self) -> MovingState {
        self.moving.as_deref().copied().unwrap_or_default()
    }

    pub(crate) fn moving_mut(&mut self) -> &mut MovingState {
        self.moving.get_or_insert_default()
    }

    /// Blocks that are not given back yet.
    pub(crate) fn num_held(&self) -> u64 {
        self.blocks.len() as u64 - u64::from(self.num_skipped)
    }

    /// Empty it; the next request finds its memory there.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        *self = Self { blocks: std::mem::take(&mut self.blocks), ..Self::default() };
    }
}
