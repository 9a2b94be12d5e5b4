//! [`KvCacheManager`]: one call a scheduling decision.

use super::call::{BoundaryState, Call, SlabHooks, StepOutputs};
use super::config::{GroupConfig, Lookup, ManagerConfig};
use super::progress::{AllocateArgs, RequestProgress, TokenCounts};
use super::request::{NoChangeUntil, VllmRequest};
use super::stats::KvCacheStats;
use crate::engine::cache::Cache;
use crate::engine::hit::HitLimit;
use crate::engine::outbox::Outbox;
use crate::engine::requests::Row;
use crate::engine::{ByteSizes, CacheEvent, Engine, ReservedBytes, Residency};
use crate::error::Error;
use crate::group::{Group, GroupBlocks, Table};
use crate::ids::{BlockId, GroupId, PoolId};
use crate::learn::keeper::Keeper;
use crate::learn::windows::has_places;
use crate::store::{EvictionOrder, SlabStore, Slack, Store};
use hybrid_blocks_hash::Digest;

/// The handle of no request.
const NO_REQUEST: u64 = u64::MAX;

/// A block manager that decides as vLLM's does, block by block.
///
/// A request is named by the handle that [`KvCacheManager::add`] gives. The handle of a freed request names
/// nothing, ever: a call with it finds no blocks, frees none, and is refused where it needs a request.
#[derive(Debug)]
pub struct KvCacheManager<S> {
    pub(crate) engine: Engine<S, VllmRequest>,
    pub(crate) config: ManagerConfig,
    /// Outputs by group.
    pub(crate) outputs: Vec<StepOutputs>,
    /// The request next to which no other is admitted, by its id.
    pub(crate) alone: Option<String>,
    /// For how long content is kept, and what is learned for checkpoints; `None` in a fixed store without those:
    /// it evicts as vLLM does.
    pub(crate) keeper: Option<Box<Keeper>>,
    /// Requests whose prompts are computed in this step, the tokens from which on, and those of their next
    /// checkpoints.
    pub(crate) coming_checkpoints: Vec<(u64, u32, u32)>,
    /// Requests that were admitted with room for more tokens than they hold blocks for, and how many.
    pub(crate) promised: Vec<(u64, u32)>,
    /// Whether a request was refused blocks since the step began.
    is_short: bool,
    pub(crate) stats: KvCacheStats,
}

