//! [`ServedManager`]: the rules that level `natural` serves by, without vLLM.
//!
//! vLLM's scheduler tells [`KvCacheManager`] with every call how far a request has come. Here that is kept beside
//! it, so that requests are named by handles in arrays, as [`BlockManager`](crate::BlockManager) has it.

mod config;

use crate::digest::Digest;
use crate::engine::requests::known_row;
use crate::engine::{BlockCopy, CacheEvent};
use crate::error::Error;
use crate::hash::{BlockHasher, HashChain};
use crate::ids::{BlockId, GroupId};
use crate::rules::hit::Hit;
use crate::rules::natural::{Config, Stats};
use crate::rules::sessions::Hint;
use crate::rules::vllm::{AllocateArgs, ComputedBlocks, KvCacheManager, RequestProgress};
use crate::store::{BlockStore, Store};

/// Requests by handles over [`KvCacheManager`].
#[derive(Debug)]
pub struct ServedManager {
    core: KvCacheManager<BlockStore>,
    hasher: BlockHasher,
    config: Config,
    max_request_tokens: u32,
    /// By row of the handle.
    rows: Vec<Row>,
    num_running: usize,
    stats: Stats,
}

/// What is kept of a request between calls.
#[derive(Debug, Default)]
struct Row {
    progress: RequestProgress,
    chain: Option<HashChain<i64>>,
    matched: Option<Match>,
}

/// The hit that the last look-up found, with its blocks.
#[derive(Debug)]
struct Match {
    found: ComputedBlocks,
    /// Changes of the store before it: while there are no more, the blocks are still there.
    num_changes: u64,
}

impl ServedManager {
    /// A manager over `store`, for requests of up to `max_tokens` tokens, or of as many as fit alone. It leaves
    /// `watermark` slabs (blocks of a fixed pool) free when it admits a request beside others.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for groups or sizes that cannot be.
    pub fn new(
        store: BlockStore,
        config: Config,
        max_tokens: Option<u32>,
        watermark: u32,
    ) -> Result<Self, Error> {
        let fits = config::longest_request(&store, &config);
        let longest = max_tokens.map_or(fits, |most| most.min(fits));
        let mut served = config::manager_config(&config, store.is_slabbed(), longest)?;
        served.watermark_blocks = watermark;
        Ok(Self {
            core: KvCacheManager::new(store, served)?,
            hasher: BlockHasher::new(config.hashing.algorithm),
            config,
            max_request_tokens: longest,
            rows: Vec::new(),
            num_running: 0,
            stats: Stats::default(),
        })
    }

    /// The blocks.
    #[must_use]
    pub fn store(&self) -> &BlockStore {
        self.core.store()
    }

    /// Tokens of the longest request that fits when it is alone.
    #[must_use]
    pub fn max_request_tokens(&self) -> u32 {
        self.max_request_tokens
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let served = self.core.stats();
        Stats {
            checkpoints: served.prompt + served.followed + served.loaded + served.kept,
            forks: served.forks,
            limits: served.limits,
            ..self.stats
        }
    }

    /// Register a request whose prompt was hashed already: all `digests` that `chain` made so far.
    /// Returns the handle.
    ///
    /// # Errors
    /// [`Error::DuplicateRequest`]; [`Error::RequestTooLarge`].
    pub fn add_hashed(
        &mut self,
        id: &str,
        chain: HashChain<i64>,
        digests: Vec<Digest>,
    ) -> Result<u64, Error> {
        if self.core.find(id).is_some() {
            return Err(Error::DuplicateRequest(id.to_owned()));
        }
        let num_tokens = u32::try_from(chain.num_tokens()).unwrap_or(u32::MAX);
        self.check_size(u64::from(num_tokens))?;
        let handle = self.core.add(id);
        *self.core.digests_mut(handle)? = digests;
        let row = known_row(handle);
        if self.rows.len() <= row {
            self.rows.resize_with(row + 1, Row::default);
        }
        let progress = RequestProgress {
            num_tokens,
            num_prompt: num_tokens,
            is_waiting: true,
            ..RequestProgress::default()
        };
        self.rows[row] = Row { progress, chain: Some(chain), ..Row::default() };
        Ok(handle)
    }

