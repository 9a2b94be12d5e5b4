//! Units that go for one store, until it is known whether that helps.

use hybrid_blocks::Store;

use super::tier::HostTier;
use super::units::Change;

impl HostTier {
    /// Evicts what is needed least: a leaf without an end, an end that was left behind, or the unit of the
    /// lowest priority. Its slots can still be found until others are stored over them. `false` if everything is pinned.
    pub fn evict_one(&mut self) -> bool {
        self.evict_more(&mut Vec::new())
    }

    /// As [`HostTier::evict_one`], to be undone if it does not help.
    pub(super) fn evict_more(&mut self, changes: &mut Vec<Change>) -> bool {
        let slots = self.units.evict(changes);
        let is_some = slots.is_some();
        self.release(&slots.unwrap_or_default());
        is_some
    }

    /// Gives units their slots back; none was taken since. Those of a failed copy held nothing and
    /// stay free.
    pub(super) fn undo(&mut self, changes: Vec<Change>) {
        for mut change in changes.into_iter().rev() {
            let mut is_kept = |(pool, slot)| {
                self.store.pool(pool).is_hashed(slot) && self.store.touch(pool, slot).is_ok()
            };
            match &mut change {
                Change::Unit(_, unit) => {
                    unit.path.retain(|&(_, slot)| is_kept(slot));
                    unit.end.retain(|&slot| is_kept(slot));
                }
                Change::End(_, end) => end.retain(|&slot| is_kept(slot)),
                Change::Parent(..) => {}
            }
            self.units.undo(change);
        }
    }
}
