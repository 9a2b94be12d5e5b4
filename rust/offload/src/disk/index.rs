//! [`Index`]: which chunk lies in which segment.

use hashbrown::HashTable;
use hybrid_blocks::Key;

use super::entry::Entry;

/// A slot of the index. Slot 0 is never used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) entry: Entry,
    pub(super) segment: u64,
    /// Whether it was read since it was written.
    pub(super) is_used: bool,
}

/// Entries by key. Those that were inserted in a row lie in a row, so a look-up of a run tries the next
/// slot first.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: Vec<Option<Held>>,
    vacant: Vec<u32>,
    table: HashTable<u32>,
}

fn hash_of(key: &Key) -> u64 {
    key.digest.prefix() ^ u64::from(key.group.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Index {
    pub(super) fn reserve(&mut self, additional: usize) {
        self.slots.reserve(additional + 1);
        let slots = &self.slots;
        self.table.reserve(additional, |&slot| Self::hash_of_slot(slots, slot));
    }

    fn hash_of_slot(slots: &[Option<Held>], slot: u32) -> u64 {
        slots[slot as usize].as_ref().map_or(0, |held| hash_of(&held.entry.key))
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Held> {
        self.slots.get(slot as usize)?.as_ref()
    }

    fn is(&self, slot: u32, key: &Key) -> bool {
        self.get(slot).is_some_and(|held| held.entry.key == *key)
    }

    #[inline(never)] // so that what is found in a row is found without a call
    pub(super) fn find(&self, key: &Key) -> Option<u32> {
        self.table.find(hash_of(key), |&slot| self.is(slot, key)).copied()
    }

    /// As [`Index::find`]; the slot after `previous` is tried first.
    #[inline]
    pub(super) fn find_after(&self, key: &Key, previous: u32) -> Option<u32> {
        let next = previous.wrapping_add(1);
        if self.is(next, key) { Some(next) } else { self.find(key) }
    }

    pub(super) fn mark_used(&mut self, slot: u32) {
        if let Some(Some(held)) = self.slots.get_mut(slot as usize) {
            held.is_used = true;
        }
    }

    /// Adds an entry, and removes an older one of its key. Returns its slot and the older one's
    /// segment.
    pub(super) fn insert(&mut self, entry: Entry, segment: u64) -> (u32, Option<(u32, u64)>) {
        let old = self.find(&entry.key).and_then(|slot| {
            let segment = self.get(slot)?.segment;
            self.remove(slot);
            Some((slot, segment))
        });
        if self.slots.is_empty() {
            self.slots.push(None);
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(Held { entry, segment, is_used: false });
        let slots = &self.slots;
        self.table
            .insert_unique(hash_of(&entry.key), slot, |&slot| Self::hash_of_slot(slots, slot));
        (slot, old)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Held> {
        let hash = Self::hash_of_slot(&self.slots, slot);
        let held = self.slots.get_mut(slot as usize)?.take()?;
        if let Ok(found) = self.table.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
        self.vacant.push(slot);
        Some(held)
    }

    /// Removes the given slots if they still belong to `segment`. The first is reused first.
    pub(super) fn remove_segment(&mut self, segment: u64, slots: &[u32]) {
        for &slot in slots.iter().rev() {
            if self.get(slot).is_some_and(|held| held.segment == segment) {
                self.remove(slot);
            }
        }
    }
}
