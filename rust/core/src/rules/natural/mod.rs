//! Our own rules: [`BlockManager`].
//!
//! ```text
//! request, lookup <- admission
//!     <- priority, place, session <- allocate, advance, checkpoints <- BlockManager
//! ```

mod admission;
mod advance;
mod allocate;
mod checkpoints;
mod config;
mod lookup;
mod place;
mod priority;
mod request;
mod session;
mod stats;
mod tokens;

pub use config::{Config, Hashing};
pub use stats::{OriginStats, Stats};

use crate::digest::Digest;
use crate::engine::cache::Cache;
use crate::engine::outbox::Outbox;
use crate::engine::requests::known_row;
use crate::engine::{BlockCopy, CacheEvent, Compaction, Engine, TableChange};
use crate::error::Error;
use crate::hash::BlockHasher;
use crate::ids::{BlockId, GroupId};
use crate::rules::keeper::Keeper;
use crate::rules::policy::Policy;
use crate::store::{BlockStore, EvictionOrder, Store};
use lookup::Lengths;
use request::{NaturalRequest, Progress};

/// Requests whose memory is fetched at a time.
const READ_AHEAD: usize = 16;

/// Requests and blocks. Every call either does all it was asked for or changes nothing.
#[derive(Debug)]
pub struct BlockManager {
    engine: Engine<BlockStore, NaturalRequest>,
    lengths: Lengths,
    hasher: BlockHasher,
    config: Config,
    max_request_tokens: u32,
    keeper: Keeper,
    stats: Stats,
    num_running: usize,
    /// Rows whose blocks are to be looked at by the call at hand. Reused by every call.
    due: Vec<u32>,
    /// Rows that were admitted with a part of their known tokens.
    unfinished: Vec<u32>,
}

impl BlockManager {
    /// A manager over `store`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for groups or sizes that cannot be.
    pub fn new(store: BlockStore, config: Config) -> Result<Self, Error> {
        if config.max_chunk == 0 {
            return Err(Error::InvalidConfig("max_chunk is 0: no token could be computed".into()));
        }
        let groups = config.groups.iter().copied();
        let outbox = Outbox { enable_events: config.enable_events, ..Outbox::default() };
        let mut cache =
            Cache::new(store, groups, config.hash_block_size, config.enable_caching, outbox)?;
        let lengths = Lengths::new(&config.groups)?;
        if config.enable_caching && config.policy != Policy::Explicit && cache.store.is_slabbed() {
            lengths.place_windows(&mut cache.groups);
        }
        let quadratic = config.policy.quadratic();
        let mut manager = Self {
            keeper: Keeper::new(&cache, lengths.alignment, quadratic),
            engine: Engine::new(cache),
            lengths,
            hasher: BlockHasher::new(config.hashing.algorithm),
            config,
            max_request_tokens: 0,
            stats: Stats::default(),
            num_running: 0,
            due: Vec::new(),
            unfinished: Vec::new(),
        };
        manager.keeper.chances = manager.config.policy.chances();
        if manager.is_by_priority() {
            manager.engine.cache.store.order_by_priority()?;
        }
        if manager.config.policy != Policy::Explicit {
            manager.keeper.start_step(&mut manager.engine.cache.store);
        }
        manager.max_request_tokens = manager.longest_request()?;
        Ok(manager)
    }

    /// The blocks.
    #[must_use]
    pub fn store(&self) -> &BlockStore {
        &self.engine.cache.store
    }

    /// Groups.
    #[must_use]
    pub fn num_groups(&self) -> u32 {
        self.engine.cache.groups.len() as u32
    }

    /// Requests known.
    #[must_use]
    pub fn num_requests(&self) -> usize {
        self.engine.requests.len()
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats;
        let unused = self.unused_checkpoints();
        for (origin, unused) in stats.origins.iter_mut().zip(unused) {
            origin.dropped = origin.written.saturating_sub(origin.used + unused);
        }
        stats
    }

    /// Tokens of the longest request that fits when it is alone.
    #[must_use]
    pub fn max_request_tokens(&self) -> u32 {
        self.max_request_tokens
    }

