//! Prefill checkpoints: states that the worker writes from inside a forward pass, so that no chunk ends for them.
//!
//! A place inside a chunk gets a block of each group when the chunk gets its room. The worker learns of it beside the
//! copies of the step. The block gets its key when the next step begins: until then no hit may copy what is not written.

use crate::engine::cache::Cache;
use crate::engine::outbox::PendingCheckpoint;
use crate::engine::{CacheEvent, PrefillCheckpoint};
use crate::error::Error;
use crate::ids::{BlockId, GroupId};
use crate::learn::Checkpoints;
use crate::rules::vllm::{Call, KvCacheManager, ManagerConfig, RequestProgress, TokenCounts};
use crate::store::Store;

impl ManagerConfig {
    /// Whether a pass over the tokens `start..end` can keep the state after `place` of them. One no longer than a step
    /// with drafts may run as such a step does, which keeps none.
    pub(crate) fn is_inside(&self, place: u32, (start, end): (u32, u32)) -> bool {
        let num_drafts = self.groups.iter().map(|group| group.kind.num_speculative()).max();
        self.prefill_checkpoint_alignment.is_some_and(|alignment| {
            (start + 1..end).contains(&place)
                && end - start > 1 + num_drafts.unwrap_or(0)
                && (place - start).is_multiple_of(alignment)
        })
    }
}

impl<S: Store> KvCacheManager<S> {
    /// Returns the prefill checkpoints that the pass at hand writes, since the last call. Their blocks are owned until
    /// the next step begins.
    pub fn take_prefill_checkpoints(&mut self) -> Vec<PrefillCheckpoint> {
        let pending = self.engine.cache.outbox.checkpoints.iter_mut().filter(|it| !it.is_taken);
        let taken = pending.map(|it| {
            it.is_taken = true;
            it.checkpoint
        });
        taken.collect()
    }

    /// Whether the pass at hand keeps states from inside a request's chunk that were not taken yet.
    pub fn keeps_inside(&self, handle: u64) -> bool {
        let mut pending = self.engine.cache.outbox.checkpoints.iter();
        pending.any(|it| it.checkpoint.handle == handle && !it.is_taken)
    }

    /// As [`KvCacheManager::start_step`], where a caller knows which checkpoints have been written.
    pub(crate) fn start_step_after(&mut self, is_written: impl Fn(&PrefillCheckpoint) -> bool) {
        self.begin_step();
        let dropped = drop_where(&mut self.engine.cache, |it| !it.is_taken);
        let kept = self.keep_written(is_written);
        debug_assert!(dropped.is_ok() && kept.is_ok(), "{dropped:?}, {kept:?}");
    }

    /// Keeps the checkpoints of a request that is given up after `num_computed` tokens, as far as they are written.
    pub(crate) fn settle_checkpoints(
        &mut self,
        handle: u64,
        num_computed: u32,
    ) -> Result<(), Error> {
        self.keep_written(|it| it.handle == handle && it.position <= num_computed)?;
        self.withdraw_checkpoints(handle)
    }

    /// Does without the checkpoints of a request that wait for their keys.
    pub(crate) fn withdraw_checkpoints(&mut self, handle: u64) -> Result<(), Error> {
        drop_where(&mut self.engine.cache, |it| it.checkpoint.handle == handle).map(drop)
    }

    /// Gives the checkpoints that were written their keys. Nothing owns their blocks any more.
    fn keep_written(
        &mut self,
        is_written: impl Fn(&PrefillCheckpoint) -> bool,
    ) -> Result<(), Error> {
        let pending = &mut self.engine.cache.outbox.checkpoints;
        let written = pending.extract_if(.., |it| it.is_taken && is_written(&it.checkpoint));
        let written: Vec<_> = written.collect();
        for own in written.chunk_by(|one, other| place(one) == place(other)) {
            let (handle, num_computed) = place(&own[0]);
            let progress = RequestProgress { num_computed, ..RequestProgress::default() };
            let mut call = self.open(handle, progress)?;
            for it in own {
                call.key_checkpoint(it);
            }
            call.score_checkpoint();
            release(call.cache, own)?;
        }
        Ok(())
    }

    /// Others may wait for the checkpoints that a request leaves inside the chunk from `start` on.
    pub(crate) fn expect_checkpoints_inside(&mut self, handle: u64, start: u32) {
        let pending = self.engine.cache.outbox.checkpoints.iter();
        let own = pending.filter(|it| it.checkpoint.handle == handle && !it.is_taken);
        let mut places: Vec<_> = own.map(|it| it.checkpoint.position).collect();
        places.dedup();
        self.coming_checkpoints.extend(places.into_iter().map(|place| (handle, start, place)));
    }
}

