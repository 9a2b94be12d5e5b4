//! [`Cache`]: the blocks of all requests, and what every set of rules does with them.

use std::ops::Range;

use super::lookup::Finder;
use super::outbox::{BlockCopy, CacheEvent, Outbox, Residency};
use crate::error::{Error, Unit};
use crate::group::{Group, GroupSpec, Table};
use crate::ids::{BlockId, GroupId, PoolId, SlabId};
use crate::store::{EvictionOrder, Reservation, Store};
use hybrid_blocks_hash::Digest;

/// A store, the groups that draw from it, and what observers hear of both.
#[derive(Debug)]
pub(crate) struct Cache<S> {
    pub(crate) store: S,
    pub(crate) groups: Vec<Group>,
    /// Tokens a digest stands for.
    pub(crate) hash_block_size: u32,
    /// Whether computed blocks can be hit by later requests.
    pub(crate) enable_caching: bool,
    pub(crate) outbox: Outbox,
    /// Keys that went, by group, where somebody counts them.
    pub(crate) num_removed: Option<Box<[u64]>>,
    /// Blocks by pool that the call at hand needs. Reused by every call.
    pub(crate) demand: Vec<u64>,
    reservation: Reservation,
}

/// # Errors
/// [`Error::InvalidConfig`] for groups that cannot be, or that name a pool that is not there.
pub(crate) fn groups_of<S: Store>(
    store: &S,
    specs: impl Iterator<Item = GroupSpec>,
    hash_block_size: u32,
) -> Result<Vec<Group>, Error> {
    let groups = (0..).map(GroupId).zip(specs).map(|(id, spec)| {
        if spec.pool.0 >= store.num_pools() {
            return Err(Error::InvalidConfig(format!(
                "group {id} draws from pool {} of {}; the first is pool 0",
                spec.pool,
                store.num_pools()
            )));
        }
        Group::new(id, spec, hash_block_size)
    });
    groups.collect()
}

impl<S: Store> Cache<S> {
    /// # Errors
    /// As [`groups_of`].
    pub(crate) fn new(
        store: S,
        groups: impl Iterator<Item = GroupSpec>,
        hash_block_size: u32,
        enable_caching: bool,
        outbox: Outbox,
    ) -> Result<Self, Error> {
        let groups = groups_of(&store, groups, hash_block_size)?;
        Ok(Self {
            demand: vec![0; store.num_pools() as usize],
            store,
            groups,
            hash_block_size,
            enable_caching,
            outbox,
            num_removed: None,
            reservation: Reservation::default(),
        })
    }

    /// Returns the finder of prefixes with these digests, at multiples of `alignment` tokens.
    pub(crate) fn finder<'a>(&'a self, digests: &'a [Digest], alignment: u32) -> Finder<'a, S> {
        Finder {
            store: &self.store,
            groups: &self.groups,
            digests,
            hash_block_size: self.hash_block_size,
            alignment,
        }
    }

    /// The groups that keep recurrent states.
    pub(crate) fn state_groups(&self) -> Vec<Group> {
        self.groups.iter().filter(|group| group.kind().is_recurrent()).copied().collect()
    }

    /// Has the blocks of `demand` set aside, so that no group takes what another was promised.
    /// Returns how many slabs (blocks of a fixed store) are left to others.
    pub(crate) fn reserve(&mut self) -> Result<u64, Error> {
        self.store.reserve(&self.demand, &mut self.reservation)
    }

    /// Appends `num_blocks` blocks that were reserved to `out`, near `near` if that can be.
    ///
    /// # Errors
    /// [`Error::OutOfBlocks`] where less was reserved; then nothing was taken.
    pub(crate) fn take(
        &mut self,
        pool: PoolId,
        num_blocks: u64,
        near: Option<SlabId>,
        out: &mut Vec<BlockId>,
    ) -> Result<(), Error> {
        let available = self.store.num_available(pool);
        if num_blocks > available {
            return Err(Error::OutOfBlocks { unit: Unit::Blocks, needed: num_blocks, available });
        }
        let held = out.len();
        self.store.take(pool, num_blocks, near, &mut self.reservation, out);
        self.outbox.note_allocated(&out[held..], self.enable_caching);
        Ok(())
    }

