//! The naive model of a block store with one pool: lists and maps, no cleverness.

use hybrid_blocks::{Digest, GroupId, Key};

#[derive(Clone, Debug, Default)]
pub(crate) struct ModelBlock {
    pub(crate) refs: u32,
    pub(crate) keys: Vec<Key>,
    /// The tokens of the first key.
    pub(crate) num_tokens: u32,
}

/// Blocks `1..n`, the queue of ownerless ones in the order in which they go, and for every key the
/// blocks that carry it, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct ModelStore {
    pub(crate) blocks: Vec<ModelBlock>,
    pub(crate) queue: Vec<u32>,
    pub(crate) carriers: Vec<(Key, Vec<u32>)>,
    pub(crate) evicted: Vec<Key>,
    /// Live blocks that lost their keys.
    pub(crate) num_dropped: u64,
}

pub(crate) fn key(number: u8, group: u32) -> Key {
    // Only the last byte differs, so that a shortcut on leading bytes would be caught.
    let mut bytes = [0xAB; 32];
    bytes[31] = number;
    Key { digest: Digest::from(bytes), group: GroupId(group) }
}

impl ModelStore {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self {
            blocks: vec![ModelBlock::default(); num_blocks as usize],
            queue: (1..num_blocks).collect(),
            carriers: Vec::new(),
            evicted: Vec::new(),
            num_dropped: 0,
        }
    }

    pub(crate) fn allocate(&mut self, n: usize) -> Option<Vec<u32>> {
        if n > self.queue.len() {
            return None;
        }
        let taken: Vec<u32> = self.queue.drain(..n).collect();
        for &block in &taken {
            self.evict(block);
            self.blocks[block as usize].refs = 1;
        }
        Some(taken)
    }

    pub(crate) fn touch(&mut self, block: u32) {
        self.queue.retain(|&other| other != block);
        self.blocks[block as usize].refs += 1;
    }

    pub(crate) fn free(&mut self, blocks: &[u32]) -> bool {
        for &block in blocks {
            let times = blocks.iter().filter(|&&other| other == block).count() as u32;
            if self.blocks[block as usize].refs < times {
                return false;
            }
        }
        let mut first = Vec::new();
        for &block in blocks {
            self.blocks[block as usize].refs -= 1;
            if self.blocks[block as usize].refs > 0 {
                continue;
            }
            if self.blocks[block as usize].keys.is_empty() {
                first.push(block);
            } else {
                self.queue.push(block);
            }
        }
        self.queue.splice(0..0, first);
        true
    }

    /// All end at the end of the queue; a block named more often than it has owners is let go once.
    pub(crate) fn free_warm(&mut self, blocks: &[u32]) -> bool {
        if blocks.iter().any(|&block| self.blocks[block as usize].refs == 0) {
            return false;
        }
        for &block in blocks {
            let refs = &mut self.blocks[block as usize].refs;
            if *refs == 1 {
                self.queue.push(block);
            }
            *refs = refs.saturating_sub(1);
        }
        true
    }

    pub(crate) fn insert(&mut self, block: u32, key: Key, num_tokens: u32) -> bool {
        let own = &mut self.blocks[block as usize];
        if own.keys.contains(&key) {
            return false;
        }
        if own.keys.is_empty() {
            own.num_tokens = num_tokens;
        }
        own.keys.push(key);
        match self.carriers.iter_mut().find(|(other, _)| *other == key) {
            Some((_, blocks)) => blocks.push(block),
            None => self.carriers.push((key, vec![block])),
        }
        true
    }

    fn take_keys(&mut self, block: u32) -> Vec<Key> {
        for (_, blocks) in &mut self.carriers {
            blocks.retain(|&other| other != block);
        }
        self.carriers.retain(|(_, blocks)| !blocks.is_empty());
        std::mem::take(&mut self.blocks[block as usize].keys)
    }

    fn evict(&mut self, block: u32) {
        let keys = self.take_keys(block);
        self.evicted.extend(keys);
    }

    pub(crate) fn drop_keys(&mut self, block: u32) {
        let own = &self.blocks[block as usize];
        self.num_dropped += u64::from(own.refs > 0 && !own.keys.is_empty());
        self.evict(block);
    }

    /// The keys count as inserted now.
    pub(crate) fn move_keys(&mut self, from: u32, to: u32) {
        let num_tokens = self.blocks[from as usize].num_tokens;
        for key in self.take_keys(from) {
            self.insert(to, key, num_tokens);
        }
    }

    pub(crate) fn discard(&mut self, key: Key) {
        if let Some(block) = self.get(key).filter(|&block| self.blocks[block as usize].refs == 0) {
            self.drop_keys(block);
        }
    }

    /// Whether somebody owns the block, or its content can be found.
    pub(crate) fn has_content(&self, block: u32) -> bool {
        let own = &self.blocks[block as usize];
        own.refs > 0 || !own.keys.is_empty()
    }

    pub(crate) fn get(&self, key: Key) -> Option<u32> {
        self.carriers.iter().find(|(other, _)| *other == key).map(|(_, blocks)| blocks[0])
    }

    pub(crate) fn reset(&mut self) -> bool {
        if self.blocks.iter().any(|block| block.refs > 0) {
            return false;
        }
        self.carriers.clear();
        for block in &mut self.blocks {
            block.keys.clear();
        }
        true
    }
}