impl<S: Store> Call<'_, S> {
    /// Plans the states to be kept from inside a chunk, which are a part of the call's demand then.
    pub(crate) fn plan_inside(&mut self, counts: TokenCounts) {
        let (start, end) = (counts.num_computed, counts.num_main);
        let is_planned = !self.slabs.runs_alone && self.cache.enable_caching;
        let rules = self.config.checkpoint_rules().filter(|_| is_planned);
        let Some(rules) = rules.filter(|_| start < counts.prefill_end) else { return };
        for place in self.places_inside(rules, (start, end)) {
            for group in 0..self.tables.len() {
                if self.config_of(group).kind.is_aligned() && self.lacks_key(group, place) {
                    self.slabs.inside.push((place, group));
                }
            }
        }
    }

    fn places_inside(&self, rules: Checkpoints, chunk: (u32, u32)) -> Vec<u32> {
        if self.config.prefill_checkpoint_alignment.is_none() {
            return Vec::new();
        }
        let pending = self.cache.outbox.checkpoints.iter().map(place);
        let pending: Vec<_> = pending.filter(|&(handle, _)| handle == self.handle).collect();
        let plan = rules.after_copy(self.request.trail.plan(), self.progress.num_computed);
        let most = self.config.last_checkpoint(&self.progress);
        rules
            .places(plan, chunk.0, most)
            .take_while(|&place| place < chunk.1)
            .filter(|&place| self.config.is_inside(place, chunk) && self.is_state_at(place))
            .filter(|&place| !pending.contains(&(self.handle, place)))
            .collect()
    }

    fn lacks_key(&self, group: usize, place: u32) -> bool {
        let key = self.key(group, place);
        key.is_ok_and(|key| self.cache.store.get(self.kept(group), &key).is_none())
    }

    /// Blocks of a group for states that are kept from inside the chunk.
    pub(crate) fn num_inside(&self, group: usize) -> i64 {
        let own = self.slabs.inside.iter().filter(|&&(_, other)| other == group);
        own.count().cast_signed() as i64
    }

    /// Whether the call fits without some of the places inside the chunk. The shortest go first.
    pub(crate) fn fits_with_fewer_inside(
        &mut self,
        computed: Option<&[Vec<BlockId>]>,
        counts: TokenCounts,
        kept: i64,
    ) -> bool {
        while let Some(&(shortest, _)) = self.slabs.inside.first() {
            let before = self.slabs.inside.len();
            self.slabs.inside.retain(|&(place, _)| place != shortest);
            self.slabs.num_cancelled += (before - self.slabs.inside.len()) as u64;
            if self.fits(computed, counts, kept) {
                return true;
            }
        }
        false
    }

    /// Counts the places inside the chunk, which has room, as taken.
    pub(crate) fn count_inside(&mut self) {
        let places = self.slabs.inside.chunk_by(|one, other| one.0 == other.0).count();
        if let Some(plan) = &mut self.request.trail.plan {
            plan.num_taken += places as u32;
        }
    }

    /// Takes a block for each state that is to be kept from inside the chunk.
    pub(crate) fn take_inside(&mut self) -> Result<(), Error> {
        let mut new = Vec::new();
        for (position, group) in std::mem::take(&mut self.slabs.inside) {
            let Some(&src) = self.tables[group].blocks.first() else { continue };
            let (pool, key) = (self.pool(group), self.key(group, position)?);
            new.clear();
            self.take(group, 1, &mut new)?;
            let (handle, group, dst) = (self.handle, GroupId(group as u32), new[0]);
            let checkpoint = PrefillCheckpoint { handle, group, position, src, dst };
            let pending = PendingCheckpoint { checkpoint, pool, key, is_taken: false };
            self.cache.outbox.checkpoints.push(pending);
        }
        Ok(())
    }

    /// Does without the shortest checkpoint that no worker knows of yet. Returns whether there was one.
    pub(crate) fn give_up_shortest_checkpoint(&mut self) -> Result<bool, Error> {
        let untaken = self.cache.outbox.checkpoints.iter().filter(|it| !it.is_taken);
        let Some(shortest) = untaken.map(place).min_by_key(|&(_, position)| position) else {
            return Ok(false);
        };
        self.stats.no_room += drop_where(self.cache, |it| !it.is_taken && place(it) == shortest)?;
        Ok(true)
    }

    /// Lets the state in a checkpoint's block be found, unless another block holds it by now.
    fn key_checkpoint(&mut self, pending: &PendingCheckpoint) {
        let PendingCheckpoint { checkpoint, pool, key, .. } = *pending;
        let PrefillCheckpoint { handle, group, position, dst, .. } = checkpoint;
        if self.cache.store.get(pool, &key).is_some() {
            return;
        }
        self.cache.store.insert_key(pool, dst, &key, position);
        let block_size = self.config.groups[group.index()].block_size;
        self.cache.note(|| CacheEvent::StoredTail {
            handle,
            group,
            block_size,
            num_tokens: position,
            digest: key.digest,
        });
        let moving = self.tables[group.index()].moving_mut();
        moving.last_kept = moving.last_kept.max(position);
        self.stats.prompt += 1;
        self.note_left(group.index(), dst);
    }
}

/// The request of a pending checkpoint, and the tokens up to its state.
fn place(pending: &PendingCheckpoint) -> (u64, u32) {
    (pending.checkpoint.handle, pending.checkpoint.position)
}

/// Does without pending checkpoints. Returns how many there were.
pub(crate) fn drop_where<S: Store>(
    cache: &mut Cache<S>,
    is_dropped: impl Fn(&PendingCheckpoint) -> bool,
) -> Result<u64, Error> {
    let pending = &mut cache.outbox.checkpoints;
    if pending.is_empty() {
        return Ok(0);
    }
    let dropped: Vec<_> = pending.extract_if(.., |it| is_dropped(it)).collect();
    release(cache, &dropped)?;
    Ok(dropped.len() as u64)
}

fn release<S: Store>(cache: &mut Cache<S>, pending: &[PendingCheckpoint]) -> Result<(), Error> {
    let mut blocks = pending.iter();
    blocks.try_for_each(|it| cache.store.free(it.pool, std::iter::once(it.checkpoint.dst)))
}
