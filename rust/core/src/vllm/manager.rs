//! [`Manager`]: one call a scheduling decision.

use rustc_hash::FxHashMap;

use crate::digest::Digest;
use crate::error::Error;
use crate::ids::{BlockId, GroupId};
use crate::store::{FixedStore as BlockStore, Store};

use super::cache::{BoundaryState, Cache, Outbox, POOL};
use super::config::Config;
use super::demand::Span;
use super::event::CacheEvent;
use super::lookup::{Finder, Hit};
use super::quiet::{Quiet, Step};
use super::request::{Facts, Request, Table, trim_null_head};

/// What an allocation asks for. Counts are tokens, unless they are blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
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
    /// Added to the count of free blocks, which vLLM lets be written to feign a shortage.
    pub free_offset: i64,
    /// Whether others run, so that an admission leaves the watermark free.
    pub has_scheduled: bool,
    /// Groups whose blocks for external tokens are written by others and must not be zeroed.
    pub unzeroed_groups: &'a [u32],
}

/// A block manager that decides as vLLM's does, block by block.
///
/// The blocks are the caller's: every call that touches them is given the same fixed store.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    outboxes: Vec<Outbox>,
    events: Vec<CacheEvent>,
    requests: FxHashMap<Box<str>, Request>,
    /// The request at which to panic.
    fault: Option<Box<str>>,
}

