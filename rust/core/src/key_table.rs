//! A hash table of entries, a cache line a bucket.

/// Entries of a bucket.
const SLOTS: usize = 12;
const VACANT: u8 = 0;

/// How many entries went past a full bucket: eight counts of four bits, by three bits of the hash.
///
/// One count for all would make most searches go on in a table whose entries come and go: nearly
/// every second bucket has been passed by some entry. A count that is full is right no more and stays.
#[derive(Clone, Copy, Debug, Default)]
struct Passed(u32);

impl Passed {
    const CLASSES: u32 = 8;
    const FULL: u32 = 15;

    /// Not of the bits that choose the bucket or the tag.
    fn class(hash: u64) -> u32 {
        (hash >> 8) as u32 % Self::CLASSES
    }

    fn count(self, class: u32) -> u32 {
        self.0 >> (4 * class) & Self::FULL
    }

    #[inline]
    fn has_none_like(self, hash: u64) -> bool {
        self.count(Self::class(hash)) == 0
    }

    fn add(&mut self, hash: u64) {
        let class = Self::class(hash);
        if self.count(class) < Self::FULL {
            self.0 += 1 << (4 * class);
        }
    }

    fn subtract(&mut self, hash: u64) {
        let class = Self::class(hash);
        if self.count(class) < Self::FULL {
            self.0 -= 1 << (4 * class);
        }
    }
}

/// A bucket, and what is known of the entries beyond it that belong into an earlier one or into it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u8; SLOTS],
    passed: Passed,
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
/// were passed count it. A search ends at the first bucket that no entry of its class has passed, and a
/// removal only uncounts: nothing is moved, and there are no tombstones. A byte of the hash beside each
/// entry keeps a search from asking about most others. It costs 1.1 to 1.2 cache lines to find an entry,
/// to miss, to insert or to remove one, however long entries have come and gone.
#[derive(Debug)]
pub(crate) struct KeyTable {
    buckets: Vec<Bucket>,
    len: usize,
}

fn tag_of(hash: u64) -> u8 {
    (hash as u8).max(VACANT + 1)
}

impl Bucket {
    const EMPTY: Self = Self { tags: [VACANT; SLOTS], passed: Passed(0), entries: [0; SLOTS] };

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
            if bucket.passed.has_none_like(hash) {
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
            bucket.passed.add(hash);
            at = self.after(at);
        }
    }

    /// Remove the entry that is in `slot` and has this hash.
    #[inline]
    pub(crate) fn remove(&mut self, hash: u64, slot: Slot) {
        let mut at = self.home(hash);
        while at != slot.bucket {
            self.buckets[at].passed.subtract(hash);
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
        self.buckets[self.home(hash)].passed.0
    }

    /// Check the counts of passed entries, given every entry's hash.
    pub(crate) fn check(&self, hash_of: impl Fn(u32) -> u64) -> Result<(), String> {
        let mut passed = vec![[0; Passed::CLASSES as usize]; self.buckets.len()];
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
                    passed[from][Passed::class(hash) as usize] += 1;
                    from = self.after(from);
                }
                len += 1;
            }
        }
        for (at, (bucket, passed)) in self.buckets.iter().zip(&passed).enumerate() {
            for (class, &actual) in (0..).zip(passed) {
                let counted = bucket.passed.count(class);
                if counted != actual && counted != Passed::FULL {
                    return Err(format!(
                        "bucket {at} counts {counted} passed entries of class {class}, not {actual}"
                    ));
                }
            }
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

    /// In the long run, as in a cache that is full: as many come as go.
    #[test]
    fn searches_stay_short_while_entries_come_and_go() {
        const CAPACITY: u64 = 12_000;
        let hash = |entry: u64| xxhash_rust::xxh3::xxh3_64(&entry.to_le_bytes());
        let mut table = KeyTable::new(CAPACITY as usize);
        for entry in 0..8 * CAPACITY {
            table.insert(hash(entry), entry as u32);
            if let Some(gone) = entry.checked_sub(CAPACITY - 1) {
                let slot = table.find(hash(gone), |it| it == gone as u32);
                table.remove(hash(gone), slot.expect("it was inserted"));
            }
        }
        let num_asked = |entry: u64| {
            let mut at = table.home(hash(entry));
            let mut num = 1;
            while !table.buckets[at].passed.has_none_like(hash(entry)) {
                at = table.after(at);
                num += 1;
            }
            num
        };
        let absent = 8 * CAPACITY..9 * CAPACITY;
        let num_buckets: u32 = absent.map(num_asked).sum();
        let mean = f64::from(num_buckets) / CAPACITY as f64;
        assert!(mean < 1.3, "{mean} buckets");
    }

    proptest! {
        // So few hashes that buckets overflow, counts fill up, searches wrap around, and all of it
        // empties again all the time.
        #[test]
        fn a_table_is_a_map_whatever_the_hashes(
            changes in prop::collection::vec((0u32..48, 0u64..5, any::<bool>()), 1..400),
        ) {
            let mut table = KeyTable::new(48);
            let mut model = BTreeMap::new();
            for (entry, place, inserts) in changes {
                let hash = *model.get(&entry).unwrap_or(&(place << 61 | (place % 2) << 8 | place));
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
