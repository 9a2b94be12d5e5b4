//! [`Manager`]: one call a scheduling decision.

use crate::digest::Digest;
use crate::error::Error;
use crate::ids::{BlockId, GroupId};
use crate::store::BlockStore;

use super::cache::{BoundaryState, Cache, Outbox, POOL};
use super::config::Config;
use super::demand::Span as TokenCounts;
use super::event::CacheEvent;
use super::lookup::{Finder, Hit};
use super::quiet::{Quiet, Step};
use super::request::{Facts as RequestProgress, Request, Table, trim_null_head};
use super::requests::Requests;

/// What an allocation asks for. Counts are tokens, unless they are blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocateArgs<'a> {
    /// To be computed, drafts included.
    pub num_new: u32,
    /// Of the hit.
    pub num_new_computed: u32,
    /// Blocks of the hit by group; `None` where there was no lookup or nothing was found.
    pub computed: Option<&'a [Vec<BlockId>]>,
    /// After the new ones, for a drafter.
    pub num_lookahead: u32,
    /// Computed elsewhere.
    pub num_external: u32,
    /// Whether the blocks are filled later and must not be hit before.
    pub delay_commit: bool,
    /// Whether the whole request must fit, not only this step.
    pub full_sequence_must_fit: bool,
    /// Blocks to leave to others.
    pub reserved_blocks: u64,
    /// Whether others run, so that an admission leaves the watermark free.
    pub has_scheduled: bool,
    /// Groups whose blocks for external tokens are written by others and must not be zeroed.
    pub unzeroed_groups: &'a [u32],
}

/// A block manager that decides as vLLM's does, block by block, over one fixed pool.
///
/// A request is named by the handle that [`Manager::add`] gives. The handle of a freed request names
/// nothing, ever: a call with it finds no blocks, frees none, and is refused where it needs a request.
#[derive(Debug)]
pub struct Manager {
    store: BlockStore,
    config: Config,
    outboxes: Vec<Outbox>,
    events: Vec<CacheEvent>,
    requests: Requests,
}

