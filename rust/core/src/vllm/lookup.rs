//! The longest prefix that can be found, per group and for all groups together.

use crate::digest::Digest;
use crate::ids::{BlockId, GroupId};
use crate::prefix_index::{Key, RunCursor};
use crate::store::{FixedStore as BlockStore, Store};

use super::cache::POOL;
use super::config::{Config, Kind, Lookup, LookupGroup};

/// Blocks of every group for a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// By group.
    pub blocks: Vec<Vec<BlockId>>,
    /// Tokens of the prefix.
    pub num_tokens: u32,
    /// Tokens after it that some group holds and another one does not.
    pub num_uncached: u32,
}

/// What a lookup needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Finder<'a> {
    pub(crate) store: &'a BlockStore,
    pub(crate) config: &'a Config,
    pub(crate) digests: &'a [Digest],
}

/// What groups of one spec found: the blocks of each, and the tokens they cover.
#[derive(Debug, Default)]
struct Found {
    blocks: Vec<Vec<BlockId>>,
    num_tokens: u32,
}

impl Finder<'_> {
    /// The longest prefix of at most `limit` tokens.
    pub(crate) fn longest_hit(&self, limit: u32) -> Hit {
        let num_groups = self.config.groups.len();
        match &self.config.lookup {
            Lookup::None => Hit { blocks: vec![Vec::new(); num_groups], ..Hit::default() },
            Lookup::Unitary { use_eagle } => {
                let alignment = self.config.groups[0].block_size;
                let found = self.find(&[GroupId(0)], limit, *use_eagle, alignment);
                Hit { blocks: found.blocks, num_tokens: found.num_tokens, num_uncached: 0 }
            }
            Lookup::Hybrid { specs, .. } => self.reconciled_hit(specs, limit),
        }
    }

    /// What each group would find on its own; its length beside it.
    pub(crate) fn hit_per_group(&self, limit: u32) -> (Vec<Vec<BlockId>>, Vec<u32>) {
        let num_groups = self.config.groups.len();
        let mut blocks = vec![Vec::new(); num_groups];
        let mut lengths = vec![0; num_groups];
        if let Lookup::Hybrid { specs, .. } = &self.config.lookup {
            for spec in specs {
                let limit =
                    if spec.use_eagle { self.with_eagle_margin(spec, limit) } else { limit };
                let alignment = self.config.hit_alignment();
                let found = self.find(&spec.groups, limit, spec.use_eagle, alignment);
                for (group, found_blocks) in spec.groups.iter().zip(found.blocks) {
                    blocks[group.index()] = found_blocks;
                    lengths[group.index()] = found.num_tokens;
                }
            }
        }
        (blocks, lengths)
    }

    /// Shorten the candidate until every group can restore it. Lengths only fall, so this ends.
    fn reconciled_hit(&self, specs: &[LookupGroup], limit: u32) -> Hit {
        let alignment = self.config.hit_alignment();
        let is_full = |spec: &LookupGroup| self.kind(spec).is_full();
        let is_simple = specs.len() == 2 && is_full(&specs[0]);
        let mut found: Vec<Option<Found>> = specs.iter().map(|_| None).collect();
        let mut eagle_done = vec![false; specs.len()];
        let (mut hit, mut longest) = (limit, 0);
        loop {
            let mut candidate = hit;
            for (at, spec) in specs.iter().enumerate() {
                if let Some(found) = &found[at]
                    && is_full(spec)
                {
                    // Every shorter prefix of a full-attention hit is a hit too.
                    candidate = candidate.min(found.num_tokens);
                    continue;
                }
                let drop_eagle = spec.use_eagle && !eagle_done[at];
                let limit =
                    if drop_eagle { self.with_eagle_margin(spec, candidate) } else { candidate };
                let new = self.find(&spec.groups, limit, drop_eagle, alignment);
                if drop_eagle {
                    eagle_done[at] = true;
                } else if new.num_tokens < candidate {
                    eagle_done.fill(false);
                }
                candidate = new.num_tokens;
                found[at] = Some(new);
                longest = longest.max(candidate);
            }
            if candidate >= hit {
                break;
            }
            hit = candidate;
            if is_simple {
                break;
            }
        }
        let mut blocks = vec![Vec::new(); self.config.groups.len()];
        for (spec, found) in specs.iter().zip(found) {
            let keep = is_full(spec).then(|| hit.div_ceil(self.block_size(spec)) as usize);
            let found = found.unwrap_or_default();
            for (group, mut group_blocks) in spec.groups.iter().zip(found.blocks) {
                group_blocks.truncate(keep.unwrap_or(usize::MAX));
                blocks[group.index()] = group_blocks;
            }
        }
        Hit { blocks, num_tokens: hit, num_uncached: longest.saturating_sub(hit) }
    }

    fn kind(&self, spec: &LookupGroup) -> Kind {
        self.config.groups[spec.groups[0].index()].kind
    }

    fn block_size(&self, spec: &LookupGroup) -> u32 {
        self.config.groups[spec.groups[0].index()].block_size
    }

    /// A drafter's groups match one unit more, which they then drop. Recurrent groups never drop.
    fn with_eagle_margin(&self, spec: &LookupGroup, limit: u32) -> u32 {
        let (kind, block_size) = (self.kind(spec), self.block_size(spec));
        if kind.is_mamba() {
            return limit;
        }
        let hash_block = self.config.hash_block_size;
        let fine = self.config.is_fine_grained() && kind.supports_fine_grained();
        let margin = if fine && block_size > hash_block { hash_block } else { block_size };
        (limit + margin).min(self.digests.len() as u32 * hash_block)
    }

    fn find(&self, groups: &[GroupId], limit: u32, drop_eagle: bool, alignment: u32) -> Found {
        let group = &self.config.groups[groups[0].index()];
        let block_size = group.block_size;
        let search = Search { finder: *self, groups, block_size, alignment };
        match group.kind {
            Kind::Full => search.full(limit, drop_eagle),
            Kind::SlidingWindow { window, .. } => search.window(limit, window, drop_eagle),
            Kind::Chunked { chunk } => search.chunked(limit, chunk),
            Kind::MambaInPlace { .. } | Kind::MambaAligned { .. } => search.state(limit),
        }
    }
}