    /// The handle of a request id.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<u64> {
        self.engine.requests.find(id)
    }

    /// Register a request of `num_tokens` tokens, whose full hash blocks have `digests`. No block
    /// is taken. Returns its handle.
    ///
    /// # Errors
    /// [`Error::DuplicateRequest`]; [`Error::RequestTooLarge`] if it could never run;
    /// [`Error::InvalidArgument`] if the digests are not one a full hash block.
    pub fn add_request(
        &mut self,
        id: &str,
        num_tokens: u32,
        digests: Vec<Digest>,
    ) -> Result<u64, Error> {
        self.check_digests(num_tokens, digests.len())?;
        self.check_size(u64::from(num_tokens))?;
        let handle = self.engine.requests.add(id)?;
        let row = known_row(handle);
        *self.engine.requests.progress_mut(row) = Progress { num_tokens, ..Progress::default() };
        self.engine.requests.rows[row].digests = digests;
        Ok(handle)
    }

    fn check_digests(&self, num_tokens: u32, num_digests: usize) -> Result<(), Error> {
        let needed = (num_tokens / self.config.hash_block_size) as usize;
        if num_digests == needed || (!self.config.enable_caching && num_digests == 0) {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!(
            "{num_tokens} tokens are {needed} full hash blocks of {}, but {num_digests} digests \
             were given",
            self.config.hash_block_size
        )))
    }

    /// Tell that a request has `num_new` more tokens, and the digests of the hash blocks that they
    /// fill.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] if the digests do not match.
    pub fn append(&mut self, handle: u64, num_new: u32, digests: &[Digest]) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        let progress = self.engine.requests.progress(row);
        let num_tokens = progress
            .num_tokens
            .checked_add(num_new)
            .ok_or_else(|| Error::InvalidArgument(format!("{num_new} tokens are too many")))?;
        let known = &self.engine.requests.rows[row].digests;
        self.check_digests(num_tokens, known.len() + digests.len())?;
        self.engine.requests.progress_mut(row).num_tokens = num_tokens;
        let request = &mut self.engine.requests.rows[row];
        request.digests.extend_from_slice(digests);
        if let Some(matched) = &mut request.rest.matched {
            matched.is_outgrown = true;
        }
        Ok(())
    }

    fn check_batch(&mut self, handles: &[u64], num_values: usize) -> Result<(), Error> {
        if handles.len() != num_values {
            return Err(Error::InvalidArgument(format!(
                "{} handles but {num_values} values",
                handles.len()
            )));
        }
        self.engine.version += 1;
        self.engine.requests.check_batch(handles)
    }

    /// Give back the blocks of requests whose tokens will have to be computed again; what is cached
    /// of them can be matched.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] (a handle twice); then nothing changed.
    pub fn preempt(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.check_batch(handles, handles.len())?;
        for &handle in handles {
            self.release(known_row(handle), false)?;
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
            let row = known_row(handle);
            self.release(row, true)?;
            self.engine.requests.remove(row);
        }
        Ok(())
    }

    fn release(&mut self, row: usize, is_over: bool) -> Result<(), Error> {
        self.keep_final_state(row);
        self.score_released(row, is_over);
        self.engine.release(row)?;
        self.engine.requests.rows[row].rest.trail.windows.clear();
        self.engine.requests.rows[row].rest.matched = None;
        self.unfinished.retain(|&other| other as usize != row);
        let progress = self.engine.requests.progress_mut(row);
        self.num_running -= usize::from(progress.running);
        *progress = Progress { num_tokens: progress.num_tokens, ..Progress::default() };
        Ok(())
    }

    /// A request's blocks in one group, by position; null where nothing is kept.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::UnknownGroup`].
    pub fn blocks(&self, handle: u64, group: GroupId) -> Result<&[BlockId], Error> {
        self.engine.blocks(handle, group)
    }

    /// Tokens of a request: known, computed, and with room in every group.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn progress(&self, handle: u64) -> Result<(u32, u32, u32), Error> {
        let progress = self.engine.requests.progress(self.engine.requests.row(handle)?);
        Ok((progress.num_tokens, progress.num_computed, progress.num_allocated))
    }

    /// Drop all cached content.
    ///
    /// # Errors
    /// [`Error::BlocksInUse`] while a request holds blocks.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.engine.version += 1;
        self.engine.cache.store.reset()?;
        self.keeper.sessions.ends.clear();
        self.engine.cache.note(|| CacheEvent::Cleared);
        Ok(())
    }

    /// Copies to run before the next forward pass, in this order. Their sources are held until the
    /// next call.
    ///
    /// # Errors
    /// [`Error::NotLive`] if a held block lost its owner, which is a bug.
    pub fn take_copies(&mut self) -> Result<Vec<BlockCopy>, Error> {
        self.engine.take_copies()
    }

    /// Changes of the prefix cache since the last call.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        let mut events = std::mem::take(&mut self.engine.cache.outbox.events);
        events.retain(|event| match event {
            CacheEvent::Stored { positions, .. } => !positions.is_empty(),
            _ => true,
        });
        events
    }

    /// Find up to `num_slabs` slabs whose live blocks fit into other slabs of their pool, those with
    /// the smallest share of live blocks first. Changes nothing.
    #[must_use]
    pub fn plan_compaction(&self, num_slabs: usize) -> Compaction {
        self.engine.plan_compaction(num_slabs)
    }

    /// Carry out a plan: the blocks' owners and keys move now, the returned table changes tell
    /// where to, and the bytes follow with the next [`BlockManager::take_copies`]. What is merely cached
    /// in the slabs is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if anything happened since the plan was made; then nothing changed.
    pub fn apply_compaction(&mut self, plan: &Compaction) -> Result<Vec<TableChange>, Error> {
        let moved = self.engine.apply_compaction(plan)?;
        self.stats.moves += moved.blocks.len() as u64;
        self.keeper.traffic.on_moved(&self.engine.cache.groups, moved.blocks.iter().copied());
        Ok(moved.tables)
    }

    /// Empty `num_slabs` slabs if that can be done and is allowed. Says whether it was.
    fn make_whole_slabs(&mut self, num_slabs: u64) -> Result<bool, Error> {
        if !self.config.enable_compaction || num_slabs > self.engine.cache.store.num_slabs() {
            return Ok(false);
        }
        let plan = self.plan_compaction(num_slabs as usize);
        if (plan.num_slabs() as u64) < num_slabs {
            return Ok(false);
        }
        self.apply_compaction(&plan)?;
        self.stats.compactions += 1;
        Ok(true)
    }

    /// Let time pass: once a scheduler step, to order ages.
    pub fn tick(&mut self) {
        self.engine.cache.store.tick();
        if self.config.policy == Policy::Explicit {
            self.keeper.traffic.measure(&self.engine.cache.store);
        } else {
            self.keeper.start_step(&mut self.engine.cache.store);
        }
    }

    /// Walk everything: no block owned twice, counts equal tables, indexes and lists agree.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.engine.check_integrity()
    }
}
