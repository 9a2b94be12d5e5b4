//! The manager: requests, their block tables in every group, and the prefix cache between them.

mod advance;
mod allocate;
mod appraise;
mod can_admit;
mod check;
mod checkpoints;
mod compact;
mod config;
mod delta;
mod tokens;

pub use checkpoints::BlockCopy;
pub use compact::Compaction;
pub use config::{Config, Hashing};
pub use delta::{TableChange, TableRuns};

use crate::coordinator::Coordinator;
use crate::digest::Digest;
use crate::error::Error;
use crate::event::Event;
use crate::hash::BlockHasher;
use crate::ids::{BlockId, GroupId, PoolId};
use crate::lineage::Lineage;
use crate::policy::Policy;
use crate::request::Requests;
use crate::stats::Stats;
use crate::store::{BlockStore, Reservation, Store};

/// Requests and blocks. Every call either does all it was asked for or changes nothing.
#[derive(Debug)]
pub struct Manager {
    store: BlockStore,
    coordinator: Coordinator,
    requests: Requests,
    hasher: BlockHasher,
    config: Config,
    max_request_tokens: u32,
    events: Vec<Event>,
    delta: Vec<TableChange>,
    copies: Vec<BlockCopy>,
    /// Sources of `copies`, and those of the copies taken last.
    held: Vec<(PoolId, BlockId)>,
    copied: Vec<(PoolId, BlockId)>,
    /// Of the checkpoints of the first recurrent group, which stand for those of all.
    lineage: Lineage,
    stats: Stats,
    num_running: usize,
    /// Changes so far.
    version: u64,
    call: u32,
    // Reused by every call.
    demand: Vec<u64>,
    reservation: Reservation,
    due: Vec<u32>,
    /// Rows that were admitted with a part of their known tokens.
    unfinished: Vec<u32>,
}

impl Manager {
    /// A manager over `store`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for groups or sizes that cannot be.
    pub fn new(mut store: BlockStore, config: Config) -> Result<Self, Error> {
        if let Some(group) = config.groups.iter().find(|group| group.pool.0 >= store.num_pools()) {
            return Err(Error::InvalidConfig(format!(
                "a group names pool {} of {}",
                group.pool,
                store.num_pools()
            )));
        }
        if config.max_chunk == 0 {
            return Err(Error::InvalidConfig("max_chunk is 0: no token could be computed".into()));
        }
        if config.policy != Policy::Lru {
            store.order_by_priority()?;
        }
        let coordinator = Coordinator::new(&config.groups, config.hash_block_size)?;
        let num_states =
            coordinator.first_state().map_or(0, |group| store.pool(group.spec.pool).num_ids());
        let max_request_tokens = coordinator.max_request_tokens(&store, config.max_chunk);
        Ok(Self {
            demand: vec![0; store.num_pools() as usize],
            store,
            requests: Requests::new(coordinator.groups().len()),
            coordinator,
            hasher: BlockHasher::new(config.hashing.algorithm),
            config,
            max_request_tokens,
            events: Vec::new(),
            delta: Vec::new(),
            copies: Vec::new(),
            held: Vec::new(),
            copied: Vec::new(),
            lineage: Lineage::new(num_states),
            stats: Stats::default(),
            num_running: 0,
            version: 0,
            call: 0,
            reservation: Reservation::default(),
            due: Vec::new(),
            unfinished: Vec::new(),
        })
    }

    /// The blocks.
    #[must_use]
    pub fn store(&self) -> &BlockStore {
        &self.store
    }

    /// Groups.
    #[must_use]
    pub fn num_groups(&self) -> u32 {
        self.coordinator.groups().len() as u32
    }

