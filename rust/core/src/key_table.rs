//! A hash table of entries, a cache line a bucket.

/// Entries of a bucket.
const SLOTS: usize = 12;
const VACANT: u8 = 0;

/// A bucket, and how many entries that belong into an earlier one are beyond it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u8; SLOTS],
    num_passed: u32,
    entries: [u32; SLOTS],
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    bucket: usize,
    slot: usize,
}

/// Entries, found by hashes that need not differ.
///
/// An entry lies in the bucket of its hash or, where that is full, in the next with room; buckets that
/// were passed count it. A search ends at the first bucket that no entry has passed, and a removal only
/// uncounts: nothing is moved, and there are no tombstones. A byte of the hash beside each entry keeps
/// a search from asking about most others. It costs one cache line to find, insert or remove.
#[derive(Debug)]
pub(crate) struct KeyTable {
    buckets: Vec<Bucket>,
    len: usize,
}

fn tag_of(hash: u64) -> u8 {
    (hash as u8).max(VACANT + 1)
}

impl Bucket {
    const EMPTY: Self = Self { tags: [VACANT; SLOTS], num_passed: 0, entries: [0; SLOTS] };

    /// The top bit of every byte that holds `tag`, a byte a slot.
    #[inline]
    fn alike(&self, tag: u8) -> u128 {
        const ONES: u128 = u128::from_le_bytes([1; 16]) >> 32;
        const TOPS: u128 = ONES << 7;
        let mut tags = [0; 16];
        tags[..SLOTS].copy_from_slice(&self.tags);
        let differ = u128::from_le_bytes(tags) ^ (ONES * u128::from(tag));
        // A byte's lower bits carry into its top bit unless they are all zero; none carries further.
        TOPS & !(((differ & !TOPS) + (TOPS - ONES)) | differ)
    }

    #[inline]
    fn vacant(&self) -> Option<usize> {
        let vacant = self.alike(VACANT);
        (vacant != 0).then(|| vacant.trailing_zeros() as usize / 8)
    }
}

impl KeyTable {
    /// An empty table that `capacity` entries fill to seven tenths.
    pub(crate) fn new(capacity: usize) -> Self {
        let num_buckets = (capacity * 10).div_ceil(7 * SLOTS).max(1);
        Self { buckets: vec![Bucket::EMPTY; num_buckets], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether searches are about to become slow.
    pub(crate) fn is_crowded(&self) -> bool {
        self.len * 4 > self.buckets.len() * SLOTS * 3
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 < self.buckets.len() { bucket + 1 } else { 0 }
    }

    /// Where the entry with this hash is of which `is_it` holds.
    #[expect(clippy::inline_always, reason = "a call costs as much as most searches")]
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<Slot> {
        let tag = tag_of(hash);
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            let mut alike = bucket.alike(tag);
            while alike != 0 {
                let slot = alike.trailing_zeros() as usize / 8;
                if is_it(bucket.entries[slot]) {
                    return Some(Slot { bucket: at, slot });
                }
                alike &= alike - 1;
            }
            if bucket.num_passed == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    #[inline]
    pub(crate) fn entry(&self, slot: Slot) -> u32 {
        self.buckets[slot.bucket].entries[slot.slot]
    }

    /// Put another entry with the same hash in the place of one.
    pub(crate) fn replace(&mut self, slot: Slot, entry: u32) {
        self.buckets[slot.bucket].entries[slot.slot] = entry;
    }

    /// Add an entry. There must be room: see [`KeyTable::is_crowded`].
    #[inline]
    pub(crate) fn insert(&mut self, hash: u64, entry: u32) {
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(slot) = bucket.vacant() {
                bucket.tags[slot] = tag_of(hash);
                bucket.entries[slot] = entry;
                self.len += 1;
                return;
            }
            bucket.num_passed += 1;
            at = self.after(at);
        }
    }

    /// Remove the entry that is in `slot` and has this hash.
    #[inline]
    pub(crate) fn remove(&mut self, hash: u64, slot: Slot) {
        let mut at = self.home(hash);
        while at != slot.bucket {
            self.buckets[at].num_passed -= 1;
            at = self.after(at);
        }
        self.buckets[at].tags[slot.slot] = VACANT;
        self.len -= 1;
    }

    /// All entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.buckets.iter().flat_map(|bucket| {
            let taken = bucket.tags.iter().zip(bucket.entries).filter(|(tag, _)| **tag != VACANT);
            taken.map(|(_, entry)| entry)
        })
    }

    pub(crate) fn clear(&mut self) {
        self.buckets.fill(Bucket::EMPTY);
        self.len = 0;
    }

    /// Heap bytes held.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Have what a search for this hash looks at fetched.
    #[inline]
    pub(crate) fn read_ahead(&self, hash: u64) -> u32 {
        self.buckets[self.home(hash)].num_passed
    }

    /// Check the counts of passed entries, given every entry's hash.
    pub(crate) fn check(&self, hash_of: impl Fn(u32) -> u64) -> Result<(), String> {
        let mut passed = vec![0; self.buckets.len()];
        let mut len = 0;
        for (at, bucket) in self.buckets.iter().enumerate() {
            for (&tag, &entry) in bucket.tags.iter().zip(&bucket.entries) {
                if tag == VACANT {
                    continue;
                }
                let hash = hash_of(entry);
                if tag != tag_of(hash) {
                    return Err(format!("entry {entry} of bucket {at} has the tag of another"));
                }
                let mut from = self.home(hash);
                while from != at {
                    passed[from] += 1;
                    from = self.after(from);
                }
                len += 1;
            }
        }
        if let Some(at) = (0..passed.len()).find(|&at| passed[at] != self.buckets[at].num_passed) {
            let counted = self.buckets[at].num_passed;
            return Err(format!("bucket {at} counts {counted} passed entries, not {}", passed[at]));
        }
        if len != self.len {
            return Err(format!("the table counts {} entries, not {len}", self.len));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
    }

    proptest! {
        // So few hashes that buckets overflow, wrap around and empty again all the time.
        #[test]
        fn a_table_is_a_map_whatever_the_hashes(
            changes in prop::collection::vec((0u32..48, 0u64..5, any::<bool>()), 1..400),
        ) {
            let mut table = KeyTable::new(48);
            let mut model = BTreeMap::new();
            for (entry, place, inserts) in changes {
                let hash = *model.get(&entry).unwrap_or(&(place << 61 | place));
                let found = table.find(hash, |it| it == entry);
                prop_assert_eq!(found.is_some(), model.contains_key(&entry));
                match found {
                    None if inserts => {
                        table.insert(hash, entry);
                        model.insert(entry, hash);
                    }
                    Some(slot) if !inserts => {
                        prop_assert_eq!(table.entry(slot), entry);
                        table.remove(hash, slot);
                        model.remove(&entry);
                    }
                    _ => {}
                }
                let hashes = model.clone();
                prop_assert_eq!(table.check(|entry| hashes[&entry]), Ok(()));
                let mut entries: Vec<_> = table.iter().collect();
                entries.sort_unstable();
                prop_assert!(entries.iter().eq(model.keys()));
            }
        }
    }
}
