//! Copies for a worker that reads all sources of a step before it writes any destination.

use rustc_hash::{FxHashMap, FxHashSet};

use super::prefill_checkpoints::drop_where;
use crate::engine::BlockCopy;
use crate::engine::cache::Cache;
use crate::error::Error;
use crate::ids::{BlockId, PoolId, SlabId};
use crate::rules::vllm::{Call, KvCacheManager};
use crate::store::{EvictionOrder, SlabStore, Store};

impl<S: Store> KvCacheManager<S> {
    /// Blocks to copy, source and destination, since the last call: no block is both, and none is a
    /// destination twice. Nothing is owned for their sake any more: what takes their place is
    /// written in a later step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a block is to be read and overwritten in one step.
    pub fn take_disjoint_copies(&mut self) -> Result<Vec<BlockCopy>, Error> {
        let (resolved, asked) = self.take_owned_copies()?;
        asked.iter().try_for_each(|copy| self.engine.cache.release_copy(copy))?;
        Ok(resolved)
    }

    /// As [`KvCacheManager::take_disjoint_copies`], and the copies as they were asked for. The blocks of these stay
    /// owned until the caller frees them: a load of a connector may come before the step that copies has run.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a block is to be read and overwritten in one step.
    pub fn take_owned_copies(&mut self) -> Result<(Vec<BlockCopy>, Vec<BlockCopy>), Error> {
        let copies = std::mem::take(&mut self.engine.cache.outbox.copies);
        if copies.is_empty() {
            return Ok((Vec::new(), copies));
        }
        // A copy of a copy is one of what was copied first.
        let mut source_of = FxHashMap::default();
        let mut resolved: Vec<BlockCopy> = Vec::with_capacity(copies.len());
        for copy in &copies {
            let [src, dst] = copy.blocks();
            let (src_pool, src) = source_of.get(&src).copied().unwrap_or(src);
            if source_of.insert(dst, (src_pool, src)).is_some() {
                return Err(overwritten(copy.dst));
            }
            resolved.push(BlockCopy { src, src_pool, ..*copy });
        }
        let sources: FxHashSet<(PoolId, BlockId)> =
            resolved.iter().map(|copy| copy.blocks()[0]).collect();
        let is_source = |copy: &&BlockCopy| sources.contains(&copy.blocks()[1]);
        if let Some(copy) = resolved.iter().find(is_source) {
            return Err(overwritten(copy.dst));
        }
        Ok((resolved, copies))
    }

    /// Does without the copies that wait, where they alone own blocks: a reset drops what they keep. They stay while
    /// a request owns a block, since the reset is refused then.
    ///
    /// # Errors
    /// [`Error::NotLive`] where others freed their blocks.
    pub fn give_up_copies_before_reset(&mut self) -> Result<(), Error> {
        let cache = &mut self.engine.cache;
        let mut owned: FxHashMap<(PoolId, BlockId), u32> = FxHashMap::default();
        for block in cache.outbox.owned_blocks() {
            *owned.entry(block).or_default() += 1;
        }
        let pools = (0..cache.store.num_pools()).map(PoolId);
        let num_live: u64 = pools.map(|pool| u64::from(cache.store.pool(pool).num_live())).sum();
        let is_owner = |(&(pool, block), &count): (&(PoolId, BlockId), &u32)| {
            cache.store.pool(pool).ref_count(block) == count
        };
        if num_live != owned.len() as u64 || !owned.iter().all(is_owner) {
            return Ok(());
        }
        let copies = std::mem::take(&mut cache.outbox.copies);
        copies.iter().try_for_each(|copy| cache.release_copy(copy))?;
        drop_where(cache, |_| true).map(drop)
    }