impl<S: Store> KvCacheManager<S> {
    /// A manager without requests.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub fn new(mut store: S, config: ManagerConfig) -> Result<Self, Error> {
        config.check()?;
        if let Some(slabs) = store.as_slabs_mut() {
            slabs.note_started_slabs();
        }
        let groups = config.groups.iter().map(GroupConfig::spec);
        let outbox = Outbox {
            enable_events: config.enable_events,
            enable_residency: config.enable_residency,
            ..Outbox::default()
        };
        let enable_caching = config.enable_caching();
        let mut cache = Cache::new(store, groups, config.hash_block_size, enable_caching, outbox)?;
        keep_apart(&mut cache, &config)?;
        if config.checkpoints.is_some() {
            cache.num_removed = Some(vec![0; config.groups.len()].into());
        }
        let mut keeper = None;
        if enable_caching && (config.checkpoints.is_some() || cache.store.is_slabbed()) {
            if cache.store.is_slabbed() {
                cache.store.order_by_priority()?;
                place_windows(&mut cache.groups, &config);
            }
            let mut new = Keeper::new(&cache, config.hit_alignment());
            if let Some(step_tokens) = config.checkpoints.and_then(|policy| policy.step_tokens) {
                new.traffic.set_step_tokens(step_tokens);
            }
            if config.prefill_checkpoint_alignment.is_some() {
                new.traffic.end_no_chunks();
            }
            new.start_step(&mut cache.store);
            keeper = Some(Box::new(new));
        }
        Ok(Self {
            engine: Engine::new(cache),
            outputs: std::iter::repeat_with(StepOutputs::default)
                .take(config.groups.len())
                .collect(),
            config,
            alone: None,
            keeper,
            coming_checkpoints: Vec::new(),
            promised: Vec::new(),
            is_short: false,
            stats: KvCacheStats::default(),
        })
    }

    /// Returns the store of blocks.
    #[inline]
    pub fn store(&self) -> &S {
        &self.engine.cache.store
    }

    /// The blocks, to be worked on beside the manager.
    #[inline]
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.engine.cache.store
    }

    /// The handle of a request, which is added if it is not known.
    pub fn add(&mut self, id: &str) -> u64 {
        match self.find(id) {
            Some(handle) => handle,
            None => match self.engine.requests.add(id) {
                Ok(handle) => handle,
                Err(_) => unreachable!("the id was just looked for"),
            },
        }
    }

    /// The handle of a request, if it is known.
    #[inline]
    pub fn find(&self, id: &str) -> Option<u64> {
        self.engine.requests.find(id)
    }

    /// The id of a request, if it is known.
    pub fn id(&self, handle: u64) -> Option<&str> {
        let row = self.row(handle)?;
        Some(&self.engine.requests.rows[row].id)
    }

    /// Returns the number of known requests.
    pub(crate) fn num_requests(&self) -> usize {
        self.engine.requests.len()
    }

    /// Checks that all handles are known and different.
    pub(crate) fn check_batch(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.engine.requests.check_batch(handles)
    }

    /// Returns the reason that ended the hit of a request's last look-up; `None` once it is admitted.
    pub(crate) fn ended_by(&self, handle: u64) -> Option<HitLimit> {
        self.engine.requests.rows[self.row(handle)?].rest.ended_by
    }

    /// Returns how many leading tokens had their full attention at a request's last look-up. A
    /// state or a window may have ended the hit before.
    pub fn attention_found(&self, handle: u64) -> Option<u32> {
        Some(self.engine.requests.rows[self.row(handle)?].rest.attention)
    }

    #[inline]
    pub(crate) fn row(&self, handle: u64) -> Option<usize> {
        self.engine.requests.row(handle).ok()
    }

    /// A request's digests, as brought up to date last; none for a request that is not known.
    pub fn digests(&self, handle: u64) -> &[Digest] {
        self.row(handle).map_or(&[], |row| &self.engine.requests.rows[row].digests)
    }

    /// A request's digests, to be brought up to date before a call that uses them.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn digests_mut(&mut self, handle: u64) -> Result<&mut Vec<Digest>, Error> {
        let row = self.engine.requests.row(handle)?;
        Ok(&mut self.engine.requests.rows[row].digests)
    }

    /// Returns the counters since the start.
    pub fn stats(&self) -> KvCacheStats {
        let removed = self.engine.cache.num_removed.iter().flatten().zip(&self.config.groups);
        let states = removed.filter(|(_, group)| group.kind.is_recurrent()).map(|(count, _)| count);
        let others = self.stats.superseded + self.stats.given_up;
        let evicted = states.sum::<u64>().saturating_sub(others);
        KvCacheStats { evicted, ..self.stats }
    }

    /// Counts what the slabs are held for in which a block has an owner. `num_computed` tells how many tokens of a
    /// request are computed; where it does not know, all of a request's blocks are needed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sizes of other groups, or of blocks that do not fit into their slab.
    pub fn reserved_bytes(
        &self,
        sizes: ByteSizes<'_>,
        num_computed: impl Fn(u64) -> Option<u32>,
    ) -> Result<ReservedBytes, Error> {
        self.engine.reserved_bytes(sizes, num_computed)
    }

    /// One request's call, and what it knew of changes to come.
    pub(crate) fn open(
        &mut self,
        handle: u64,
        progress: RequestProgress,
    ) -> Result<Call<'_, S>, Error> {
        let row = self.engine.requests.row(handle)?;
        let Self { engine: Engine { cache, requests, .. }, config, outputs, stats, keeper, .. } =
            self;
        let (Row { digests, rest: request, .. }, tables) = requests.split_mut(row);
        let keeper = keeper.as_deref_mut();
        Ok(Call {
            config,
            cache,
            outputs,
            stats,
            keeper,
            request,
            handle,
            progress,
            digests,
            tables,
            slabs: SlabHooks::default(),
            waits_with_blocks: false,
        })
    }

    fn forget_no_change(&mut self, handle: u64) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        *self.engine.requests.progress_mut(row) = NoChangeUntil::default();
        Ok(())
    }

    /// Whether [`KvCacheManager::allocate`] with nothing but new tokens would change nothing.
    #[inline]
    pub fn is_noop(
        &self,
        handle: u64,
        progress: &RequestProgress,
        num_new: u32,
        num_lookahead: u32,
    ) -> bool {
        self.row(handle).is_some_and(|row| self.is_row_noop(row, progress, num_new, num_lookahead))
    }

    /// As [`KvCacheManager::is_noop`], for the request of a row.
    #[inline]
    pub(crate) fn is_row_noop(
        &self,
        row: usize,
        progress: &RequestProgress,
        num_new: u32,
        num_lookahead: u32,
    ) -> bool {
        let (until, num_dropped) = (self.engine.requests.progress(row), self.store().num_dropped());
        progress.num_computed + num_new <= self.config.max_model_len
            && until.covers(progress, num_new, num_lookahead, num_dropped)
    }

    /// Whether [`KvCacheManager::commit`] would change nothing.
    #[inline]
    pub fn is_commit_noop(&self, handle: u64, num_computed: u32) -> bool {
        self.row(handle).is_some_and(|row| {
            let until = self.engine.requests.progress(row);
            until.covers_commit(num_computed, self.store().num_dropped())
        })
    }

    /// As [`KvCacheManager::allocate_into`]. Returns the new blocks by group, or `None` when there are not enough.
    ///
    /// # Errors
    /// As [`KvCacheManager::allocate_into`].
    pub fn allocate(
        &mut self,
        handle: u64,
        progress: &RequestProgress,
        args: &AllocateArgs<'_>,
    ) -> Result<Option<GroupBlocks>, Error> {
        let mut new = GroupBlocks::new();
        Ok(self.allocate_into(handle, progress, args, &mut new)?.then_some(new))
    }

    /// Room for new tokens, and the blocks of what is computed already. Returns whether there are enough; `new` then
    /// has the new ones by group.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] for arguments that contradict the
    /// request's state, and [`Error::OutOfBlocks`] where the estimate was too low.
    pub fn allocate_into(
        &mut self,
        handle: u64,
        progress: &RequestProgress,
        args: &AllocateArgs<'_>,
        new: &mut GroupBlocks,
    ) -> Result<bool, Error> {
        self.forget_no_change(handle)?;
        let row = self.engine.requests.row(handle)?;
        if self.must_wait(row) {
            return Ok(false);
        }
        if self.config.checkpoints.is_some()
            && self.engine.requests.rows[row].rest.trail.plan.is_none()
        {
            let start = progress.num_computed + args.num_new_computed;
            self.plan_checkpoints(row, progress.num_prompt, start);
        }
        if self.is_alone(row)
            && let Some(slabs) = self.store_mut().as_slabs_mut()
        {
            // The step may have begun before the request was known again.
            slabs.spend_slack(Slack::Packed);
        }
        let next_checkpoint = self.engine.requests.rows[row].rest.next_checkpoint.take();
        let has_room = self.try_allocate(handle, progress, args, new)?;
        self.engine.requests.rows[row].rest.is_stuck = false;
        if !has_room {
            self.is_short = true;
            self.note_stuck(row);
        } else if let Some((start, stop)) = next_checkpoint {
            self.coming_checkpoints.push((handle, start, stop));
        }
        Ok(has_room)
    }

    fn try_allocate(
        &mut self,
        handle: u64,
        progress: &RequestProgress,
        args: &AllocateArgs<'_>,
        new: &mut GroupBlocks,
    ) -> Result<bool, Error> {
        let row = self.engine.requests.row(handle)?;
        let left_to_others = self.left_to_others(row, args);
        let runs_alone = self.is_alone(row);
        let reserved_blocks = self.reserved_blocks(row, args);
        let mut call = self.open(handle, *progress)?;
        call.slabs.left_to_others = left_to_others;
        call.slabs.runs_alone = runs_alone;
        call.waits_with_blocks =
            args.is_load() || (progress.is_waiting && progress.num_computed > 0);
        let max_len = call.config.max_model_len;
        let counts = args.counts(progress, max_len);
        let num_computed = counts.num_computed.min(max_len);
        let all = args.full_sequence_must_fit.then(|| {
            let num_tokens = progress.num_tokens.min(max_len);
            let num_main = num_tokens;
            TokenCounts { num_tokens, num_main, num_computed, is_admission: true, ..counts }
        });
        let leaves_watermark = args.has_scheduled && progress.is_waiting;
        let watermark = if leaves_watermark { call.config.watermark_blocks } else { 0 };
        let unused = i64::from(watermark) + args.withheld_blocks;
        if let Some(all) = all
            && !call.fits(args.computed, all, unused)
        {
            return Ok(false);
        }
        call.before_fit(args, counts);
        let num_processed = progress.num_processed(num_computed);
        call.release_skipped(num_processed)?;
        // The blocks that were just released count.
        let mut kept = unused + reserved_blocks.cast_signed();
        let num_uncounted = call.num_uncounted(args.computed, counts);
        if num_uncounted > 0 {
            // Uncounted blocks are taken from those left to others, or the step would fail.
            kept = kept.max(num_uncounted);
        }
        if !call.fits(args.computed, counts, kept)
            && !call.make_room(args.computed, counts, kept)?
        {
            return Ok(false);
        }
        let has_computed = args.computed.is_some() || args.num_external > 0;
        if has_computed && !call.admit(args, (counts, kept), (all, unused))? {
            return Ok(false);
        }
        call.after_fit(args, num_computed)?;
        new.iter_mut().for_each(Vec::clear);
        new.resize_with(call.tables.len(), Vec::new);
        for (group, new) in new.iter_mut().enumerate() {
            call.extend(group, counts, new)?;
        }
        call.take_inside()?;
        call.score_checkpoint();
        call.cache.note_evictions();
        if !args.delay_commit {
            let num_committed = counts.num_main.min(progress.num_tokens);
            call.commit(num_committed)?;
            if num_computed >= progress.num_prompt {
                let until = call.no_change_until(counts.num_main, num_processed, num_committed);
                *self.engine.requests.progress_mut(row) = until;
            }
        }
        if let Some(all) = all {
            self.promise(row, counts.num_main, all.num_tokens);
        }
        self.expect_checkpoints_inside(handle, num_computed);
        Ok(true)
    }

    /// Blocks that an allocation would take, below zero where more are held than needed. In a store of
    /// slabs, the slabs that these fill, at most.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn demand(
        &mut self,
        handle: u64,
        computed: Option<&[Vec<BlockId>]>,
        counts: TokenCounts,
    ) -> Result<i64, Error> {
        let mut call = self.open(handle, RequestProgress::default())?;
        call.waits_with_blocks = true;
        Ok(if call.cache.store.is_slabbed() {
            call.slab_demand(computed, counts)
        } else {
            call.demand(computed, counts)
        })
    }

    /// Enters what `num_computed` tokens complete into the prefix cache.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], and [`Error::InvalidArgument`] where a block is full that was
    /// cached as fuller.
    pub fn commit(
        &mut self,
        handle: u64,
        progress: &RequestProgress,
        num_computed: u32,
    ) -> Result<(), Error> {
        self.forget_no_change(handle)?;
        let mut call = self.open(handle, *progress)?;
        call.request.is_loading = false;
        call.commit(num_computed)
    }

    /// Gives back what a request need not keep once `num_processed` tokens are computed for good.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], and [`Error::NotLive`] where others freed its blocks.
    pub fn release_skipped(&mut self, handle: u64, num_processed: u32) -> Result<(), Error> {
        self.open(handle, RequestProgress::default())?.release_skipped(num_processed)
    }

    /// Prepares a request for being freed. What it entered beforehand for a step from which it was
    /// taken out again is found no more. Its states are kept where our own rules ask for it. The
    /// request, or one that begins with the same tokens, can resume from them. A request whose load
    /// has not ended keeps nothing: a look-up must not find what no load has written.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn settle(&mut self, handle: u64, progress: &RequestProgress) -> Result<(), Error> {
        let call = self.open(handle, *progress)?;
        call.request.num_computed = progress.num_computed;
        if call.request.is_loading {
            return Ok(());
        }
        self.settle_checkpoints(handle, progress.num_computed)?;
        let mut call = self.open(handle, *progress)?;
        call.drop_unwritten();
        call.keep_states()
    }

    /// Has what a request entered found no more, where it is not computed: the request is given up
    /// in the step that it got room in.
    pub(crate) fn drop_uncomputed(
        &mut self,
        handle: u64,
        progress: &RequestProgress,
    ) -> Result<(), Error> {
        self.open(handle, *progress)?.drop_uncomputed();
        Ok(())
    }

    /// Forgets a request that is not over and gives its blocks back, the last ones first to go.
    ///
    /// # Errors
    /// [`Error::NotLive`] where others freed its blocks.
    pub fn free(&mut self, handle: u64) -> Result<(), Error> {
        self.give_back(handle, false)
    }

    /// Gives back the blocks of a preempted request. It stays known, with its digests.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], and [`Error::NotLive`] where others freed its blocks.
    pub fn suspend(&mut self, handle: u64) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        self.score_left(row, false);
        let released = self.engine.release(row);
        self.forget_outputs(row);
        self.engine.requests.rows[row].rest.suspend();
        // A request that waited for this one does not wait for it again.
        for other in &mut self.engine.requests.rows {
            if other.rest.awaited == Some(handle) {
                other.rest.awaited = Some(NO_REQUEST);
            }
        }
        *self.engine.requests.progress_mut(row) = NoChangeUntil::default();
        released
    }

    /// Forgets a request and gives its blocks back.
    pub(crate) fn give_back(&mut self, handle: u64, is_over: bool) -> Result<(), Error> {
        let Some(row) = self.row(handle) else { return Ok(()) };
        self.score_left(row, is_over);
        let released = self.engine.release(row);
        self.forget(row);
        released
    }

    /// Forgets a request, but leaves its blocks owned; they are returned with their pools in table
    /// order, group by group, without the null blocks at each front. `is_over` says that it does
    /// not go on.
    pub fn pop(&mut self, handle: u64, is_over: bool) -> Vec<(PoolId, BlockId)> {
        let Some(row) = self.row(handle) else { return Vec::new() };
        self.score_left(row, is_over);
        let mut blocks = Vec::new();
        let Engine { cache, requests, .. } = &mut self.engine;
        let (_, tables) = requests.split_mut(row);
        for (group, table) in cache.groups.iter().zip(tables) {
            let held = table.blocks.iter().skip_while(|block| block.is_null());
            blocks.extend(held.map(|&block| (group.spec.pool, block)));
            table.clear();
        }
        self.forget(row);
        blocks
    }

    /// Gives what a request holds its priority before it is given back.
    fn score_left(&mut self, row: usize, is_over: bool) {
        if !self.holds_blocks(row) {
            return;
        }
        let Some(keeper) = self.keeper.as_deref_mut() else { return };
        let (Row { digests, rest: request, .. }, tables) = self.engine.requests.split_mut(row);
        let (cache, num_computed) = (&mut self.engine.cache, request.num_computed);
        request.trail.score_left(keeper, cache, (tables, digests), num_computed, is_over);
        request.trail.windows.clear();
    }

    fn forget(&mut self, row: usize) {
        self.forget_outputs(row);
        self.engine.requests.remove(row);
    }

    fn forget_outputs(&mut self, row: usize) {
        let handle = self.engine.requests.handle(row);
        let withdrawn = self.withdraw_checkpoints(handle);
        debug_assert!(withdrawn.is_ok(), "{withdrawn:?}");
        for outputs in self.outputs.iter_mut().filter(|it| !it.boundary_states.is_empty()) {
            outputs.boundary_states.retain(|state| state.handle != handle);
        }
    }

    /// A group's blocks of a request; none for a request that is not known.
    pub fn blocks(&self, handle: u64, group: GroupId) -> &[BlockId] {
        self.engine.blocks(handle, group).unwrap_or(&[])
    }

    fn table(&self, handle: u64, group: GroupId) -> Option<&Table> {
        self.engine.requests.tables(self.row(handle)?).get(group.index())
    }

    /// Leading blocks of a group that were entered into the prefix cache, or need not be.
    pub fn num_cached_blocks(&self, handle: u64, group: GroupId) -> Option<u32> {
        self.table(handle, group)?.num_cached()
    }

    /// Tokens and position of the checkpoint that a request's latest chunk writes in a group.
    pub fn checkpoint(&self, handle: u64, group: GroupId) -> Option<(u32, u32)> {
        self.table(handle, group)?.moving().checkpoint
    }

    /// Ids of the requests that hold blocks of a group.
    pub fn holders(&self, group: GroupId) -> impl Iterator<Item = &str> {
        let requests = &self.engine.requests;
        let holds = move |row: &usize| !requests.table(*row, group).blocks.is_empty();
        requests.taken().filter(holds).map(|row| &*requests.rows[row].id)
    }

    /// Tokens of a request that every group has cached, at least.
    pub fn num_cached_tokens(&self, handle: u64) -> u32 {
        let Some(row) = self.row(handle) else { return 0 };
        let cache = &self.engine.cache;
        let tables = cache.groups.iter().zip(self.engine.requests.tables(row));
        let tables = tables.zip(&self.config.groups).filter(|(_, config)| config.is_cacheable());
        let cached = tables.map(|((group, table), _)| {
            if self.config.checkpoints.is_some() && group.kind().is_aligned() {
                return table.moving().last_kept;
            }
            let index = cache.store.prefix_index(group.spec.pool);
            let known = table.blocks.iter().filter_map(|&block| index.first_key(block));
            known.map(|(_, num_tokens)| num_tokens).max().unwrap_or(0)
        });
        cached.min().unwrap_or(0)
    }

    /// A step begins: what the last one computed is there.
    pub fn start_step(&mut self) {
        self.start_step_after(|_| true);
    }

    pub(crate) fn begin_step(&mut self) {
        let is_short = std::mem::take(&mut self.is_short);
        let is_scattered = self.store().as_slabs().is_some_and(SlabStore::is_scattered);
        let slack = match is_short || is_scattered {
            _ if self.runs_alone() => Slack::Packed,
            true => Slack::First,
            false => Slack::ByOrder,
        };
        if let Some(slabs) = self.store_mut().as_slabs_mut() {
            // Content cached before, in any pool, is older than content cached from now on.
            slabs.tick();
            slabs.spend_slack(slack);
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.start_step(&mut self.engine.cache.store);
        }
        self.coming_checkpoints.clear();
        self.outputs.iter_mut().for_each(|outputs| outputs.cached_this_step.clear());
    }

    /// Drops all cached content, and the copies that wait.
    ///
    /// # Errors
    /// [`Error::BlocksInUse`] while a request owns a block.
    pub(crate) fn reset(&mut self) -> Result<(), Error> {
        self.give_up_copies_before_reset()?;
        self.engine.cache.store.reset()?;
        if let Some(keeper) = &mut self.keeper {
            keeper.sessions.ends.clear();
        }
        self.engine.cache.note(|| CacheEvent::Cleared);
        Ok(())
    }

    /// Blocks that the worker must zero, group by group, since the last call.
    pub fn take_new_blocks(&mut self) -> Vec<BlockId> {
        let outputs = self.outputs.iter_mut();
        outputs.flat_map(|outputs| std::mem::take(&mut outputs.new_blocks)).collect()
    }

    /// Has a request's blocks zeroed from `start_token` on, which must start a block.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where it does not.
    pub fn zero_again(&mut self, handle: u64, start_token: u32) -> Result<(), Error> {
        for (group, config) in self.config.groups.iter().enumerate() {
            if !config.zeroes_new_blocks {
                continue;
            }
            if !start_token.is_multiple_of(config.block_size) {
                return Err(Error::InvalidArgument(format!(
                    "token {start_token} does not start a block of {}",
                    config.block_size
                )));
            }
            let start = (start_token / config.block_size) as usize;
            let blocks = self.engine.blocks(handle, GroupId(group as u32)).unwrap_or(&[]);
            let blocks = blocks.get(start..).unwrap_or_default();
            self.outputs[group].new_blocks.extend_from_slice(blocks);
        }
        Ok(())
    }

    /// Blocks to copy, source and destination, group by group, since the last call. Both are owned
    /// until freed.
    pub fn take_copies(&mut self) -> Vec<(BlockId, BlockId)> {
        let mut copies = std::mem::take(&mut self.engine.cache.outbox.copies);
        copies.sort_by_key(|copy| copy.group);
        copies.into_iter().map(|copy| (copy.src, copy.dst)).collect()
    }

    /// States that a connector may save, since the last call.
    pub fn take_boundary_states(&mut self) -> Vec<BoundaryState> {
        let outputs = self.outputs.iter_mut();
        outputs.flat_map(|outputs| std::mem::take(&mut outputs.boundary_states)).collect()
    }

    /// The states at the end of a finished request's prompt that nothing was computed after.
    pub fn take_final_states(
        &mut self,
        handle: u64,
        num_computed: u32,
        num_in_flight: i32,
    ) -> Vec<(GroupId, BlockId, u32)> {
        let Some(row) = self.row(handle) else { return Vec::new() };
        let groups = self.engine.cache.groups.iter();
        let (_, tables) = self.engine.requests.split_mut(row);
        let tails = groups.zip(tables).filter_map(|(group, table)| {
            table.moving().producer_tail?;
            let (block, num_tokens) = table.moving_mut().producer_tail.take()?;
            Some((group.id, block, num_tokens))
        });
        tails.filter(|&(.., num_tokens)| num_in_flight == 0 && num_computed == num_tokens).collect()
    }

    /// Changes of the prefix cache since the last call.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.engine.cache.note_evictions();
        std::mem::take(&mut self.engine.cache.outbox.events)
    }

    /// Returns the residency events since the last call, in order.
    pub fn take_residency(&mut self) -> Vec<(Residency, BlockId)> {
        std::mem::take(&mut self.engine.cache.outbox.residency)
    }

    /// Walks everything: no block owned twice, counts equal tables, indexes and lists agree. Only
    /// for a store whose blocks have no other owners.
    ///
    /// # Errors
    /// The first contradiction, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.engine.check_integrity()
    }
}

/// Has keys name blocks of the pools that checkpoints have for themselves.
fn keep_apart<S: Store>(cache: &mut Cache<S>, config: &ManagerConfig) -> Result<(), Error> {
    let num_pools = cache.store.num_pools();
    for (group, config) in cache.groups.iter_mut().zip(&config.groups) {
        let Some(kept) = config.kept else { continue };
        if kept.0 >= num_pools {
            return Err(Error::InvalidConfig(format!(
                "group {} keeps checkpoints in pool {kept} of {num_pools}; the first is pool 0",
                group.id
            )));
        }
        group.kept = kept;
    }
    Ok(())
}

/// Has windows kept where checkpoints are.
fn place_windows(groups: &mut [Group], config: &ManagerConfig) {
    let Lookup::Hybrid { specs, .. } = &config.lookup else { return };
    let has_windows = groups.iter().any(|group| group.kind().is_window());
    if config.checkpoints.is_none() || !has_windows || !has_places(groups) {
        return;
    }
    for spec in specs {
        for group in &spec.groups {
            let group = &mut groups[group.index()];
            group.num_dropped = u32::from(spec.use_eagle);
            group.is_placed = group.kind().is_window();
        }
    }
}
