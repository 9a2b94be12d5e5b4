//! [`Tier`]: what a look-up asks of host memory, of a disk and of a store of objects.

use hybrid_blocks::{BlockId, Key};

use super::outcome::Load;

/// The most tiers that one look-up can ask.
pub(super) const MAX_TIERS: usize = 8;

/// The place of a run of look-ups in a tier. Answers are faster where keys were stored in a row, and never change.
pub use hybrid_blocks::RunCursor as Previous;

/// A tier that knows which keys it holds, in memory: an answer reads no data.
pub trait Tier {
    /// The slot that holds `key`. `previous` are the slots that held the preceding keys of the same group.
    fn find(&self, key: &Key, previous: Previous) -> Option<BlockId>;

    /// Finds all chunks of a row that lie [`Load::NOWHERE`] yet, as [`Tier::find`] would one after
    /// the other. Notes slot and `tier` of those that are here, and returns their number.
    ///
    /// One call for many keys: each tier has this loop of its own, with its `find` in it.
    fn find_row(&self, row: &mut [Load], tier: u8, previous: &mut Previous) -> usize {
        let mut num_found = 0;
        for load in row.iter_mut().filter(|load| load.tier == Load::NOWHERE) {
            if let Some(slot) = self.find(&load.key, *previous) {
                previous.step(slot);
                (load.tier, load.slot) = (tier, slot);
                num_found += 1;
            }
        }
        num_found
    }
}
