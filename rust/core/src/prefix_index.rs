//! [`PrefixIndex`]: which block holds the content that a digest names.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::error::ensure;
use crate::ids::{BlockId, GroupId};
use crate::key_table::{KeyTable, Slot};
use hybrid_blocks_hash::Digest;

/// The name of a block's content: the digest of all tokens up to the block's end, and the group whose
/// layers wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Chained digest of the block.
    pub digest: Digest,
    /// Group of the block.
    pub group: GroupId,
}

/// Fields of a block's first key beside its digest. An array, because the allocator gives zeroed arrays without
/// writing them: an index of a million blocks is made in microseconds.
type KeyMeta = [u32; 3];
/// Field of a [`KeyMeta`]: the group plus 1, or 0 if the block has no key.
const GROUP: usize = 0;
const NO_GROUP: u32 = 0;
/// Field of a [`KeyMeta`]: the tokens up to the block's end.
const TOKENS: usize = 1;
/// Field of a [`KeyMeta`]: the block that was inserted right after this one.
const SUCCESSOR: usize = 2;
/// Mark in the successor field: another block has carried the same first key for longer.
const WAITS: u32 = 1 << 31;

/// A place in a run of look-ups: the block found last, and its distance from the one before.
///
/// Blocks are mostly handed out in runs, such as 7, 8, 9. After 7 and 8, the cursor guesses 9.
/// The default is the start of a run, where nothing was found yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCursor {
    previous: BlockId,
    stride: u32,
}

impl RunCursor {
    /// The place after blocks that were found one after the other.
    #[inline]
    pub fn of(found: &[BlockId]) -> Self {
        let mut cursor = Self::default();
        found[found.len().saturating_sub(2)..].iter().for_each(|&block| cursor.step(block));
        cursor
    }

    /// Moves on to the block found next.
    #[inline]
    pub fn step(&mut self, block: BlockId) {
        self.stride = block.0.wrapping_sub(self.previous.0);
        self.previous = block;
    }

    /// The block found last, or the null block.
    #[inline]
    pub fn last(self) -> BlockId {
        self.previous
    }
}

/// The outcome of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The block carried the key already.
    Known,
    /// No other block carries the key.
    Sole,
    /// Another block has carried the key for longer and is the one that look-ups find.
    Waits,
}

/// A further key of a block that has one already.
#[derive(Clone, Copy, Debug)]
struct ExtraKey {
    key: Key,
    block: u32,
}

/// A map from keys to blocks.
///
/// A block's first key is stored in arrays indexed by block id; a block seldom has a second one. The
/// table holds *entries*: with 100 blocks, entry 7 is the first key of block 7, and entry 103 is the
/// fourth of the extra keys.
///
/// Two keys are equal only if all 256 bits of the digest and the group are: another tenant's content is
/// never found. Several blocks can carry one key; the table holds the oldest, the others wait in a
/// queue beside it.
///
/// Look-ups mostly ask for content in the order in which it was inserted. So each block remembers
/// the block inserted after it, and a look-up tries that one first.
///
/// 51.6 bytes a block: digest 32, group, tokens and successor 4 each, and 1.43 table slots of 5.3.
#[derive(Debug)]
pub struct PrefixIndex {
    digests: Vec<[u8; Digest::MAX_LEN]>,
    meta: Vec<KeyMeta>,
    /// Number of distinct keys.
    table: KeyTable,
    /// Later entries with the same key, by the entry that is in the table.
    duplicates: FxHashMap<u32, VecDeque<u32>>,
    extra: Slab<ExtraKey>,
    /// A block's entries in `extra`, oldest first.
    extra_of: FxHashMap<u32, Vec<u32>>,
}