    /// Gives one group room for `num_tokens` tokens. Returns the positions of the new blocks.
    pub(crate) fn extend(
        &mut self,
        group: usize,
        table: &mut Table,
        num_tokens: u32,
    ) -> Result<Range<usize>, Error> {
        let spec = self.groups[group].spec;
        let start = table.blocks.len();
        let num_missing = self.groups[group].num_missing(table, num_tokens);
        if num_missing > 0 {
            let near = table.blocks.last().and_then(|&block| self.store.slab_of(spec.pool, block));
            self.take(spec.pool, num_missing, near, &mut table.blocks)?;
        }
        Ok(start..table.blocks.len())
    }

    /// Takes a share in the blocks of a hit, given by position, for a request that goes on after
    /// `num_computed` tokens. What those tokens leave behind is not held.
    pub(crate) fn adopt(
        &mut self,
        group: usize,
        table: &mut Table,
        hit: &[BlockId],
        num_computed: u32,
    ) -> Result<(), Error> {
        let group = self.groups[group];
        if group.kind().is_constant() {
            return Ok(());
        }
        let num_skipped = group.num_skipped_blocks(num_computed);
        let hit = &hit[hit.len().min(num_skipped as usize)..];
        let held = hit.iter().copied().filter(|block| !block.is_null());
        self.store.touch_all(group.kept, held.clone())?;
        self.outbox.note_residency(Residency::Accessed, held);
        table.blocks.reserve(num_skipped as usize + hit.len());
        table.blocks.resize(num_skipped as usize, BlockId::NULL);
        table.blocks.extend_from_slice(hit);
        // A group may keep more below its window than a hit needs to have.
        let missing = hit.iter().take_while(|block| block.is_null()).count() as u32;
        table.num_skipped = num_skipped + missing;
        table.set_num_cached(table.blocks.len() as u32);
        Ok(())
    }

    /// Undoes [`Cache::adopt`] of all groups, exactly, if nothing else happened since.
    pub(crate) fn undo_adopt(&mut self, tables: &mut [Table]) {
        for (group, table) in self.groups.iter().zip(tables).rev() {
            for &block in table.blocks.iter().rev().filter(|block| !block.is_null()) {
                self.store.undo_touch(group.kept, block);
            }
            table.clear();
        }
    }

    /// Lets the full blocks before position `end` be found, those that `mask` wants of them. `mask`
    /// starts where the table's cached blocks end.
    pub(crate) fn commit_full(
        &mut self,
        handle: u64,
        group: usize,
        digests: &[Digest],
        table: &mut Table,
        end: u32,
        mask: Option<&[bool]>,
    ) -> Result<(), Error> {
        let group = self.groups[group];
        let Group { id, spec: GroupSpec { block_size, pool, .. }, .. } = group;
        let start = table.num_cached().unwrap_or(0);
        if start >= end {
            return Ok(());
        }
        let is_wanted = |position: u32| mask.is_none_or(|mask| mask[(position - start) as usize]);
        let first = start.max(table.num_skipped);
        let new = table.blocks.get(first as usize..).unwrap_or_default();
        let wanted = (first..end)
            .zip(new.iter().copied())
            .filter(|&(position, block)| !block.is_null() && is_wanted(position));
        for (position, block) in wanted.clone() {
            if self.store.pool(pool).is_hashed(block) {
                self.drop_partial(pool, block, (position + 1) * block_size)?;
            }
        }
        let entries = wanted.clone().map(|(position, block)| {
            (block, group.key(digests, position), (position + 1) * block_size)
        });
        let before = start.checked_sub(1).and_then(|at| table.blocks.get(at as usize).copied());
        self.store.insert_run(pool, before.filter(|block| !block.is_null()), entries);
        self.note_evictions();
        if self.outbox.enable_events {
            let positions: Vec<u32> = wanted.map(|(position, _)| position).collect();
            self.outbox.events.push(CacheEvent::Stored {
                handle,
                group: id,
                block_size,
                first_block: start,
                end_block: end,
                parent: start.checked_sub(1).map(|position| group.key(digests, position).digest),
                digests: positions.iter().map(|&at| group.key(digests, at).digest).collect(),
                positions,
            });
        }
        table.set_num_cached(end);
        Ok(())
    }