    /// Slabs that groups whose new blocks are zeroed started on since the last call: what they hold
    /// is another group's. With `by_block`, the ids of their blocks.
    pub fn take_started_slabs(&mut self, by_block: bool) -> Vec<u32> {
        let store = &mut self.engine.cache.store;
        let mut started = store.as_slabs_mut().map(SlabStore::take_started).unwrap_or_default();
        let zeroed = |pool| {
            self.config.groups.iter().any(|group| group.zeroes_new_blocks && group.pool == pool)
        };
        started.retain(|&(pool, _)| zeroed(pool));
        // Blocks zeroed one by one are those that a fixed store names.
        self.outputs.iter_mut().for_each(|outputs| outputs.new_blocks.clear());
        let blocks = |(pool, slab): (PoolId, SlabId)| {
            let size = if by_block { self.store().blocks_per_slab(pool) } else { 1 };
            slab.0 * size..(slab.0 + 1) * size
        };
        let mut ids: Vec<u32> = started.into_iter().flat_map(blocks).collect();
        // Another pool may have started on a slab in the same step.
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

impl<S: Store> Call<'_, S> {
    /// Whether what the call just found no room for fits without the copies that no request resumes
    /// from.
    pub(crate) fn fits_without_copies(&mut self, kept: i64) -> bool {
        let kept = kept.max(0).cast_unsigned();
        let reserved = self.cache.reserve();
        let pending = self.cache.outbox.checkpoints.iter().filter(|it| !it.is_taken).count();
        let unused = num_slabs_of_unused(self.cache) + pending as u64;
        match reserved {
            // Only what is left to others is missing.
            Ok(spare) => kept <= spare + unused,
            Err(Error::OutOfBlocks { needed, available, .. }) => {
                needed + kept <= available + unused
            }
            Err(_) => false,
        }
    }

    /// Does without the checkpoint that was last to be copied in this step, so that a running
    /// request gets its room. Returns whether there was one that no request resumes from.
    pub(crate) fn give_up_latest_copies(&mut self) -> Result<bool, Error> {
        let last = self.cache.outbox.copies.iter().rposition(|copy| is_unused(self.cache, copy));
        let Some(mut at) = last else { return Ok(false) };
        // The copies of one checkpoint follow each other, by group.
        loop {
            let copy = self.cache.outbox.copies.remove(at);
            let before = self.cache.store.evicted().len();
            self.cache.store.drop_own_keys(copy.dst_pool, copy.dst);
            self.stats.given_up += (self.cache.store.evicted().len() - before) as u64;
            self.cache.release_copy(&copy)?;
            let before = at.checked_sub(1).map(|before| self.cache.outbox.copies[before]);
            if !before.is_some_and(|it| it.group < copy.group && is_unused(self.cache, &it)) {
                return Ok(true);
            }
            at -= 1;
        }
    }
}

/// Whether a copy is a checkpoint that only the copy's own step holds.
fn is_unused<S: Store>(cache: &Cache<S>, copy: &BlockCopy) -> bool {
    let states = cache.store.pool(copy.dst_pool);
    states.is_hashed(copy.dst) && states.ref_count(copy.dst) == 1
}

/// Slabs that come free without the copies that no request resumes from.
fn num_slabs_of_unused<S: Store>(cache: &Cache<S>) -> u64 {
    let (mut num_slabs, mut apart) = (0, Vec::new());
    for copy in cache.outbox.copies.iter().filter(|copy| is_unused(cache, copy)) {
        if copy.src_pool == copy.dst_pool {
            // The copy is a state, which has a slab of its own.
            num_slabs += 1;
            continue;
        }
        // Several checkpoints share a slab. A state that its request has left is the copy's alone.
        let owned = copy.blocks().into_iter();
        let owned = owned.filter(|&(pool, block)| cache.store.pool(pool).ref_count(block) == 1);
        apart.extend(
            owned.filter_map(|(pool, block)| Some((pool, cache.store.slab_of(pool, block)?))),
        );
    }
    apart.sort_unstable();
    let whole = apart.chunk_by(|one, other| one == other).filter(|blocks| {
        let (pool, slab) = blocks[0];
        cache.store.num_live_in(pool, slab) == blocks.len() as u32
    });
    num_slabs + whole.count() as u64
}

fn overwritten(block: BlockId) -> Error {
    Error::InvalidArgument(format!(
        "block {block} is copied from or to, and overwritten, in one step"
    ))
}
