//! [`Search`]: the longest prefix that groups of one spec hold.

use super::Group;
use crate::ids::{BlockId, GroupId};
use crate::prefix_index::{Key, PrefixIndex, RunCursor};
use crate::store::Store;
use hybrid_blocks_hash::Digest;

/// Blocks by group, in table order.
pub type GroupBlocks = Vec<Vec<BlockId>>;

/// Prefix that groups of one spec hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Blocks by group, null where nothing is needed.
    pub(crate) blocks: GroupBlocks,
    /// Tokens that they cover.
    pub(crate) num_tokens: u32,
}

impl Found {
    /// `run`, last block first, behind `start` null blocks; `num_blocks` of it.
    pub(crate) fn padded(start: u32, run: Vec<BlockId>, num_blocks: u32) -> Vec<BlockId> {
        let mut blocks = Vec::with_capacity(start as usize + run.len());
        blocks.resize(start as usize, BlockId::NULL);
        blocks.extend(run.into_iter().rev());
        blocks.truncate(num_blocks as usize);
        blocks
    }
}

/// One search of groups that share a spec.
#[derive(Debug)]
pub(crate) struct Search<'a, S> {
    pub(crate) store: &'a S,
    /// All groups of the cache.
    pub(crate) all: &'a [Group],
    pub(crate) digests: &'a [Digest],
    pub(crate) hash_block_size: u32,
    /// Divisor of the length of a hit.
    pub(crate) alignment: u32,
    /// The groups that are searched; the first one's spec stands for all.
    pub(crate) groups: &'a [GroupId],
}

impl<S: Store> Search<'_, S> {
    /// The first group, whose spec is that of all.
    pub(crate) fn first(&self) -> &Group {
        &self.all[self.groups[0].index()]
    }

    fn index_of(&self, group: GroupId) -> &PrefixIndex {
        self.store.prefix_index(self.all[group.index()].kept)
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.first().spec.block_size
    }

    /// The blocks of one group for the leading `num_blocks` full blocks, as far as they are known.
    pub(crate) fn run(&self, group: GroupId, num_blocks: u32) -> Vec<BlockId> {
        let per_block = self.first().hash_blocks_per_block();
        let ends = self.digests.iter().skip(per_block - 1).step_by(per_block);
        let keys = ends.map(|&digest| Key { digest, group }).take(num_blocks as usize);
        let index = self.index_of(group);
        let mut run = index.get_run(keys);
        let Some(first) = run.next() else { return Vec::new() };
        // Room for all of them at once: a push that might grow costs half as much as the look-up.
        let mut blocks =
            vec![first; num_blocks.min((self.digests.len() / per_block) as u32) as usize];
        let found = blocks[1..].iter_mut().zip(run).map(|(slot, block)| *slot = block).count();
        blocks.truncate(1 + found);
        blocks
    }

    /// Pushes the blocks that hold the digest at an index, one a group, or none and says `false`.
    pub(crate) fn push(&self, digest: usize, out: &mut [Vec<BlockId>]) -> bool {
        let Some(&digest) = self.digests.get(digest) else { return false };
        for (at, &group) in self.groups.iter().enumerate() {
            let key = Key { digest, group };
            let index = self.index_of(group);
            let Some(block) = index.get_after(RunCursor::of(&out[at]), &key) else {
                for list in &mut out[..at] {
                    list.pop();
                }
                return false;
            };
            out[at].push(block);
        }
        true
    }

    /// The index of the digest that stands for all tokens up to the end of a block.
    pub(crate) fn digest_of(&self, block: u32) -> usize {
        (block as usize + 1) * self.first().hash_blocks_per_block() - 1
    }

    /// Whether a hit may end inside a block.
    pub(crate) fn is_fine_grained(&self) -> bool {
        self.alignment < self.block_size() && self.block_size().is_multiple_of(self.alignment)
    }

    pub(crate) fn none(&self) -> GroupBlocks {
        vec![Vec::new(); self.groups.len()]
    }

    pub(crate) fn is_aligned(&self, num_blocks: u32) -> bool {
        self.block_size() == self.alignment
            || (num_blocks * self.block_size()).is_multiple_of(self.alignment)
    }

    pub(crate) fn align_down(&self, mut num_blocks: u32) -> u32 {
        while !self.is_aligned(num_blocks) {
            num_blocks -= 1;
        }
        num_blocks
    }
}
