//! [`KeyTable`]: a hash table of 32-bit entries whose buckets are cache lines.

/// Entries of a bucket.
const SLOTS: usize = 12;
const VACANT: u8 = 0;

/// How many entries passed a bucket because it was full: eight counters of four bits each.
///
/// Three bits of an entry's hash choose its counter. A search goes on to the next bucket only if the
/// counter of its own hash is above 0. With one counter a bucket, nearly every second search would go
/// on: in a cache that has been full for long, some entry has passed almost half of all buckets.
///
/// A counter that reaches 15 may have missed entries, so it stays at 15 until the table is cleared.
#[derive(Clone, Copy, Debug, Default)]
struct Passed(u32);

impl Passed {
    const CLASSES: u32 = 8;
    const FULL: u32 = 15;

    /// The counter for a hash. Other bits of the hash choose the bucket and the tag.
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

/// 64 bytes: 12 entries, a tag byte for each, and the counters of the entries that passed it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u8; SLOTS],
    passed: Passed,
    entries: [u32; SLOTS],
}

/// The place of an entry in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    bucket: usize,
    slot: usize,
}

/// A set of entries, found by their hashes. Different entries may have the same hash.
///
/// An entry lies in the bucket of its hash. If that bucket is full, it lies in the next one with room,
/// and every full bucket on the way counts it ([`Passed`]). A search ends at the first bucket whose
/// counter for its hash is 0. A removal decrements those counters: it moves no entry and leaves no
/// tombstone.
///
/// Each entry has a tag, one byte of its hash, so a search compares almost no wrong entry. A search,
/// an insertion or a removal reads 1.1 to 1.2 cache lines on average, also in a table whose entries
/// have come and gone for long.
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

    /// A mask with one byte a slot, whose top bit is set where the slot has this tag.
    #[inline]
    fn alike(&self, tag: u8) -> u128 {
        const ONES: u128 = u128::from_le_bytes([1; 16]) >> 32;
        const TOPS: u128 = ONES << 7;
        let mut tags = [0; 16];
        tags[..SLOTS].copy_from_slice(&self.tags);
        let differ = u128::from_le_bytes(tags) ^ (ONES * u128::from(tag));
        // The addition sets a byte's top bit unless its lower bits are all 0, and never carries out of
        // the byte.
        TOPS & !(((differ & !TOPS) + (TOPS - ONES)) | differ)
    }

    /// Whether any slot has this tag.
    #[inline]
    fn has_alike(&self, tag: u8) -> bool {
        const ONES: u64 = u64::from_le_bytes([1; 8]);
        // A byte's top bit is set where it is the lowest that is 0, and nowhere if none is.
        let zeros = |bytes: u64| bytes.wrapping_sub(ONES) & !bytes & ONES << 7;
        let differ = |tags: Option<&[u8; 8]>| {
            u64::from_le_bytes(*tags.unwrap_or(&[VACANT; 8])) ^ (ONES * u64::from(tag))
        };
        // The middle four are looked at twice.
        zeros(differ(self.tags.first_chunk())) | zeros(differ(self.tags.last_chunk())) != 0
    }

    #[inline]
    fn vacant(&self) -> Option<usize> {
        let vacant = self.alike(VACANT);
        (vacant != 0).then(|| vacant.trailing_zeros() as usize / 8)
    }
}

impl KeyTable {
    /// An empty table; `capacity` entries fill 70 % of it.
    pub(crate) fn new(capacity: usize) -> Self {
        let num_buckets = (capacity * 10).div_ceil(7 * SLOTS).max(1);
        Self { buckets: vec![Bucket::EMPTY; num_buckets], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether more than 75 % of the slots are taken. Searches become slow above that.
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

    /// The place of the entry that has this hash and passes `is_it`.
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

    /// Whether an entry may have this hash, as far as the first bucket of a search tells.
    #[inline]
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        let bucket = &self.buckets[self.home(hash)];
        bucket.has_alike(tag_of(hash)) | !bucket.passed.has_none_like(hash)
    }

    #[inline]
    pub(crate) fn entry(&self, slot: Slot) -> u32 {
        self.buckets[slot.bucket].entries[slot.slot]
    }

    /// Replaces an entry by another one with the same hash.
    pub(crate) fn replace(&mut self, slot: Slot, entry: u32) {
        self.buckets[slot.bucket].entries[slot.slot] = entry;
    }

    /// Adds an entry. The table must have a vacant slot: see [`KeyTable::is_crowded`].
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

    /// Adds an entry if the bucket of its hash has room and tells that no other entry has this hash, as
    /// most do. Returns whether it was added.
    #[inline]
    pub(crate) fn insert_if_alone(&mut self, hash: u64, entry: u32) -> bool {
        let (home, tag) = (self.home(hash), tag_of(hash));
        let bucket = &mut self.buckets[home];
        let is_alone = bucket.passed.has_none_like(hash) && bucket.alike(tag) == 0;
        let Some(slot) = bucket.vacant().filter(|_| is_alone) else { return false };
        bucket.tags[slot] = tag;
        bucket.entries[slot] = entry;
        self.len += 1;
        true
    }

    /// Removes the entry in `slot`, whose hash this is.
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

    /// Reads the first bucket of a search, so that it is in the CPU's cache when it is needed.
    #[inline]
    pub(crate) fn read_ahead(&self, hash: u64) -> u32 {
        self.buckets[self.home(hash)].passed.0
    }

    /// Checks tags, counters and length, given every entry's hash.
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

    /// As many entries come as go, as in a cache that is full.
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
        let absent = 8 * CAPACITY..9 * CAPACITY;
        let num_unsure = absent.filter(|&entry| table.may_hold(hash(entry))).count();
        assert!(num_unsure as u64 * 5 < CAPACITY, "{num_unsure} of {CAPACITY}");
    }

    #[test]
    fn a_wrong_tag_counter_or_length_is_noticed() {
        // 20 entries of one hash fill a bucket and a part of the next.
        let table = || {
            let mut table = KeyTable::new(48);
            (0..20).for_each(|entry| table.insert(7, entry));
            table
        };
        let hash_of = |_| 7;
        assert_eq!(table().check(hash_of), Ok(()));
        let changes: [fn(&mut KeyTable); 5] = [
            |table| table.buckets[0].tags[3] += 1,
            |table| table.buckets[1].tags[3] = VACANT,
            |table| table.buckets[0].passed = Passed(0),
            |table| table.buckets[1].passed.add(7),
            |table| table.len += 1,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut table = table();
            change(&mut table);
            assert!(table.check(hash_of).is_err(), "change {number}");
        }
        assert!(table().check(|_| 1 << 63).is_err());
    }

    proptest! {
        // With five hashes, buckets overflow, counters reach 15 and searches wrap around, and the table
        // empties again and again.
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
                prop_assert!(table.may_hold(hash) || found.is_none());
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