/// One lookup of groups that share a spec.
struct Search<'a> {
    finder: Finder<'a>,
    groups: &'a [GroupId],
    block_size: u32,
    alignment: u32,
}

impl Search<'_> {
    /// Push the blocks that hold `digest`, one a group, or none and say `false`.
    fn push(&self, digest: usize, out: &mut [Vec<BlockId>]) -> bool {
        let Some(&digest) = self.finder.digests.get(digest) else { return false };
        for (at, &group) in self.groups.iter().enumerate() {
            let key = Key { digest, group };
            let index = self.finder.store.prefix_index(POOL);
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

    fn hash_blocks_per_block(&self) -> usize {
        (self.block_size / self.finder.config.hash_block_size) as usize
    }

    /// The digest that stands for all tokens up to the end of a block.
    fn digest_of(&self, block: u32) -> usize {
        (block as usize + 1) * self.hash_blocks_per_block() - 1
    }

    fn is_fine_grained(&self) -> bool {
        self.alignment < self.block_size && self.block_size.is_multiple_of(self.alignment)
    }

    fn none(&self) -> Vec<Vec<BlockId>> {
        vec![Vec::new(); self.groups.len()]
    }

    /// The longest run of blocks from the start, and into the next block where that is possible.
    fn full(&self, limit: u32, drop_eagle: bool) -> Found {
        let Finder { store, digests, .. } = self.finder;
        let index = store.prefix_index(POOL);
        let mut num_blocks = limit / self.block_size;
        let run = |&group: &GroupId| {
            let per_block = self.hash_blocks_per_block();
            let ends = digests.iter().skip(per_block - 1).step_by(per_block);
            let keys = ends.map(|&digest| Key { digest, group });
            let blocks: Vec<_> = index.get_run(keys.take(num_blocks as usize)).collect();
            num_blocks = blocks.len() as u32;
            blocks
        };
        let mut blocks: Vec<_> = self.groups.iter().map(run).collect();
        for list in &mut blocks {
            list.truncate(num_blocks as usize);
        }
        let mut num_tokens = num_blocks * self.block_size;
        if self.is_fine_grained() {
            let scale = self.block_size / self.alignment;
            let first = num_blocks * scale;
            let end = (first + scale - 1)
                .min(limit / self.alignment)
                .min(self.finder.digests.len() as u32);
            if let Some(unit) =
                (first..end).rev().find(|&unit| self.push(unit as usize, &mut blocks))
            {
                num_tokens = (unit + 1) * self.alignment;
            }
        }
        if drop_eagle && num_tokens > 0 {
            num_tokens -= self.alignment.min(self.block_size);
        }
        num_tokens -= num_tokens % self.alignment;
        let keep = num_tokens.div_ceil(self.block_size) as usize;
        for list in &mut blocks {
            list.truncate(keep);
        }
        Found { blocks, num_tokens }
    }

    /// The last run of blocks that fills a window, or the first blocks if they are all there.
    fn window(&self, limit: u32, window: u32, drop_eagle: bool) -> Found {
        let need = window_blocks(window, self.block_size, drop_eagle);
        let mut runs = self.none();
        let (mut length, mut start) = (0, 0);
        let mut filled = false;
        for block in (0..limit / self.block_size).rev() {
            if !self.push(self.digest_of(block), &mut runs) {
                runs.iter_mut().for_each(Vec::clear);
                length = 0;
                continue;
            }
            let end = if drop_eagle { block } else { block + 1 };
            if length == 0 && !self.is_aligned(end) {
                runs.iter_mut().for_each(Vec::clear);
                continue;
            }
            length += 1;
            if length >= need {
                start = block;
                filled = true;
                break;
            }
        }
        let mut num_blocks = start + length;
        if !filled {
            num_blocks = self.align_down(num_blocks);
        }
        if drop_eagle && num_blocks > 0 {
            num_blocks = self.align_down(num_blocks - 1);
        }
        let blocks = runs.into_iter().map(|run| Self::padded(start, run, num_blocks)).collect();
        Found { blocks, num_tokens: num_blocks * self.block_size }
    }

    /// `run`, last block first, behind `start` null blocks; `num_blocks` of it.
    fn padded(start: u32, run: Vec<BlockId>, num_blocks: u32) -> Vec<BlockId> {
        let mut blocks = Vec::with_capacity(start as usize + run.len());
        blocks.resize(start as usize, BlockId::NULL);
        blocks.extend(run.into_iter().rev());
        blocks.truncate(num_blocks as usize);
        blocks
    }

    fn is_aligned(&self, num_blocks: u32) -> bool {
        self.block_size == self.alignment
            || (num_blocks * self.block_size).is_multiple_of(self.alignment)
    }

    fn align_down(&self, mut num_blocks: u32) -> u32 {
        while !self.is_aligned(num_blocks) {
            num_blocks -= 1;
        }
        num_blocks
    }

    /// Blocks of earlier chunks are not needed; those of the last chunk are matched from its start.
    fn chunked(&self, limit: u32, chunk: u32) -> Found {
        let first = limit / chunk * chunk / self.block_size;
        let mut blocks = vec![vec![BlockId::NULL; first as usize]; self.groups.len()];
        let mut num_blocks = first;
        while num_blocks < limit / self.block_size
            && self.push(self.digest_of(num_blocks), &mut blocks)
        {
            num_blocks += 1;
        }
        Found { blocks, num_tokens: num_blocks * self.block_size }
    }

    /// The last checkpoint.
    fn state(&self, limit: u32) -> Found {
        let mut states = self.none();
        if self.is_fine_grained() {
            let end = (limit / self.alignment).min(self.finder.digests.len() as u32);
            let unit = (0..end).rev().find(|&unit| self.push(unit as usize, &mut states));
            return unit.map_or_else(
                || Found { blocks: self.none(), num_tokens: 0 },
                |unit| {
                    let position = unit / (self.block_size / self.alignment);
                    Self::behind_nulls(position, states, (unit + 1) * self.alignment)
                },
            );
        }
        for block in (0..limit / self.block_size).rev() {
            if self.push(self.digest_of(block), &mut states) {
                if self.is_aligned(block + 1) {
                    return Self::behind_nulls(block, states, (block + 1) * self.block_size);
                }
                states.iter_mut().for_each(Vec::clear);
            }
        }
        Found { blocks: states, num_tokens: 0 }
    }

    fn behind_nulls(position: u32, states: Vec<Vec<BlockId>>, num_tokens: u32) -> Found {
        let blocks =
            states.into_iter().map(|state| Self::padded(position, state, position + 1)).collect();
        Found { blocks, num_tokens }
    }
}

/// Contiguous blocks that hold a window, and the one that a drafter drops.
pub(crate) fn window_blocks(window: u32, block_size: u32, use_eagle: bool) -> u32 {
    window.saturating_sub(1).div_ceil(block_size) + u32::from(use_eagle)
}