impl Manager {
    /// A manager without requests over a fixed store.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub fn new(store: BlockStore, config: Config) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            store,
            outboxes: std::iter::repeat_with(Outbox::default).take(config.groups.len()).collect(),
            config,
            events: Vec::new(),
            requests: Requests::default(),
        })
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The blocks.
    #[inline]
    #[must_use]
    pub fn store(&self) -> &BlockStore {
        &self.store
    }

    /// The blocks, to be worked on beside the manager.
    #[inline]
    pub fn store_mut(&mut self) -> &mut BlockStore {
        &mut self.store
    }

    /// The handle of a request, which is added if it is not known.
    pub fn add(&mut self, id: &str) -> u64 {
        self.requests.add(id, self.config.groups.len())
    }

    /// The handle of a request, if it is known.
    #[inline]
    #[must_use]
    pub fn find(&self, id: &str) -> Option<u64> {
        self.requests.find(id)
    }

    /// A request's digests, as brought up to date last; none for a request that is not known.
    #[must_use]
    pub fn digests(&self, handle: u64) -> &[Digest] {
        self.requests.get(handle).map_or(&[], |request| &request.digests)
    }

    /// A request's digests, to be brought up to date before a call that uses them.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn digests_mut(&mut self, handle: u64) -> Result<&mut Vec<Digest>, Error> {
        Ok(&mut self.requests.get_mut(handle)?.1.digests)
    }

    /// The blocks and one request with its id.
    fn open(&mut self, handle: u64) -> Result<(Cache<'_>, &str, &mut Request), Error> {
        let Self { store, config, outboxes, events, requests } = self;
        let (id, request) = requests.get_mut(handle)?;
        Ok((Cache { store, config, outboxes, events }, id, request))
    }

    fn cache(&mut self) -> Cache<'_> {
        let Self { store, config, outboxes, events, .. } = self;
        Cache { store, config, outboxes, events }
    }

    fn finder<'a>(&'a self, digests: &'a [Digest]) -> Finder<'a> {
        Finder { store: &self.store, config: &self.config, digests }
    }

    /// The longest cached prefix of at most `limit` tokens. Takes nothing.
    #[must_use]
    pub fn longest_hit(&self, digests: &[Digest], limit: u32) -> Hit {
        self.finder(digests).longest_hit(limit)
    }

    /// The same for the digests of a known request.
    #[must_use]
    pub fn longest_hit_of(&self, handle: u64, limit: u32) -> Hit {
        self.longest_hit(self.digests(handle), limit)
    }

    /// The longest cached prefix of each group on its own, with its tokens.
    #[must_use]
    pub fn hit_per_group(&self, digests: &[Digest], limit: u32) -> (Vec<Vec<BlockId>>, Vec<u32>) {
        self.finder(digests).hit_per_group(limit)
    }

    /// Whether [`Manager::allocate`] with nothing but new tokens would change nothing.
    #[inline]
    #[must_use]
    pub fn is_noop(
        &self,
        handle: u64,
        progress: &RequestProgress,
        num_new: u32,
        num_lookahead: u32,
    ) -> bool {
        let Some(request) = self.requests.get(handle) else { return false };
        let num_main = progress.num_computed + num_new;
        let step = Step {
            start: progress.num_computed,
            end: num_main,
            slots: num_main + num_lookahead,
            processed: progress.num_computed.saturating_sub(progress.num_in_flight),
        };
        num_main <= self.config.max_model_len
            && request.quiet.covers(step, self.store.num_dropped())
    }

    /// Whether [`Manager::commit`] would change nothing.
    #[inline]
    #[must_use]
    pub fn is_commit_noop(&self, handle: u64, num_computed: u32) -> bool {
        let request = self.requests.get(handle);
        request.is_some_and(|it| it.quiet.covers_commit(num_computed, self.store.num_dropped()))
    }

    /// Room for new tokens, and the blocks of what is computed already. Returns the new blocks by
    /// group, or `None` when there are not enough.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] for arguments that contradict the
    /// request's state, and [`Error::OutOfBlocks`] where the estimate was too low.
    pub fn allocate(
        &mut self,
        handle: u64,
        progress: &RequestProgress,
        args: &AllocateArgs<'_>,
    ) -> Result<Option<Vec<Vec<BlockId>>>, Error> {
        let (mut cache, id, request) = self.open(handle)?;
        request.quiet = Quiet::default();
        let max_len = cache.config.max_model_len;
        let num_local = progress.num_computed + args.num_new_computed;
        let num_computed = (num_local + args.num_external).min(max_len);
        let watermark = if args.has_scheduled && progress.is_waiting {
            i64::from(cache.config.watermark_blocks)
        } else {
            0
        };
        let prefill_end = progress.num_prompt.max(progress.num_tokens.saturating_sub(1));
        if args.full_sequence_must_fit {
            let num_tokens = progress.num_tokens.min(max_len);
            let counts = TokenCounts {
                num_tokens,
                num_main: num_tokens,
                num_computed,
                num_local,
                prefill_end,
                is_admission: true,
            };
            let needed = cache.demand(request, args.computed, counts) + watermark;
            if needed > cache.num_free().cast_signed() {
                return Ok(None);
            }
        }
        let num_main = num_computed + args.num_new;
        let num_slots = (num_main + args.num_lookahead).min(max_len);
        let num_processed = num_computed.saturating_sub(progress.num_in_flight);
        cache.recede(request, num_processed)?;
        let counts = TokenCounts {
            num_tokens: num_slots,
            num_main,
            num_computed: num_local + args.num_external,
            num_local,
            prefill_end,
            is_admission: false,
        };
        let needed = cache.demand(request, args.computed, counts) + watermark;
        // The blocks that were just released count.
        if needed > cache.num_free().cast_signed() - args.reserved_blocks.cast_signed() {
            return Ok(None);
        }
        if args.computed.is_some() || args.num_external > 0 {
            let (num_external, unzeroed) = (args.num_external, args.unzeroed_groups);
            cache.admit(request, args.computed, num_local, num_external, unzeroed)?;
        }
        let mut new = Vec::with_capacity(cache.config.groups.len());
        for group in 0..cache.config.groups.len() {
            new.push(cache.extend(request, id, group, num_slots, num_main)?);
        }
        if !args.delay_commit {
            let num_committed = num_main.min(progress.num_tokens);
            cache.commit(request, id, progress, num_committed)?;
            if num_computed >= progress.num_prompt {
                request.quiet = cache.quiet(request, progress, num_processed, num_committed);
            }
        }
        Ok(Some(new))
    }

    /// Blocks that an allocation would take, below zero where more are held than needed.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn demand(
        &mut self,
        handle: u64,
        computed: Option<&[Vec<BlockId>]>,
        counts: TokenCounts,
    ) -> Result<i64, Error> {
        let (cache, _, request) = self.open(handle)?;
        Ok(cache.demand(request, computed, counts))
    }

    /// Enter what `num_computed` tokens complete into the prefix cache.
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
        let (mut cache, id, request) = self.open(handle)?;
        request.quiet = Quiet::default();
        cache.commit(request, id, progress, num_computed)
    }

    /// Give back what a request need not keep once `num_processed` tokens are computed for good.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], and [`Error::NotLive`] where others freed its blocks.
    pub fn release_skipped(&mut self, handle: u64, num_processed: u32) -> Result<(), Error> {
        let (mut cache, _, request) = self.open(handle)?;
        cache.recede(request, num_processed)
    }

    /// Forget a request and give its blocks back, the last ones first to go.
    ///
    /// # Errors
    /// [`Error::NotLive`] where others freed its blocks.
    pub fn free(&mut self, handle: u64) -> Result<(), Error> {
        let Some(request) = self.forget(handle) else { return Ok(()) };
        let mut cache = self.cache();
        let mut free = |table: &Table| cache.free(table.blocks.iter().rev().copied());
        request.tables.iter().try_for_each(&mut free)
    }

    /// Forget a request, but leave its blocks owned; they are returned in table order, group by
    /// group, without the null blocks at each front.
    pub fn pop(&mut self, handle: u64) -> Vec<BlockId> {
        let request = self.forget(handle);
        let tables = request.iter().flat_map(|request| &request.tables);
        tables.flat_map(|table| trim_null_head(&table.blocks)).copied().collect()
    }

    fn forget(&mut self, handle: u64) -> Option<Request> {
        let (id, request) = self.requests.remove(handle)?;
        for outbox in &mut self.outboxes {
            if !outbox.boundary_states.is_empty() {
                outbox.boundary_states.retain(|state| state.request_id != *id);
            }
        }
        Some(request)
    }

    /// A group's blocks of a request; none for a request that is not known.
    #[must_use]
    pub fn blocks(&self, handle: u64, group: GroupId) -> &[BlockId] {
        let request = self.requests.get(handle);
        request.map_or(&[], |request| &request.tables[group.index()].blocks)
    }

    /// Leading blocks of a group that were entered into the prefix cache, or need not be.
    #[must_use]
    pub fn num_cached_blocks(&self, handle: u64, group: GroupId) -> Option<u32> {
        self.requests.get(handle)?.tables[group.index()].num_cached
    }

    /// Tokens and position of the checkpoint that a request's latest chunk writes in a group.
    #[must_use]
    pub fn checkpoint(&self, handle: u64, group: GroupId) -> Option<(u32, u32)> {
        self.requests.get(handle)?.tables[group.index()].aligned.checkpoint
    }

    /// Ids of the requests that hold blocks of a group.
    pub fn holders(&self, group: GroupId) -> impl Iterator<Item = &str> {
        let requests = self.requests.iter();
        requests
            .filter(move |(_, request)| !request.tables[group.index()].blocks.is_empty())
            .map(|(id, _)| id)
    }

    /// Tokens of a request that every group has cached, at least.
    #[must_use]
    pub fn num_cached_tokens(&self, handle: u64) -> u32 {
        let Some(request) = self.requests.get(handle) else { return 0 };
        let index = self.store.prefix_index(POOL);
        let cached = |table: &Table| {
            let keyed = table.blocks.iter().filter_map(|&block| index.first_key(block));
            keyed.map(|(_, num_tokens)| num_tokens).max().unwrap_or(0)
        };
        request.tables.iter().map(cached).min().unwrap_or(0)
    }

    /// A step begins: what the last one computed is there.
    pub fn start_step(&mut self) {
        self.outboxes.iter_mut().for_each(|outbox| outbox.cached_this_step.clear());
    }

    /// Blocks that the worker must zero, group by group, since the last call.
    pub fn take_new_blocks(&mut self) -> Vec<BlockId> {
        let outboxes = self.outboxes.iter_mut();
        outboxes.flat_map(|outbox| std::mem::take(&mut outbox.new_blocks)).collect()
    }

    /// Have a request's blocks zeroed from `start_token` on, which must start a block.
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
            let table = self.requests.get(handle).map(|request| &request.tables[group].blocks);
            let blocks = table.and_then(|blocks| blocks.get(start..)).unwrap_or_default();
            self.outboxes[group].new_blocks.extend_from_slice(blocks);
        }
        Ok(())
    }

    /// Blocks to copy, source and destination, since the last call. Both are owned until freed.
    pub fn take_copies(&mut self) -> Vec<(BlockId, BlockId)> {
        let outboxes = self.outboxes.iter_mut();
        outboxes.flat_map(|outbox| std::mem::take(&mut outbox.copies)).collect()
    }

    /// States that a connector may save, since the last call.
    pub fn take_boundary_states(&mut self) -> Vec<BoundaryState> {
        let outboxes = self.outboxes.iter_mut();
        outboxes.flat_map(|outbox| std::mem::take(&mut outbox.boundary_states)).collect()
    }

    /// The states at the end of a finished request's prompt that nothing was computed after.
    pub fn take_final_states(
        &mut self,
        handle: u64,
        num_computed: u32,
        num_in_flight: u32,
    ) -> Vec<(GroupId, BlockId, u32)> {
        let request = self.requests.get_mut(handle).ok();
        let tables = request.map(|(_, request)| &mut request.tables);
        let tails = tables.into_iter().flatten().enumerate().filter_map(|(group, table)| {
            let (block, num_tokens) = table.aligned.producer_tail.take()?;
            Some((GroupId(group as u32), block, num_tokens))
        });
        tails.filter(|&(.., num_tokens)| num_in_flight == 0 && num_computed == num_tokens).collect()
    }

    /// Changes of the prefix cache since the last call.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.cache().note_evictions();
        std::mem::take(&mut self.events)
    }
}