impl Manager {
    /// A manager without requests.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub fn new(config: Config) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            outboxes: std::iter::repeat_with(Outbox::default).take(config.groups.len()).collect(),
            config,
            events: Vec::new(),
            requests: FxHashMap::default(),
            fault: None,
        })
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Panic when the request is next allocated for, to test what becomes of it.
    pub fn inject_fault(&mut self, request_id: &str) {
        self.fault = Some(request_id.into());
    }

    /// A request's digests, to be brought up to date before a call that uses them.
    pub fn digests_mut(&mut self, request_id: &str) -> &mut Vec<Digest> {
        self.add(request_id);
        match self.requests.get_mut(request_id) {
            Some(request) => &mut request.digests,
            None => unreachable!("the request was just added"),
        }
    }

    fn add(&mut self, request_id: &str) {
        if !self.requests.contains_key(request_id) {
            self.requests.insert(request_id.into(), Request::new(self.config.groups.len()));
        }
    }

    /// The blocks and one request, which is added if it is not known.
    fn open<'a>(
        &'a mut self,
        store: &'a mut BlockStore,
        request_id: &str,
    ) -> (Cache<'a>, &'a mut Request) {
        self.add(request_id);
        let Self { config, outboxes, events, requests, .. } = self;
        match requests.get_mut(request_id) {
            Some(request) => (Cache { store, config, outboxes, events }, request),
            None => unreachable!("the request was just added"),
        }
    }

    fn cache<'a>(&'a mut self, store: &'a mut BlockStore) -> Cache<'a> {
        let Self { config, outboxes, events, .. } = self;
        Cache { store, config, outboxes, events }
    }

    /// The longest cached prefix of at most `limit` tokens. Takes nothing.
    #[must_use]
    pub fn longest_hit(&self, store: &BlockStore, digests: &[Digest], limit: u32) -> Hit {
        Finder { store, config: &self.config, digests }.longest_hit(limit)
    }

    /// The same for the digests of a known request.
    #[must_use]
    pub fn longest_hit_of(&self, store: &BlockStore, request_id: &str, limit: u32) -> Hit {
        self.longest_hit(store, self.digests(request_id), limit)
    }

    /// The longest cached prefix of each group on its own, with its tokens.
    #[must_use]
    pub fn hit_per_group(
        &self,
        store: &BlockStore,
        digests: &[Digest],
        limit: u32,
    ) -> (Vec<Vec<BlockId>>, Vec<u32>) {
        Finder { store, config: &self.config, digests }.hit_per_group(limit)
    }

    /// A request's digests, as brought up to date last.
    #[must_use]
    pub fn digests(&self, request_id: &str) -> &[Digest] {
        self.requests.get(request_id).map_or(&[], |request| &request.digests)
    }

    /// Whether [`Manager::allocate`] with nothing but new tokens would change nothing.
    #[inline]
    #[must_use]
    pub fn is_quiet(
        &self,
        store: &BlockStore,
        request_id: &str,
        facts: &Facts,
        num_new: u32,
        num_lookahead: u32,
    ) -> bool {
        let Some(request) = self.requests.get(request_id) else { return false };
        let num_main = facts.num_computed + num_new;
        let step = Step {
            start: facts.num_computed,
            end: num_main,
            slots: num_main + num_lookahead,
            processed: facts.num_computed.saturating_sub(facts.num_in_flight),
        };
        num_main <= self.config.max_model_len && request.quiet.covers(step, store.num_dropped())
    }

    /// Whether [`Manager::commit`] would change nothing.
    #[inline]
    #[must_use]
    pub fn is_commit_quiet(&self, store: &BlockStore, request_id: &str, num_computed: u32) -> bool {
        let request = self.requests.get(request_id);
        request.is_some_and(|it| it.quiet.covers_commit(num_computed, store.num_dropped()))
    }

    /// Room for new tokens, and the blocks of what is computed already. Returns the new blocks by
    /// group, or `None` when there are not enough.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an ask that contradicts the request's state, and
    /// [`Error::OutOfBlocks`] where the estimate was too low.
    ///
    /// # Panics
    /// Where [`Manager::inject_fault`] asked for it.
    pub fn allocate(
        &mut self,
        store: &mut BlockStore,
        request_id: &str,
        facts: &Facts,
        ask: &Ask<'_>,
    ) -> Result<Option<Vec<Vec<BlockId>>>, Error> {
        assert!(self.fault.as_deref() != Some(request_id), "injected fault");
        let (mut cache, request) = self.open(store, request_id);
        request.quiet = Quiet::default();
        let max_len = cache.config.max_model_len;
        let num_local = facts.num_computed + ask.num_new_computed;
        let num_computed = (num_local + ask.num_external).min(max_len);
        let watermark = if ask.has_scheduled && facts.is_waiting {
            i64::from(cache.config.watermark_blocks)
        } else {
            0
        };
        let prefill_end = facts.num_prompt.max(facts.num_tokens.saturating_sub(1));
        let num_free = cache.num_free().cast_signed() + ask.free_offset;
        if ask.full_sequence_must_fit {
            let num_tokens = facts.num_tokens.min(max_len);
            let span = Span {
                num_tokens,
                num_main: num_tokens,
                num_computed,
                num_local,
                prefill_end,
                is_admission: true,
            };
            if cache.demand(request, ask.computed, span) + watermark > num_free {
                return Ok(None);
            }
        }
        let num_main = num_computed + ask.num_new;
        let num_slots = (num_main + ask.num_lookahead).min(max_len);
        let num_processed = num_computed.saturating_sub(facts.num_in_flight);
        cache.recede(request, num_processed)?;
        let span = Span {
            num_tokens: num_slots,
            num_main,
            num_computed: num_local + ask.num_external,
            num_local,
            prefill_end,
            is_admission: false,
        };
        let needed = cache.demand(request, ask.computed, span) + watermark;
        // Receding gave blocks back.
        let num_free = cache.num_free().cast_signed() + ask.free_offset;
        if needed > num_free - ask.reserved_blocks.cast_signed() {
            return Ok(None);
        }
        if ask.computed.is_some() || ask.num_external > 0 {
            cache.admit(request, ask.computed, num_local, ask.num_external, ask.unzeroed_groups)?;
        }
        let mut new = Vec::with_capacity(cache.config.groups.len());
        for group in 0..cache.config.groups.len() {
            new.push(cache.extend(request, request_id, group, num_slots, num_main)?);
        }
        if !ask.delay_commit {
            cache.commit(request, request_id, facts, num_main.min(facts.num_tokens))?;
            if num_computed >= facts.num_prompt {
                let num_committed = num_main.min(facts.num_tokens);
                request.quiet = cache.quiet(request, facts, num_processed, num_committed);
            }
        }
        Ok(Some(new))
    }

    /// Blocks that an allocation would take, below zero where more are held than needed.
    #[must_use]
    pub fn demand(
        &mut self,
        store: &mut BlockStore,
        request_id: &str,
        computed: Option<&[Vec<BlockId>]>,
        span: Span,
    ) -> i64 {
        let (cache, request) = self.open(store, request_id);
        cache.demand(request, computed, span)
    }

    /// Enter what `num_computed` tokens complete into the prefix cache.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a block is full that was cached as fuller.
    pub fn commit(
        &mut self,
        store: &mut BlockStore,
        request_id: &str,
        facts: &Facts,
        num_computed: u32,
    ) -> Result<(), Error> {
        let (mut cache, request) = self.open(store, request_id);
        request.quiet = Quiet::default();
        cache.commit(request, request_id, facts, num_computed)
    }

    /// Give back what a request need not keep once `num_processed` tokens are computed for good.
    ///
    /// # Errors
    /// [`Error::NotLive`] where others freed its blocks.
    pub fn recede(
        &mut self,
        store: &mut BlockStore,
        request_id: &str,
        num_processed: u32,
    ) -> Result<(), Error> {
        if !self.requests.contains_key(request_id) {
            return Ok(());
        }
        let (mut cache, request) = self.open(store, request_id);
        cache.recede(request, num_processed)
    }

    /// Forget a request and give its blocks back, the last ones first to go.
    ///
    /// # Errors
    /// [`Error::NotLive`] where others freed its blocks.
    pub fn free(&mut self, store: &mut BlockStore, request_id: &str) -> Result<(), Error> {
        let Some(request) = self.forget(request_id) else { return Ok(()) };
        let mut cache = self.cache(store);
        let mut free = |table: &Table| cache.free(table.blocks.iter().rev().copied());
        request.tables.iter().try_for_each(&mut free)
    }

    /// Forget a request, but leave its blocks owned; they are returned in table order, group by
    /// group, without the null blocks at each front.
    pub fn pop(&mut self, request_id: &str) -> Vec<BlockId> {
        let request = self.forget(request_id);
        let tables = request.iter().flat_map(|request| &request.tables);
        tables.flat_map(|table| trim_null_head(&table.blocks)).copied().collect()
    }

    fn forget(&mut self, request_id: &str) -> Option<Request> {
        let request = self.requests.remove(request_id)?;
        for outbox in &mut self.outboxes {
            if !outbox.boundary_states.is_empty() {
                outbox.boundary_states.retain(|state| state.request_id != request_id);
            }
        }
        Some(request)
    }

    /// A group's blocks of a request; none for a request that is not known.
    #[must_use]
    pub fn blocks(&self, request_id: &str, group: GroupId) -> &[BlockId] {
        let request = self.requests.get(request_id);
        request.map_or(&[], |request| &request.tables[group.index()].blocks)
    }

    /// Leading blocks of a group that were entered into the prefix cache, or need not be.
    #[must_use]
    pub fn num_cached_blocks(&self, request_id: &str, group: GroupId) -> Option<u32> {
        self.requests.get(request_id)?.tables[group.index()].num_cached
    }

    /// Tokens and position of the checkpoint that a request's latest chunk writes in a group.
    #[must_use]
    pub fn checkpoint(&self, request_id: &str, group: GroupId) -> Option<(u32, u32)> {
        self.requests.get(request_id)?.tables[group.index()].aligned.checkpoint
    }

    /// Ids of the requests that hold blocks of a group.
    pub fn holders(&self, group: GroupId) -> impl Iterator<Item = &str> {
        let requests = self.requests.iter();
        requests
            .filter(move |(_, request)| !request.tables[group.index()].blocks.is_empty())
            .map(|(id, _)| &**id)
    }

    /// Tokens of a request that every group has cached, at least.
    #[must_use]
    pub fn num_cached_tokens(&self, store: &BlockStore, request_id: &str) -> u32 {
        let Some(request) = self.requests.get(request_id) else { return 0 };
        let index = store.prefix_index(POOL);
        let cached = |table: &Table| {
            let hashed = table.blocks.iter().filter_map(|&block| index.first_key(block));
            hashed.map(|(_, num_tokens)| num_tokens).max().unwrap_or(0)
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
    pub fn zero_again(&mut self, request_id: &str, start_token: u32) -> Result<(), Error> {
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
            let table = self.requests.get(request_id).map(|request| &request.tables[group].blocks);
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
        request_id: &str,
        num_computed: u32,
        num_in_flight: u32,
    ) -> Vec<(GroupId, BlockId, u32)> {
        let tables = self.requests.get_mut(request_id).map(|request| &mut request.tables);
        let tails = tables.into_iter().flatten().enumerate().filter_map(|(group, table)| {
            let (block, num_tokens) = table.aligned.producer_tail.take()?;
            Some((GroupId(group as u32), block, num_tokens))
        });
        tails.filter(|&(.., num_tokens)| num_in_flight == 0 && num_computed == num_tokens).collect()
    }

    /// Changes of the prefix cache since the last call.
    pub fn take_events(&mut self, store: &mut BlockStore) -> Vec<CacheEvent> {
        self.cache(store).note_evictions();
        std::mem::take(&mut self.events)
    }
}
