//! The prefix index: which block holds the content that a digest names.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::digest::Digest;
use crate::ids::{BlockId, GroupId};

/// What a block's content is known under: the digest of all tokens up to its end, and the group
/// whose layers it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Chained digest.
    pub digest: Digest,
    /// Group.
    pub group: GroupId,
}

/// A block without key; else its group and 1, so that fresh memory needs no writing.
const NO_GROUP: u16 = 0;
const VACANT: u8 = 0;
/// Tags looked at together, as the bytes of one word.
const WINDOW: usize = 8;
/// In [`PrefixIndex::successor`]: the block itself waits behind one with the same first key.
const WAITS: u32 = 1 << 31;

/// What came of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The block carried the key already.
    Known,
    /// No other block carries the key.
    Sole,
    /// Other blocks carried the key before.
    Waits,
}

/// A further key of a block that has one already.
#[derive(Clone, Copy, Debug)]
struct ExtraKey {
    key: Key,
    block: u32,
}

/// Keys to blocks, by open addressing.
///
/// A block's first key is stored once, in arrays indexed by block id. The table holds *entries*: an
/// entry below the number of blocks is that block's first key, one above it an extra key. Linear
/// probing, eight one-byte tags at a time, finds an entry, the full digest and group confirm it;
/// nothing is ever taken for equal on fewer bits. Deletion shifts back, so there are no tombstones.
/// Blocks that share a key with an earlier block wait outside the table, in insertion order.
///
/// Content that was entered in a row is mostly looked for in a row, so each block remembers the one
/// entered after it; the guess is confirmed by the digest like any other.
///
/// 49.5 bytes a block: digest 32, group 2, tokens 4, successor 4, and 1.5 table slots of 5.
#[derive(Debug)]
pub struct PrefixIndex {
    digests: Vec<[u8; Digest::MAX_LEN]>,
    groups: Vec<u16>,
    num_tokens: Vec<u32>,
    successor: Vec<u32>,
    /// One a slot, and the first ones again, for windows that begin near the end.
    tags: Vec<u8>,
    slots: Vec<u32>,
    /// Slots in use, that is distinct keys.
    num_keys: usize,
    /// By the entry in the table: later entries with the same key.
    duplicates: FxHashMap<u32, VecDeque<u32>>,
    extra: Vec<Option<ExtraKey>>,
    vacant_extra: Vec<u32>,
    /// By block: its entries in `extra`, oldest first.
    extra_of: FxHashMap<u32, Vec<u32>>,
}

fn tag_of(key: &Key) -> u8 {
    key.digest.prefix() as u8 | 1
}

/// The top bits of the bytes of `word` that are zero. Above the lowest of them, some bytes that are
/// one may count as zero too.
fn zero_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; WINDOW]);
    const TOPS: u64 = u64::from_le_bytes([0x80; WINDOW]);
    word.wrapping_sub(ONES) & !word & TOPS
}

impl PrefixIndex {
    /// An empty index for block ids below `num_blocks`.
    #[must_use]
    pub fn new(num_blocks: u32) -> Self {
        let num_blocks = num_blocks as usize;
        let capacity = num_blocks + num_blocks / 2 + 8;
        Self {
            digests: vec![[0; Digest::MAX_LEN]; num_blocks],
            groups: vec![NO_GROUP; num_blocks],
            num_tokens: vec![0; num_blocks],
            successor: vec![0; num_blocks],
            tags: vec![VACANT; capacity + WINDOW - 1],
            slots: vec![0; capacity],
            num_keys: 0,
            duplicates: FxHashMap::default(),
            extra: Vec::new(),
            vacant_extra: Vec::new(),
            extra_of: FxHashMap::default(),
        }
    }

