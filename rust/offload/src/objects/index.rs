//! [`ObjectIndex`]: which objects are there, as far as is known.

use hybrid_blocks::Key;
use rustc_hash::FxHashMap as HashMap;

/// The known state of an object.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The object is there. The number is that of the last listing that saw it, or began after it was
    /// written.
    There(u32),
    /// A read found damage. The next store writes it again.
    Damaged,
}

/// Names of objects; about 60 bytes of memory each.
#[derive(Debug, Default)]
pub(super) struct ObjectIndex {
    objects: HashMap<Key, State>,
    listing: u32,
}

impl ObjectIndex {
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        matches!(self.objects.get(key), Some(State::There(_)))
    }

    pub(super) fn is_damaged(&self, key: &Key) -> bool {
        matches!(self.objects.get(key), Some(State::Damaged))
    }

    /// Notes an object that was written.
    pub(super) fn insert(&mut self, key: &Key) {
        self.objects.insert(*key, State::There(self.listing));
    }

    /// Notes an object that a listing saw. A damaged one stays damaged.
    pub(super) fn see(&mut self, key: &Key) {
        let state = self.objects.entry(*key).or_insert(State::There(self.listing));
        if let State::There(listing) = state {
            *listing = self.listing;
        }
    }

    pub(super) fn mark_damaged(&mut self, key: &Key) {
        self.objects.insert(*key, State::Damaged);
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.objects.remove(key);
    }

    pub(super) fn begin_listing(&mut self) {
        self.listing = self.listing.wrapping_add(1);
    }

    /// Forgets what the listing did not see.
    pub(super) fn end_listing(&mut self) {
        let now = self.listing;
        self.objects.retain(|_, state| match state {
            State::There(listing) => *listing == now,
            State::Damaged => true,
        });
    }
}