    /// Requests known.
    #[must_use]
    pub fn num_requests(&self) -> usize {
        self.requests.len()
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Tokens of the longest request that fits when it is alone.
    #[must_use]
    pub fn max_request_tokens(&self) -> u32 {
        self.max_request_tokens
    }

    /// The handle of a request id.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<u64> {
        self.requests.find(id)
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
        let handle = self.requests.add(id, num_tokens)?;
        let row = self.requests.row(handle)?;
        self.requests.rows[row].digests = digests;
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

    fn check_size(&self, num_tokens: u64) -> Result<(), Error> {
        if num_tokens <= u64::from(self.max_request_tokens) {
            return Ok(());
        }
        let (needed, available) =
            self.coordinator.slabs_for(&self.store, num_tokens, self.config.max_chunk);
        Err(Error::RequestTooLarge {
            num_tokens,
            unit: self.store.unit(),
            needed,
            available,
            fits: u64::from(self.max_request_tokens),
        })
    }

    /// Tell that a request has `num_new` more tokens, and the digests of the hash blocks that they
    /// fill.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] if the digests do not match.
    pub fn append(&mut self, handle: u64, num_new: u32, digests: &[Digest]) -> Result<(), Error> {
        let row = self.requests.row(handle)?;
        let num_tokens = self.requests.progress[row]
            .num_tokens
            .checked_add(num_new)
            .ok_or_else(|| Error::InvalidArgument(format!("{num_new} tokens are too many")))?;
        self.check_digests(num_tokens, self.requests.rows[row].digests.len() + digests.len())?;
        self.requests.progress[row].num_tokens = num_tokens;
        let request = &mut self.requests.rows[row];
        request.digests.extend_from_slice(digests);
        request.grown();
        Ok(())
    }

    fn check_batch(&mut self, handles: &[u64], num_values: usize) -> Result<(), Error> {
        if handles.len() != num_values {
            return Err(Error::InvalidArgument(format!(
                "{} handles but {num_values} values",
                handles.len()
            )));
        }
        self.stamp(handles)
    }

    /// Check that all handles are known and different.
    fn stamp(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.version += 1;
        self.call = self.call.wrapping_add(1);
        for &handle in handles {
            let row = self.requests.row(handle)?;
            let stamp = &mut self.requests.progress[row].stamp;
            if std::mem::replace(stamp, self.call) == self.call {
                return Err(Error::InvalidArgument(format!("handle {handle} is given twice")));
            }
        }
        Ok(())
    }

    fn collect_evictions(&mut self) {
        let evicted = self.store.evicted();
        if self.config.enable_events {
            self.events.extend(evicted.drain(..).map(Event::Removed));
        } else {
            evicted.clear();
        }
    }

    /// Give back the blocks of requests whose tokens will have to be computed again; what is cached
    /// of them can be matched.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] (a handle twice); then nothing changed.
    pub fn preempt(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.stamp(handles)?;
        for &handle in handles {
            let row = self.requests.row(handle)?;
            self.release(row)?;
            self.stats.preemptions += 1;
        }
        Ok(())
    }

    /// Give back the blocks of requests and forget the requests.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] (a handle twice); then nothing changed.
    pub fn free(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.stamp(handles)?;
        for &handle in handles {
            let row = self.requests.row(handle)?;
            self.release(row)?;
            self.requests.remove(row);
        }
        Ok(())
    }

    fn release(&mut self, row: usize) -> Result<(), Error> {
        self.keep_final_state(row);
        self.appraise(row);
        let tables = self.requests.tables_of(row);
        for (group, table) in
            self.coordinator.groups().iter().zip(&mut self.requests.tables[tables])
        {
            group.release(&mut self.store, table)?;
        }
        self.requests.rows[row].matched = None;
        let progress = &mut self.requests.progress[row];
        self.num_running -= usize::from(std::mem::take(&mut progress.running));
        progress.num_computed = 0;
        progress.num_allocated = 0;
        progress.room = 0;
        self.unfinished.retain(|&other| other as usize != row);
        progress.next_commit = 0;
        Ok(())
    }

    /// A request's blocks in one group, by position; null where nothing is kept.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::UnknownGroup`].
    pub fn blocks(&self, handle: u64, group: GroupId) -> Result<&[BlockId], Error> {
        let row = self.requests.row(handle)?;
        match self.requests.tables[self.requests.tables_of(row)].get(group.index()) {
            Some(table) => Ok(&table.blocks),
            None => Err(Error::UnknownGroup { group, num_groups: self.num_groups() }),
        }
    }

    /// Tokens of a request: known, computed, and with room in every group.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn progress(&self, handle: u64) -> Result<(u32, u32, u32), Error> {
        let progress = self.requests.progress[self.requests.row(handle)?];
        Ok((progress.num_tokens, progress.num_computed, progress.num_allocated))
    }

    /// Drop all cached content.
    ///
    /// # Errors
    /// [`Error::BlocksInUse`] while a request holds blocks.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.version += 1;
        self.store.reset()?;
        if self.config.enable_events {
            self.events.push(Event::Cleared);
        }
        Ok(())
    }

    /// Changes of the prefix cache since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Changes of block tables since the last call, in order. A freed or preempted request's
    /// entries are not cleared one by one.
    pub fn take_delta(&mut self) -> Vec<TableChange> {
        std::mem::take(&mut self.delta)
    }

    /// Let time pass: once a scheduler step, to order ages.
    pub fn tick(&mut self) {
        self.store.tick();
    }
}