    /// Say how the conversation of a request goes on, and in which session it is; before it is admitted.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_session(
        &mut self,
        handle: u64,
        session_id: Option<&str>,
        hint: Hint,
    ) -> Result<(), Error> {
        self.core.set_session(handle, session_id, hint)
    }

    fn check_size(&self, num_tokens: u64) -> Result<(), Error> {
        if num_tokens <= u64::from(self.max_request_tokens) {
            return Ok(());
        }
        let most = u32::try_from(num_tokens).unwrap_or(u32::MAX);
        Err(Error::RequestTooLarge {
            num_tokens,
            unit: self.store().unit(),
            needed: config::slabs_for(self.store(), &self.config, most),
            available: self.store().num_slabs(),
            fits: u64::from(self.max_request_tokens),
        })
    }

    fn row(&self, handle: u64) -> Result<usize, Error> {
        match self.core.id(handle) {
            Some(_) => Ok(known_row(handle)),
            None => Err(Error::UnknownRequest { handle }),
        }
    }

    fn check_batch(&mut self, handles: &[u64], num_values: usize) -> Result<(), Error> {
        if handles.len() != num_values {
            return Err(Error::InvalidArgument(format!(
                "{} handles but {num_values} values",
                handles.len()
            )));
        }
        self.core.check_batch(handles)
    }

    /// Append one token to each request, as after sampling.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] (lengths differ, a handle twice); then nothing was
    /// appended.
    pub fn append_tokens(&mut self, handles: &[u64], tokens: &[i32]) -> Result<(), Error> {
        self.check_batch(handles, tokens.len())?;
        for (&handle, &token) in handles.iter().zip(tokens) {
            let row = &mut self.rows[known_row(handle)];
            if let Some(chain) = &mut row.chain {
                let digests = self.core.digests_mut(handle)?;
                chain.append(&mut self.hasher, &[i64::from(token)], &[], digests)?;
            }
            row.progress.num_tokens += 1;
            row.matched = None;
        }
        Ok(())
    }

    /// Whether a waiting request had better wait for a checkpoint that another one leaves in this step. Those behind
    /// it need not.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn waits_for_checkpoint(&mut self, handle: u64) -> Result<bool, Error> {
        let progress = self.rows[self.row(handle)?].progress;
        Ok(self.core.expects_checkpoints() && self.core.hits_more_later(handle, &progress))
    }

    /// How many leading tokens need not be computed, at most all but one, and what ends them. Takes nothing. Nothing
    /// for a request that holds blocks.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn match_prefix(&mut self, handle: u64) -> Result<Hit, Error> {
        let row = self.row(handle)?;
        if !self.rows[row].progress.is_waiting {
            return Ok(Hit::default());
        }
        let limit = self.rows[row].progress.num_tokens.saturating_sub(1);
        self.search(handle, limit)
    }

    fn search(&mut self, handle: u64, limit: u32) -> Result<Hit, Error> {
        let row = known_row(handle);
        let progress = self.rows[row].progress;
        if !self.config.enable_caching {
            return Ok(Hit::default());
        }
        let found = self.core.longest_usable_hit(handle, limit, &progress)?;
        let (num_tokens, num_uncached) = (found.num_tokens, found.num_uncached);
        let branch = if num_uncached > 0 { num_tokens + num_uncached } else { 0 };
        let num_changes = self.core.store().num_changes();
        let row = &mut self.rows[row];
        row.progress.shared_prefix_boundary = branch;
        row.matched = Some(Match { found, num_changes });
        Ok(Hit { num_tokens, limit: self.core.ended_by(handle).unwrap_or_default(), branch })
    }

    /// Tokens after `start` that one step computes, at most `most`: a chunk ends where a checkpoint is wanted.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn chunk(&mut self, handle: u64, start: u32, most: u32) -> Result<u32, Error> {
        let progress = self.rows[self.row(handle)?].progress;
        Ok(self.core.next_boundary(handle, &progress, start, start + most)? - start)
    }

    /// Make room for `num_new_tokens[i]` more tokens of each request, and for `lookahead` more that
    /// may be rejected, in order. Full blocks of tokens that are known can be hit from now on.
    ///
    /// The first allocation of a request adopts the prefix that [`ServedManager::match_prefix`] found;
    /// the new tokens are those after it. All known tokens must have room then. Returns how many requests were
    /// served: the first one that does not fit and all after it are left as they were.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::RequestTooLarge`] and [`Error::InvalidArgument`] (lengths
    /// differ, a handle twice).
    pub fn allocate(
        &mut self,
        handles: &[u64],
        num_new_tokens: &[u32],
        lookahead: u32,
    ) -> Result<usize, Error> {
        self.check_batch(handles, num_new_tokens.len())?;
        for (at, (&handle, &num_new)) in handles.iter().zip(num_new_tokens).enumerate() {
            let row = known_row(handle);
            let progress = self.rows[row].progress;
            let has_room = if progress.is_waiting {
                self.admit(handle, num_new, lookahead)?
            } else {
                self.core.is_noop(handle, &progress, num_new, lookahead)
                    || self.grow(handle, num_new, lookahead)?
            };
            if !has_room {
                return Ok(at);
            }
        }
        Ok(handles.len())
    }

    fn grow(&mut self, handle: u64, num_new: u32, num_lookahead: u32) -> Result<bool, Error> {
        let progress = self.rows[known_row(handle)].progress;
        self.check_size(u64::from(progress.num_computed) + u64::from(num_new))?;
        let args =
            AllocateArgs { num_new, num_lookahead, has_scheduled: true, ..AllocateArgs::default() };
        Ok(self.core.allocate(handle, &progress, &args)?.is_some())
    }

    fn admit(&mut self, handle: u64, num_new: u32, num_lookahead: u32) -> Result<bool, Error> {
        let row = known_row(handle);
        let num_changes = self.core.store().num_changes();
        let told = self.rows[row].matched.as_ref().map(|it| (it.found.num_tokens, it.num_changes));
        match told {
            None => _ = self.match_prefix(handle)?,
            Some((num_tokens, before)) if before != num_changes => {
                if self.search(handle, num_tokens)?.num_tokens != num_tokens {
                    return Ok(false);
                }
            }
            Some(_) => {}
        }
        let matched = self.rows[row].matched.take();
        let progress = self.rows[row].progress;
        let found = matched.as_ref().map(|it| &it.found).filter(|it| it.num_tokens > 0);
        let num_hit = found.map_or(0, |it| it.num_tokens);
        self.check_size(u64::from(num_hit) + u64::from(num_new))?;
        let args = AllocateArgs {
            num_new,
            num_new_computed: num_hit,
            computed: found.map(|it| &*it.blocks),
            num_lookahead,
            full_sequence_must_fit: true,
            has_scheduled: self.num_running > 0,
            ..AllocateArgs::default()
        };
        if self.core.allocate(handle, &progress, &args)?.is_none() {
            if self.num_running == 0 && num_hit > 0 {
                // Alone it may fit without holding a checkpoint beside its own state.
                self.search(handle, 0)?;
            }
            return Ok(false);
        }
        let row = &mut self.rows[row];
        row.progress.is_waiting = false;
        row.progress.num_computed = num_hit;
        self.num_running += 1;
        self.stats.queries += u64::from(progress.num_tokens);
        self.stats.hits += u64::from(num_hit);
        Ok(true)
    }

    /// Record that `num_tokens[i]` more tokens of each request were computed.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] (lengths differ, a handle twice, a request without
    /// blocks, more tokens than exist); then nothing was recorded.
    pub fn advance(&mut self, handles: &[u64], num_tokens: &[u32]) -> Result<(), Error> {
        self.check_batch(handles, num_tokens.len())?;
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            let progress = self.rows[known_row(handle)].progress;
            let target = u64::from(progress.num_computed) + u64::from(num_new);
            if progress.is_waiting || target > u64::from(progress.num_tokens) {
                return Err(Error::InvalidArgument(format!(
                    "request {:?} has {} of {} tokens computed: {num_new} more cannot have been",
                    self.core.id(handle).unwrap_or_default(),
                    progress.num_computed,
                    progress.num_tokens,
                )));
            }
        }
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            self.rows[known_row(handle)].progress.num_computed += num_new;
        }
        Ok(())
    }

    /// Give back the blocks of requests whose tokens will have to be computed again; what is cached
    /// of them can be matched.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] (a handle twice); then nothing changed.
    pub fn preempt(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.check_batch(handles, handles.len())?;
        for &handle in handles {
            let progress = self.rows[known_row(handle)].progress;
            self.core.settle(handle, &progress)?;
            self.core.suspend(handle)?;
            let row = &mut self.rows[known_row(handle)];
            self.num_running -= usize::from(!progress.is_waiting);
            row.progress = RequestProgress {
                num_computed: 0,
                is_waiting: true,
                was_preempted: true,
                ..progress
            };
            row.matched = None;
            self.stats.preemptions += 1;
        }
        Ok(())
    }

    /// Give back the blocks of requests and forget the requests.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] (a handle twice); then nothing changed.
    pub fn free(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.check_batch(handles, handles.len())?;
        for &handle in handles {
            let progress = self.rows[known_row(handle)].progress;
            self.core.settle(handle, &progress)?;
            self.core.finish(handle)?;
            self.num_running -= usize::from(!progress.is_waiting);
            self.rows[known_row(handle)] = Row::default();
        }
        Ok(())
    }

    /// A step begins.
    pub fn tick(&mut self) {
        self.core.start_step();
    }

    /// Block copies to run before the forward pass, since the last call. No block is both read and written. The
    /// copies hold no block after this call: whatever takes its place is written in a later step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a block is to be read and overwritten in one step.
    pub fn take_copies(&mut self) -> Result<Vec<BlockCopy>, Error> {
        self.core.take_disjoint_copies()
    }

    /// Changes of the prefix cache since the last call.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        let mut events = self.core.take_events();
        for event in &mut events {
            // The block of a state holds the longest request; checkpoints lie where attention blocks end.
            if let CacheEvent::StoredTail { group, block_size, .. } = event {
                *block_size = self.config.groups[group.index()].block_size;
            }
        }
        events
    }

    /// A request's blocks in one group, by position; null where nothing is kept.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn blocks(&self, handle: u64, group: GroupId) -> Result<&[BlockId], Error> {
        self.row(handle)?;
        Ok(self.core.blocks(handle, group))
    }

    /// Tokens of a request: known and computed.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn progress(&self, handle: u64) -> Result<(u32, u32), Error> {
        let progress = self.rows[self.row(handle)?].progress;
        Ok((progress.num_tokens, progress.num_computed))
    }

    /// Walk everything: no block owned twice, counts equal tables, indexes and lists agree.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.core.check_integrity()
    }
}
