//! [`Tier`]: what a look-up asks of host memory, of a disk and of a store of objects.

use hybrid_blocks::{BlockId, Key, RunCursor};

/// The last two slots that a run of look-ups found in a tier. It makes answers faster where keys were
/// stored in a row, and never changes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Previous([BlockId; 2]);

impl Previous {
    /// Moves on to the slot found next.
    pub fn step(&mut self, slot: BlockId) {
        self.0 = [self.0[1], slot];
    }

    /// The slot found last, or the null block.
    #[must_use]
    pub fn last(self) -> BlockId {
        self.0[1]
    }

    /// The same place in a run over a prefix index.
    #[must_use]
    pub fn cursor(self) -> RunCursor {
        RunCursor::of(&self.0)
    }
}

/// A tier that knows which keys it holds, in memory: an answer reads no data.
pub trait Tier {
    /// The slot that holds `key`. `previous` are the slots that held the preceding keys of the same group.
    fn find(&self, key: &Key, previous: Previous) -> Option<BlockId>;
}
