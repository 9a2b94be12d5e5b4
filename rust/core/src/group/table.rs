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

    /// Returns the record of a moving state, empty if it never moved.
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

    /// Empties it for the next request.
    pub(crate) fn clear(&mut self) {
        empty(&mut self.blocks);
        *self = Self { blocks: std::mem::take(&mut self.blocks), ..Self::default() };
    }
}

/// Entries that an empty list keeps room for.
const MOST_KEPT: usize = 1024;

/// Empties a list that the next request finds. The memory of a long one is given back: requests use
/// the rows in turn, so that in time each would keep room for the longest.
pub(crate) fn empty<T>(list: &mut Vec<T>) {
    list.clear();
    list.shrink_to(MOST_KEPT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_table_keeps_the_memory_of_a_short_request_only() {
        for (len, kept) in [(1_000, 1_000), (100_000, MOST_KEPT)] {
            let mut table = Table { blocks: vec![BlockId(1); len], ..Table::default() };
            table.clear();
            assert!(table.blocks.is_empty());
            assert_eq!(table.blocks.capacity(), kept);
        }
    }
}