    /// Forgets that a block, now full, held a part of its content.
    fn drop_partial(&mut self, pool: PoolId, block: BlockId, num_tokens: u32) -> Result<(), Error> {
        let known =
            self.store.prefix_index(pool).first_key(block).map_or(0, |(_, num_tokens)| num_tokens);
        if known >= num_tokens {
            return Err(Error::InvalidArgument(format!(
                "block {block} is full with {num_tokens} tokens but was cached with {known}"
            )));
        }
        self.store.drop_own_keys(pool, block);
        Ok(())
    }

    /// Gives back what nothing computed after `num_processed` tokens looks at, the last block
    /// first. `score` gives the blocks, which start at a position, their priorities before.
    pub(crate) fn release_skipped(
        &mut self,
        group: usize,
        table: &mut Table,
        num_processed: u32,
        score: impl FnOnce(&mut S, u32, &[BlockId]),
    ) -> Result<(), Error> {
        let spec = self.groups[group].spec;
        let until = self.groups[group].num_skipped_blocks(num_processed);
        let until = until.min(table.blocks.len() as u32);
        if until <= table.num_skipped {
            return Ok(());
        }
        let skipped = table.num_skipped..until;
        table.num_skipped = until;
        let blocks = &mut table.blocks[skipped.start as usize..until as usize];
        score(&mut self.store, skipped.start, blocks);
        let held = blocks.iter().rev().copied().filter(|block| !block.is_null());
        self.store.free(spec.pool, held)?;
        blocks.fill(BlockId::NULL);
        Ok(())
    }

    /// Owns the blocks of a copy no more: it is made, or given up.
    pub(crate) fn release_copy(&mut self, copy: &BlockCopy) -> Result<(), Error> {
        if copy.src_pool == copy.dst_pool {
            return self.store.free(copy.src_pool, [copy.src, copy.dst].into_iter());
        }
        let mut blocks = copy.blocks().into_iter();
        blocks.try_for_each(|(pool, block)| self.store.free(pool, std::iter::once(block)))
    }

    /// Gives back all blocks of a request, the last ones first, so that the end of a prefix goes
    /// before its start.
    pub(crate) fn release(&mut self, tables: &mut [Table]) -> Result<(), Error> {
        for (group, table) in self.groups.iter().zip(tables) {
            let held = &table.blocks[(table.num_skipped as usize).min(table.blocks.len())..];
            let blocks = held.iter().rev().copied();
            if group.kind().is_aligned() {
                self.store.free(group.spec.pool, blocks.filter(|block| !block.is_null()))?;
            } else {
                debug_assert!(held.iter().all(|block| !block.is_null()));
                self.store.free(group.spec.pool, blocks)?;
            }
            table.clear();
        }
        Ok(())
    }

    /// Notes what was evicted since the last time.
    pub(crate) fn note_evictions(&mut self) {
        if let Some(num_removed) = &mut self.num_removed {
            for key in self.store.evicted() {
                num_removed[key.group.index()] += 1;
            }
        }
        let evicted = self.store.evicted().drain(..);
        if self.outbox.enable_events {
            self.outbox.events.extend(evicted.map(CacheEvent::Removed));
        }
    }

    /// Notes a change, after the evictions before it.
    pub(crate) fn note(&mut self, event: impl FnOnce() -> CacheEvent) {
        self.note_evictions();
        if self.outbox.enable_events {
            self.outbox.events.push(event());
        }
    }
}