    /// Distinct keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.num_keys
    }

    /// Whether no content is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.num_keys == 0
    }

    #[inline]
    fn home(&self, key: &Key) -> usize {
        let hash = key.digest.prefix() ^ u64::from(key.group.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize
    }

    /// The slot `ahead` places on, less than once around.
    #[inline]
    fn slot_after(&self, slot: usize, ahead: usize) -> usize {
        let slot = slot + ahead;
        if slot < self.slots.len() { slot } else { slot - self.slots.len() }
    }

    #[inline]
    fn set_tag(&mut self, slot: usize, tag: u8) {
        self.tags[slot] = tag;
        if slot < WINDOW - 1 {
            let again = self.slots.len() + slot;
            self.tags[again] = tag;
        }
    }

    fn extra_entry(&self, entry: u32) -> Option<&ExtraKey> {
        self.extra.get((entry as usize).checked_sub(self.digests.len())?)?.as_ref()
    }

    #[inline]
    fn entry_is(&self, entry: u32, key: &Key) -> bool {
        match self.digests.get(entry as usize) {
            Some(digest) => {
                digest == key.digest.as_bytes()
                    && u32::from(self.groups[entry as usize]) == key.group.0 + 1
            }
            None => self.extra_entry(entry).is_some_and(|extra| extra.key == *key),
        }
    }

    fn key_of(&self, entry: u32) -> Option<Key> {
        match self.digests.get(entry as usize) {
            Some(&digest) => {
                let group = u32::from(self.groups[entry as usize]).checked_sub(1)?;
                Some(Key { digest: digest.into(), group: GroupId(group) })
            }
            None => self.extra_entry(entry).map(|extra| extra.key),
        }
    }

    #[inline]
    fn block_of(&self, entry: u32) -> BlockId {
        BlockId(self.extra_entry(entry).map_or(entry, |extra| extra.block))
    }

    /// The slot that holds `key`, or the vacant one where it would go.
    #[expect(clippy::inline_always, reason = "a call costs as much as most searches")]
    #[inline(always)]
    fn find(&self, key: &Key) -> Result<usize, usize> {
        let wanted = u64::from_le_bytes([tag_of(key); WINDOW]);
        let mut start = self.home(key);
        loop {
            let window = self.tags[start..].first_chunk().copied().unwrap_or_default();
            let window = u64::from_le_bytes(window);
            let vacant = zero_bytes(window);
            let before_vacant = (vacant & vacant.wrapping_neg()).wrapping_sub(1);
            let mut alike = zero_bytes(window ^ wanted) & before_vacant;
            while alike != 0 {
                let slot = self.slot_after(start, alike.trailing_zeros() as usize / 8);
                if self.entry_is(self.slots[slot], key) {
                    return Ok(slot);
                }
                alike &= alike - 1;
            }
            if vacant != 0 {
                return Err(self.slot_after(start, vacant.trailing_zeros() as usize / 8));
            }
            start = self.slot_after(start, WINDOW);
        }
    }

    /// The block that has carried `key` longest.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<BlockId> {
        self.find(key).ok().map(|slot| self.block_of(self.slots[slot]))
    }

    /// Have what an insertion of `key` for `block` looks at fetched.
    #[inline]
    pub(crate) fn read_ahead(&self, block: BlockId, key: &Key) -> u32 {
        let slot = self.home(key);
        u32::from(self.tags[slot])
            ^ self.slots[slot]
            ^ self.num_tokens[block.index()]
            ^ self.successor[block.index()]
            ^ u32::from(self.groups[block.index()])
            ^ u32::from(self.digests[block.index()][0])
    }

    /// As [`PrefixIndex::get`], where the content before was found in `previous`.
    #[inline]
    #[must_use]
    pub fn get_after(&self, previous: BlockId, key: &Key) -> Option<BlockId> {
        let next = self.successor[previous.index()] & !WAITS;
        let is_oldest = next != 0 && self.successor[next as usize] & WAITS == 0;
        if is_oldest && self.entry_is(next, key) {
            return Some(BlockId(next));
        }
        self.get(key)
    }

    /// Remember that `block` was entered after `previous`.
    pub fn follow(&mut self, previous: BlockId, block: BlockId) {
        let successor = &mut self.successor[previous.index()];
        *successor = (*successor & WAITS) | block.0;
    }

    /// Note whether a first key waits outside the table.
    fn set_waits(&mut self, entry: u32, waits: bool) {
        if let Some(successor) = self.successor.get_mut(entry as usize) {
            *successor = (*successor & !WAITS) | if waits { WAITS } else { 0 };
        }
    }

    /// Entries that carry `key`, oldest first.
    fn entries(&self, key: &Key) -> impl Iterator<Item = u32> + '_ {
        let first = self.find(key).ok().map(|slot| self.slots[slot]);
        let later = first.and_then(|entry| self.duplicates.get(&entry));
        first.into_iter().chain(later.into_iter().flatten().copied())
    }

    /// Whether this very block carries `key`.
    #[must_use]
    pub fn contains(&self, key: &Key, block: BlockId) -> bool {
        self.entries(key).any(|entry| self.block_of(entry) == block)
    }

    /// Blocks that carry `key`, oldest first.
    pub fn blocks(&self, key: &Key) -> impl Iterator<Item = BlockId> + '_ {
        self.entries(key).map(|entry| self.block_of(entry))
    }

    /// The block's first key, and how many tokens it stands for.
    #[inline]
    #[must_use]
    pub fn first_key(&self, block: BlockId) -> Option<(Key, u32)> {
        let group = *self.groups.get(block.index())?;
        (group != NO_GROUP).then(|| {
            let digest = self.digests[block.index()].into();
            let key = Key { digest, group: GroupId(u32::from(group) - 1) };
            (key, self.num_tokens[block.index()])
        })
    }

    /// The keys of a block after its first, oldest first.
    pub fn further_keys(&self, block: BlockId) -> impl Iterator<Item = Key> + '_ {
        let entries = self.extra_of.get(&block.0).map_or(&[][..], Vec::as_slice);
        entries.iter().filter_map(|&entry| self.key_of(entry))
    }

    /// Let `block` be found under `key`.
    #[inline]
    pub(crate) fn insert(&mut self, block: BlockId, key: &Key, num_tokens: u32) -> Inserted {
        if self.groups[block.index()] != NO_GROUP {
            return self.insert_further(block, key);
        }
        self.digests[block.index()] = *key.digest.as_bytes();
        self.groups[block.index()] = key.group.0 as u16 + 1;
        self.num_tokens[block.index()] = num_tokens;
        self.place(key, block.0)
    }

    #[cold]
    #[inline(never)]
    fn insert_further(&mut self, block: BlockId, key: &Key) -> Inserted {
        if self.entry_is(block.0, key) || self.contains(key, block) {
            return Inserted::Known;
        }
        let entry = self.new_extra(ExtraKey { key: *key, block: block.0 });
        self.place(key, entry)
    }

    fn new_extra(&mut self, extra: ExtraKey) -> u32 {
        let at = self.vacant_extra.pop().unwrap_or_else(|| {
            self.extra.push(None);
            self.extra.len() as u32 - 1
        });
        let entry = self.digests.len() as u32 + at;
        self.extra_of.entry(extra.block).or_default().push(entry);
        self.extra[at as usize] = Some(extra);
        entry
    }

    #[inline]
    fn place(&mut self, key: &Key, entry: u32) -> Inserted {
        // The entry's own key is already in place, so a find by key cannot be led to it: it is not
        // in the table yet.
        match self.find(key) {
            Ok(slot) => self.queue(slot, entry),
            Err(slot) => {
                self.set_tag(slot, tag_of(key));
                self.slots[slot] = entry;
                self.num_keys += 1;
                if self.num_keys * 4 > self.slots.len() * 3 {
                    self.grow();
                }
                Inserted::Sole
            }
        }
    }

    /// Let an entry wait behind the one in a slot.
    #[cold]
    #[inline(never)]
    fn queue(&mut self, slot: usize, entry: u32) -> Inserted {
        self.duplicates.entry(self.slots[slot]).or_default().push_back(entry);
        self.set_waits(entry, true);
        Inserted::Waits
    }

    #[cold]
    fn grow(&mut self) {
        let capacity = self.slots.len() + self.slots.len() / 2;
        let tags = std::mem::replace(&mut self.tags, vec![VACANT; capacity + WINDOW - 1]);
        let slots = std::mem::replace(&mut self.slots, vec![0; capacity]);
        for (tag, entry) in tags.into_iter().zip(slots).filter(|&(tag, _)| tag != VACANT) {
            let Some(key) = self.key_of(entry) else { continue };
            let mut slot = self.home(&key);
            while self.tags[slot] != VACANT {
                slot = self.slot_after(slot, 1);
            }
            self.set_tag(slot, tag);
            self.slots[slot] = entry;
        }
    }

    /// Forget all keys of `block` and append them to `removed`, the first key first.
    pub fn remove_block(&mut self, block: BlockId, removed: &mut Vec<Key>) {
        let Some((key, _)) = self.first_key(block) else { return };
        self.displace(&key, block.0);
        self.set_waits(block.0, false);
        self.groups[block.index()] = NO_GROUP;
        removed.push(key);
        if self.extra_of.is_empty() {
            return;
        }
        for entry in self.extra_of.remove(&block.0).unwrap_or_default() {
            if let Some(key) = self.key_of(entry) {
                self.displace(&key, entry);
                removed.push(key);
            }
            let at = entry - self.digests.len() as u32;
            self.extra[at as usize] = None;
            self.vacant_extra.push(at);
        }
    }

    /// Give all keys of `from` to `to`, which has none. They count as inserted anew.
    pub fn move_keys(&mut self, from: BlockId, to: BlockId) {
        debug_assert!(self.first_key(to).is_none());
        let Some((_, num_tokens)) = self.first_key(from) else { return };
        let mut keys = Vec::new();
        self.remove_block(from, &mut keys);
        for key in keys {
            self.insert(to, &key, num_tokens);
        }
    }

    fn displace(&mut self, key: &Key, entry: u32) {
        let Ok(slot) = self.find(key) else { return };
        let head = self.slots[slot];
        if self.duplicates.is_empty() || !self.duplicates.contains_key(&head) {
            debug_assert_eq!(head, entry);
            self.vacate(slot);
            return;
        }
        let mut later = self.duplicates.remove(&head).unwrap_or_default();
        let head = if head == entry {
            let next = later.pop_front().unwrap_or(entry);
            self.slots[slot] = next;
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

    /// Empty a slot and move later entries of its run back, so that every probe still reaches them.
    fn vacate(&mut self, mut gap: usize) {
        self.num_keys -= 1;
        let mut slot = gap;
        loop {
            slot = self.slot_after(slot, 1);
            if self.tags[slot] == VACANT {
                break;
            }
            let Some(key) = self.key_of(self.slots[slot]) else { break };
            let home = self.home(&key);
            let capacity = self.slots.len();
            let reach = (slot + capacity - home) % capacity;
            if (slot + capacity - gap) % capacity <= reach {
                self.set_tag(gap, self.tags[slot]);
                self.slots[gap] = self.slots[slot];
                gap = slot;
            }
        }
        self.set_tag(gap, VACANT);
    }

    /// Forget everything.
    pub fn clear(&mut self) {
        self.groups.fill(NO_GROUP);
        self.successor.fill(0);
        self.tags.fill(VACANT);
        self.num_keys = 0;
        self.duplicates.clear();
        self.extra.clear();
        self.vacant_extra.clear();
        self.extra_of.clear();
    }

    /// Heap bytes held, but for duplicates and extra keys.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.digests.len() * (Digest::MAX_LEN + size_of::<u16>() + 2 * size_of::<u32>())
            + self.tags.len()
            + self.slots.len() * size_of::<u32>()
    }

    /// Walk everything; the first broken promise is described.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut num_entries = 0;
        let mut num_keys = 0;
        if let Some(slot) =
            (0..WINDOW - 1).find(|&it| self.tags[it] != self.tags[self.slots.len() + it])
        {
            return Err(format!("the tag of slot {slot} differs from its copy"));
        }
        for slot in (0..self.slots.len()).filter(|&slot| self.tags[slot] != VACANT) {
            num_keys += 1;
            let entry = self.slots[slot];
            let Some(key) = self.key_of(entry) else {
                return Err(format!("slot {slot} holds a dead entry {entry}"));
            };
            if self.find(&key) != Ok(slot) {
                return Err(format!("slot {slot} cannot be reached by its key {key:?}"));
            }
            for other in self.entries(&key) {
                num_entries += 1;
                let waits = self.successor.get(other as usize).is_some_and(|it| it & WAITS != 0);
                if waits != (other != entry) && (other as usize) < self.digests.len() {
                    return Err(format!("entry {other} behind {entry} is marked {waits}"));
                }
                if !self.entry_is(other, &key) {
                    return Err(format!("entry {other} waits under a key that it does not have"));
                }
            }
        }
        let first = self.groups.iter().filter(|&&group| group != NO_GROUP).count();
        let further = self.extra.iter().flatten().count();
        if num_keys != self.num_keys || num_entries != first + further {
            return Err(format!(
                "{num_keys} keys and {num_entries} entries; kept as {}, {first} + {further}",
                self.num_keys
            ));
        }
        Ok(())
    }
}