/// The first eight bytes of the digest, which are uniform. The group is mixed in, so that the same
/// digest in two groups gives two hashes.
#[inline]
fn hash_of(key: &Key) -> u64 {
    key.digest.prefix() ^ u64::from(key.group.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl PrefixIndex {
    /// An empty index for block ids below `num_blocks`.
    pub fn new(num_blocks: u32) -> Self {
        let num_blocks = num_blocks as usize;
        Self {
            digests: vec![[0; Digest::MAX_LEN]; num_blocks],
            meta: vec![[0; 3]; num_blocks],
            table: KeyTable::new(num_blocks),
            duplicates: FxHashMap::default(),
            extra: Slab::new(),
            extra_of: FxHashMap::default(),
        }
    }

    /// Returns the number of distinct keys.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no content is known.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    fn extra_entry(&self, entry: u32) -> Option<&ExtraKey> {
        self.extra.get((entry as usize).checked_sub(self.digests.len())?)
    }

    #[inline]
    fn entry_is(&self, entry: u32, key: &Key) -> bool {
        match self.digests.get(entry as usize) {
            Some(digest) => {
                digest == key.digest.as_bytes()
                    && self.meta[entry as usize][GROUP] == key.group.0 + 1
            }
            None => self.extra_entry(entry).is_some_and(|extra| extra.key == *key),
        }
    }

    fn key_of(&self, entry: u32) -> Option<Key> {
        match self.digests.get(entry as usize) {
            Some(&digest) => {
                let group = self.meta[entry as usize][GROUP].checked_sub(1)?;
                Some(Key { digest: digest.into(), group: GroupId(group) })
            }
            None => self.extra_entry(entry).map(|extra| extra.key),
        }
    }

    #[inline]
    fn block_of(&self, entry: u32) -> BlockId {
        BlockId(self.extra_entry(entry).map_or(entry, |extra| extra.block))
    }

    /// The place of the oldest entry with this key.
    #[expect(clippy::inline_always, reason = "a call costs as much as most searches")]
    #[inline(always)]
    fn find(&self, key: &Key) -> Option<Slot> {
        self.table.find(hash_of(key), |entry| self.entry_is(entry, key))
    }

    /// The block that has carried `key` longest.
    #[inline]
    pub fn get(&self, key: &Key) -> Option<BlockId> {
        self.find(key).map(|slot| self.block_of(self.table.entry(slot)))
    }

    /// Whether a block may carry `key`: `false` only if none does. Of 20 keys that no block
    /// carries, about one gets `true`. It does not branch, so the processor runs many of these
    /// searches side by side.
    #[inline]
    pub fn may_hold(&self, key: &Key) -> bool {
        self.table.may_hold(hash_of(key))
    }

    /// Reads what a search for `key` looks at first, so that it is in the CPU's cache then.
    #[inline]
    pub(crate) fn read_ahead(&self, key: &Key) -> u32 {
        self.table.read_ahead(hash_of(key))
    }

    /// Reads what the removal of a block's first key looks at first.
    #[inline]
    pub(crate) fn read_ahead_of(&self, block: BlockId) -> u32 {
        self.first_key(block).map_or(0, |(key, _)| self.read_ahead(&key))
    }

    /// As [`PrefixIndex::get`], after the look-ups of `cursor`. It is faster where this content was
    /// inserted after theirs; the result is the same.
    #[expect(clippy::inline_always, reason = "a call costs as much as a guess that is right")]
    #[inline(always)]
    pub fn get_after(&self, cursor: RunCursor, key: &Key) -> Option<BlockId> {
        // The guess needs no memory access, so its check starts before the successor has been read.
        let guess = cursor.previous.0.wrapping_add(cursor.stride);
        if self.is_oldest(guess, key) {
            return Some(BlockId(guess));
        }
        self.get_after_jump(cursor, key)
    }

    /// As [`PrefixIndex::get_after`], where the guess was wrong.
    #[inline(never)]
    fn get_after_jump(&self, cursor: RunCursor, key: &Key) -> Option<BlockId> {
        let next = self.meta[cursor.previous.index()][SUCCESSOR] & !WAITS;
        if self.is_oldest(next, key) { Some(BlockId(next)) } else { self.get(key) }
    }

    /// The blocks of `keys`, up to the first key that no block carries.
    #[inline]
    pub fn get_run(&self, keys: impl Iterator<Item = Key>) -> impl Iterator<Item = BlockId> {
        let mut cursor = RunCursor::default();
        keys.map_while(move |key| {
            let block = self.get_after(cursor, &key)?;
            cursor.step(block);
            Some(block)
        })
    }

    /// Whether `key` is the first key of this block and no other block has carried it longer.
    #[inline]
    fn is_oldest(&self, block: u32, key: &Key) -> bool {
        let Some(&[group, _, successor]) = self.meta.get(block as usize) else { return false };
        group == key.group.0 + 1
            && successor & WAITS == 0
            && self.digests[block as usize] == *key.digest.as_bytes()
    }

    /// Remembers that `block` was inserted after `previous`.
    pub fn follow(&mut self, previous: BlockId, block: BlockId) {
        let successor = &mut self.meta[previous.index()][SUCCESSOR];
        *successor = (*successor & WAITS) | block.0;
    }

    /// Marks whether another block has carried a block's first key for longer.
    fn set_waits(&mut self, entry: u32, waits: bool) {
        if let Some([.., successor]) = self.meta.get_mut(entry as usize) {
            *successor = (*successor & !WAITS) | if waits { WAITS } else { 0 };
        }
    }

    /// Entries that carry `key`, oldest first.
    fn entries(&self, key: &Key) -> impl Iterator<Item = u32> + '_ {
        let first = self.find(key).map(|slot| self.table.entry(slot));
        let later = first.and_then(|entry| self.duplicates.get(&entry));
        first.into_iter().chain(later.into_iter().flatten().copied())
    }

    /// Whether this very block carries `key`.
    pub fn contains(&self, key: &Key, block: BlockId) -> bool {
        self.entries(key).any(|entry| self.block_of(entry) == block)
    }

    /// Blocks that carry `key`, oldest first.
    pub fn blocks(&self, key: &Key) -> impl Iterator<Item = BlockId> + '_ {
        self.entries(key).map(|entry| self.block_of(entry))
    }

    /// The block's first key, and how many tokens it stands for.
    #[inline]
    pub fn first_key(&self, block: BlockId) -> Option<(Key, u32)> {
        let &[group, num_tokens, _] = self.meta.get(block.index())?;
        (group != NO_GROUP).then(|| {
            let digest = self.digests[block.index()].into();
            (Key { digest, group: GroupId(group - 1) }, num_tokens)
        })
    }

    /// The keys of a block after its first, oldest first.
    pub fn further_keys(&self, block: BlockId) -> impl Iterator<Item = Key> + '_ {
        let entries = self.extra_of.get(&block.0).map_or(&[][..], Vec::as_slice);
        entries.iter().filter_map(|&entry| self.key_of(entry))
    }

    /// Lets `block` be found under `key`.
    #[inline]
    pub(crate) fn insert(&mut self, block: BlockId, key: &Key, num_tokens: u32) -> Inserted {
        let meta = &mut self.meta[block.index()];
        if meta[GROUP] != NO_GROUP {
            return self.insert_further(block, key);
        }
        meta[GROUP] = key.group.0 + 1;
        meta[TOKENS] = num_tokens;
        self.digests[block.index()] = *key.digest.as_bytes();
        self.place(key, block.0)
    }

    #[cold]
    #[inline(never)]
    fn insert_further(&mut self, block: BlockId, key: &Key) -> Inserted {
        if self.entry_is(block.0, key) || self.contains(key, block) {
            return Inserted::Known;
        }
        let extra = self.extra.insert(ExtraKey { key: *key, block: block.0 });
        let entry = (self.digests.len() + extra) as u32;
        self.extra_of.entry(block.0).or_default().push(entry);
        self.place(key, entry)
    }

    #[inline]
    fn place(&mut self, key: &Key, entry: u32) -> Inserted {
        let inserted = if self.table.insert_if_alone(hash_of(key), entry) {
            Inserted::Sole
        } else {
            self.place_beside(key, entry)
        };
        if self.table.is_crowded() {
            self.grow();
        }
        inserted
    }

    /// Puts an entry into the queue behind the one in the table that has the same key, or else into the
    /// table.
    #[cold]
    #[inline(never)]
    fn place_beside(&mut self, key: &Key, entry: u32) -> Inserted {
        // This cannot find `entry` itself: its key is stored already, but the table does not hold it.
        let Some(slot) = self.find(key) else {
            self.table.insert(hash_of(key), entry);
            return Inserted::Sole;
        };
        self.duplicates.entry(self.table.entry(slot)).or_default().push_back(entry);
        self.set_waits(entry, true);
        Inserted::Waits
    }

    #[cold]
    fn grow(&mut self) {
        let mut table = KeyTable::new(self.table.len() + self.table.len() / 4);
        for entry in self.table.iter() {
            if let Some(key) = self.key_of(entry) {
                table.insert(hash_of(&key), entry);
            }
        }
        self.table = table;
    }

    /// Removes all keys of `block` and appends them to `removed`, the first key first.
    pub fn remove_block(&mut self, block: BlockId, removed: &mut Vec<Key>) {
        let Some((key, _)) = self.first_key(block) else { return };
        self.displace(&key, block.0);
        self.set_waits(block.0, false);
        self.meta[block.index()][GROUP] = NO_GROUP;
        removed.push(key);
        if self.extra_of.is_empty() {
            return;
        }
        for entry in self.extra_of.remove(&block.0).unwrap_or_default() {
            let at = entry as usize - self.digests.len();
            let key = self.extra[at].key;
            self.displace(&key, entry);
            self.extra.remove(at);
            removed.push(key);
        }
    }

    /// Gives all keys of `from` to `to`, which has none. They count as inserted now.
    pub fn move_keys(&mut self, from: BlockId, to: BlockId) {
        debug_assert!(self.first_key(to).is_none());
        let Some((_, num_tokens)) = self.first_key(from) else { return };
        let mut keys = Vec::new();
        self.remove_block(from, &mut keys);
        for key in keys {
            self.insert(to, &key, num_tokens);
        }
    }

    /// Takes an entry out of the table or out of the queue of its key.
    fn displace(&mut self, key: &Key, entry: u32) {
        let Some(slot) = self.find(key) else { return };
        let head = self.table.entry(slot);
        if self.duplicates.is_empty() || !self.duplicates.contains_key(&head) {
            debug_assert_eq!(head, entry);
            self.table.remove(hash_of(key), slot);
            return;
        }
        let mut later = self.duplicates.remove(&head).unwrap_or_default();
        let head = if head == entry {
            let next = later.pop_front().unwrap_or(entry);
            self.table.replace(slot, next);
            self.set_waits(next, false);
            next
        } else {
            if let Some(at) = later.iter().position(|&other| other == entry) {
                later.remove(at);
            }
            head
        };
        if !later.is_empty() {
            self.duplicates.insert(head, later);
        }
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.meta.fill([0; 3]);
        self.table.clear();
        self.duplicates.clear();
        self.extra.clear();
        self.extra_of.clear();
    }

    /// Heap bytes held, but for duplicates and extra keys.
    pub fn memory_bytes(&self) -> usize {
        self.digests.len() * (Digest::MAX_LEN + size_of::<KeyMeta>()) + self.table.memory_bytes()
    }

    /// Walks everything; an error describes the first contradiction.
    /// A block must be hashed exactly when it has a key.
    pub(crate) fn check(&self, is_hashed: impl Fn(BlockId) -> bool) -> Result<(), String> {
        for block in (1..self.meta.len() as u32).map(BlockId) {
            ensure!(
                is_hashed(block) == self.first_key(block).is_some(),
                "block {block}: pool and index disagree on its keys"
            );
        }
        let mut num_entries = 0;
        for head in self.table.iter() {
            let Some(key) = self.key_of(head) else {
                return Err(format!("the table holds a dead entry {head}"));
            };
            for entry in self.entries(&key) {
                num_entries += 1;
                ensure!(self.entry_is(entry, &key), "entry {entry} is found by the key of another");
                let waits = self.meta.get(entry as usize).map(|meta| meta[SUCCESSOR] & WAITS != 0);
                ensure!(
                    waits.is_none_or(|waits| waits == (entry != head)),
                    "entry {entry} behind {head} is marked {waits:?}"
                );
            }
        }
        self.table.check(|entry| self.key_of(entry).map_or(0, |key| hash_of(&key)))?;
        let first = self.meta.iter().filter(|meta| meta[GROUP] != NO_GROUP).count();
        let further = self.extra.len();
        ensure!(
            num_entries == first + further,
            "{num_entries} entries; kept as {first} + {further}"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> Key {
        Key { digest: Digest::from([number; 32]), group: GroupId(u32::from(number)) }
    }

    /// Blocks 1 to 3 carry key 1, block 1 for longest; block 3 carries key 2 too, and block 4 key
    /// 3.
    fn index() -> PrefixIndex {
        let mut index = PrefixIndex::new(6);
        for (block, number) in [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3)] {
            index.insert(BlockId(block), &key(number), 16);
        }
        index
    }

    fn check(index: &PrefixIndex) -> Result<(), String> {
        index.check(|block| (1..=4).contains(&block.0))
    }

    #[test]
    fn a_wrong_entry_is_noticed() {
        assert_eq!(check(&index()), Ok(()));
        for block in 1..=4 {
            let changes: [fn(&mut PrefixIndex, usize); 4] = [
                |index, block| index.digests[block][0] ^= 1,
                |index, block| index.meta[block][GROUP] += 1,
                |index, block| index.meta[block][GROUP] = NO_GROUP,
                |index, block| index.meta[block][SUCCESSOR] ^= WAITS,
            ];
            for (number, change) in changes.into_iter().enumerate() {
                let mut index = index();
                change(&mut index, block);
                assert!(check(&index).is_err(), "change {number} of block {block}");
            }
        }
    }

    #[test]
    fn what_the_lists_beside_the_table_miss_is_noticed() {
        let changes: [fn(&mut PrefixIndex); 4] = [
            |index| index.duplicates.clear(),
            |index| index.extra.clear(),
            |index| index.table.clear(),
            |index| index.meta[5][GROUP] = 1,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut index = index();
            change(&mut index);
            assert!(check(&index).is_err(), "change {number}");
        }
        assert!(index().check(|_| true).is_err());
    }

    #[test]
    fn a_guess_serves_a_run_only_where_it_was_inserted_in_a_row() {
        let mut index = index();
        index.follow(BlockId(4), BlockId(1));
        for blocks in [&[][..], &[4], &[4, 1], &[3, 4], &[2, 3], &[0, 1]] {
            let cursor = RunCursor::of(&blocks.iter().copied().map(BlockId).collect::<Vec<_>>());
            let found = [1, 2, 3, 4].map(|number| index.get_after(cursor, &key(number)));
            let expected = [Some(BlockId(1)), Some(BlockId(3)), Some(BlockId(4)), None];
            assert_eq!(found, expected, "after {blocks:?}");
        }
        let keys = [1, 2, 4, 3].map(key).into_iter();
        assert_eq!(index.get_run(keys).collect::<Vec<_>>(), [BlockId(1), BlockId(3)]);
    }

    #[test]
    fn a_block_with_a_thousand_keys_makes_the_table_grow_by_a_quarter_at_a_time() {
        let mut index = PrefixIndex::new(2);
        for number in 0..1_000u32 {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&number.wrapping_mul(0x9E37_79B9).to_le_bytes());
            bytes[4..8].copy_from_slice(&number.wrapping_mul(0x85EB_CA6B).to_be_bytes());
            index.insert(BlockId(1), &Key { digest: Digest::from(bytes), group: GroupId(0) }, 16);
            assert!(!index.table.is_crowded());
        }
        assert_eq!((index.len(), index.check(|block| block.0 == 1)), (1_000, Ok(())));
        let bytes = index.table.memory_bytes();
        assert!(bytes < 10_000, "{bytes} bytes");
    }
}
