//! The naive model of a block store with one pool: lists and maps, no cleverness.

use hybrid_blocks::{Digest, GroupId, Key};

#[derive(Clone, Debug, Default)]
pub(crate) struct ModelBlock {
    pub(crate) refs: u32,
    pub(crate) keys: Vec<Key>,
}

/// Blocks `1..n`, the queue of ownerless ones in the order in which they go, and for every key the
/// blocks that carry it, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct ModelStore {
    pub(crate) blocks: Vec<ModelBlock>,
    pub(crate) queue: Vec<u32>,
    pub(crate) carriers: Vec<(Key, Vec<u32>)>,
    pub(crate) evicted: Vec<Key>,
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
        }
    }

    pub(crate) fn allocate(&mut self, n: usize) -> Option<Vec<u32>> {
        if n > self.queue.len() {
            return None;
        }
        let taken: Vec<u32> = self.queue.drain(..n).collect();
        for &block in &taken {
            self.drop_keys(block);
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

    pub(crate) fn insert(&mut self, block: u32, key: Key) -> bool {
        if self.blocks[block as usize].keys.contains(&key) {
            return false;
        }
        self.blocks[block as usize].keys.push(key);
        match self.carriers.iter_mut().find(|(other, _)| *other == key) {
            Some((_, blocks)) => blocks.push(block),
            None => self.carriers.push((key, vec![block])),
        }
        true
    }

    pub(crate) fn drop_keys(&mut self, block: u32) {
        for key in std::mem::take(&mut self.blocks[block as usize].keys) {
            self.evicted.push(key);
            for (other, blocks) in &mut self.carriers {
                if *other == key {
                    blocks.retain(|&other| other != block);
                }
            }
            self.carriers.retain(|(_, blocks)| !blocks.is_empty());
        }
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
