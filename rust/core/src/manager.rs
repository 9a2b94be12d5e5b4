//! The manager: requests, their block tables in every group, and the prefix cache between them.

use std::ops::Range;

use crate::coordinator::Coordinator;
use crate::digest::Digest;
use crate::error::Error;
use crate::event::Event;
use crate::group::GroupSpec;
use crate::ids::{BlockId, GroupId, PoolId};
use crate::request::Requests;
use crate::stats::Stats;
use crate::store::{BlockStore, Reservation};

/// How a manager is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Groups, by id.
    pub groups: Vec<GroupSpec>,
    /// Tokens a digest stands for.
    pub hash_block_size: u32,
    /// Whether computed blocks can be hit by later requests.
    pub enable_caching: bool,
    /// Whether changes of the prefix cache are kept for [`Manager::take_events`].
    pub enable_events: bool,
    /// Whether changes of block tables are kept for [`Manager::take_delta`].
    pub enable_delta: bool,
    /// Most tokens of one request that are computed in one step.
    pub max_chunk: u32,
}

/// One changed entry of a block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TableChange {
    /// The low 32 bits of the request's handle.
    pub row: u32,
    /// Group.
    pub group: GroupId,
    /// Position in the table.
    pub position: u32,
    /// What stands there now.
    pub block: BlockId,
}

/// Requests and blocks. Every call either does all it was asked for or changes nothing.
#[derive(Debug)]
pub struct Manager {
    store: BlockStore,
    coordinator: Coordinator,
    requests: Requests,
    config: Config,
    max_request_tokens: u32,
    events: Vec<Event>,
    delta: Vec<TableChange>,
    stats: Stats,
    call: u32,
    // Reused by every allocation.
    demand: Vec<u64>,
    reservation: Reservation,
}

impl Manager {
    /// A manager over `store`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for groups or sizes that cannot be.
    pub fn new(store: BlockStore, config: Config) -> Result<Self, Error> {
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
        let coordinator = Coordinator::new(&config.groups, config.hash_block_size)?;
        let max_request_tokens = coordinator.max_request_tokens(&store, config.max_chunk);
        Ok(Self {
            demand: vec![0; store.num_pools() as usize],
            store,
            coordinator,
            requests: Requests::default(),
            config,
            max_request_tokens,
            events: Vec::new(),
            delta: Vec::new(),
            stats: Stats::default(),
            call: 0,
            reservation: Reservation::default(),
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
        let handle = self.requests.add(id, num_tokens, self.coordinator.groups().len())?;
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
        self.requests.rows[row].digests.extend_from_slice(digests);
        Ok(())
    }

    /// How many leading tokens need not be computed: the longest prefix that every group holds, at
    /// most all tokens but one. Takes nothing. 0 for a request that holds blocks.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn match_prefix(&mut self, handle: u64) -> Result<u32, Error> {
        let row = self.requests.row(handle)?;
        if self.requests.progress[row].running {
            return Ok(0);
        }
        Ok(self.matched(row))
    }

    fn matched(&mut self, row: usize) -> u32 {
        let num_evicted = self.store.num_evicted();
        let request = &mut self.requests.rows[row];
        if let Some((hit, at)) = request.matched
            && at == num_evicted
        {
            return hit;
        }
        let limit = self.requests.progress[row].num_tokens.saturating_sub(1);
        let hit = if self.config.enable_caching {
            self.coordinator.longest_hit(&self.store, &request.digests, limit)
        } else {
            0
        };
        request.matched = Some((hit, num_evicted));
        hit
    }

    /// Make room for `num_new_tokens[i]` more tokens of each request, and for `lookahead` more that
    /// may be rejected, in order.
    ///
    /// The first allocation of a request adopts the prefix that [`Manager::match_prefix`] found;
    /// the new tokens are those after it. Returns how many requests were served: the first one that
    /// does not fit and all after it are left as they were. A request whose matched prefix was
    /// evicted since counts as one that does not fit; match it again.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::RequestTooLarge`] and [`Error::InvalidArgument`] (lengths
    /// differ, a handle twice); then nothing was allocated.
    pub fn allocate(
        &mut self,
        handles: &[u64],
        num_new_tokens: &[u32],
        lookahead: u32,
    ) -> Result<usize, Error> {
        self.check_batch(handles, num_new_tokens)?;
        for (&handle, &num_new) in handles.iter().zip(num_new_tokens) {
            let row = self.requests.row(handle)?;
            let progress = self.requests.progress[row];
            let start = if progress.running { progress.num_computed } else { self.matched(row) };
            self.check_size(u64::from(start) + u64::from(num_new) + u64::from(lookahead))?;
        }
        for (done, (&handle, &num_new)) in handles.iter().zip(num_new_tokens).enumerate() {
            let row = self.requests.row(handle)?;
            let progress = self.requests.progress[row];
            let target = progress.num_computed + num_new + lookahead;
            if progress.running && target <= progress.num_allocated {
                continue;
            }
            let fits = if progress.running {
                self.grow(row, target)?
            } else {
                self.admit(row, num_new + lookahead)?
            };
            if !fits {
                return Ok(done);
            }
        }
        Ok(handles.len())
    }

    fn check_batch(&mut self, handles: &[u64], counts: &[u32]) -> Result<(), Error> {
        if handles.len() != counts.len() {
            return Err(Error::InvalidArgument(format!(
                "{} handles but {} counts",
                handles.len(),
                counts.len()
            )));
        }
        self.stamp(handles)
    }

    /// Check that all handles are known and different.
    fn stamp(&mut self, handles: &[u64]) -> Result<(), Error> {
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

    /// First allocation: adopt the matched prefix and make room after it.
    fn admit(&mut self, row: usize, num_new: u32) -> Result<bool, Error> {
        let promised = self.requests.rows[row].matched.map(|(hit, _)| hit);
        let hit = self.matched(row);
        if promised.is_some_and(|promised| promised != hit) {
            return Ok(false);
        }
        let request = &mut self.requests.rows[row];
        for (group, table) in self.coordinator.groups().iter().zip(&mut request.tables) {
            group.adopt(&mut self.store, &request.digests, hit, table)?;
        }
        if !self.grow(row, hit + num_new)? {
            let request = &mut self.requests.rows[row];
            for (group, table) in self.coordinator.groups().iter().zip(&mut request.tables).rev() {
                group.undo_adopt(&mut self.store, table);
            }
            return Ok(false);
        }
        let progress = &mut self.requests.progress[row];
        progress.running = true;
        progress.num_computed = hit;
        progress.next_commit = self.coordinator.next_commit(hit);
        self.stats.queries += u64::from(progress.num_tokens);
        self.stats.hits += u64::from(hit);
        if self.config.enable_delta {
            for (group, table) in self.requests.rows[row].tables.iter().enumerate() {
                let hit_blocks = 0..hit / self.coordinator.groups()[group].spec.block_size;
                note(&mut self.delta, row, GroupId(group as u32), hit_blocks, &table.blocks);
            }
        }
        Ok(true)
    }

    /// Make room for `num_tokens` tokens in every group, or change nothing.
    fn grow(&mut self, row: usize, num_tokens: u32) -> Result<bool, Error> {
        let request = &mut self.requests.rows[row];
        self.demand.fill(0);
        for (group, table) in self.coordinator.groups().iter().zip(&request.tables) {
            self.demand[group.spec.pool.index()] += group.num_missing(table, num_tokens);
        }
        match self.store.reserve(&self.demand, &mut self.reservation) {
            Ok(()) => {}
            Err(Error::OutOfBlocks { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        for (group, table) in self.coordinator.groups().iter().zip(&mut request.tables) {
            let num_missing = group.num_missing(table, num_tokens);
            if num_missing == 0 {
                continue;
            }
            let pool = group.spec.pool;
            let near = table.blocks.last().and_then(|&block| self.store.slab_of(pool, block));
            let start = table.blocks.len() as u32;
            self.store.take(pool, num_missing, near, &mut self.reservation, &mut table.blocks);
            if self.config.enable_delta {
                let new = start..table.blocks.len() as u32;
                note(&mut self.delta, row, group.id, new, &table.blocks);
            }
        }
        self.requests.progress[row].num_allocated = num_tokens;
        self.collect_evictions();
        Ok(true)
    }

    fn collect_evictions(&mut self) {
        let evicted = self.store.evicted();
        if self.config.enable_events {
            self.events.extend(evicted.drain(..).map(Event::Removed));
        } else {
            evicted.clear();
        }
    }

    /// Record that `num_tokens[i]` more tokens of each request were computed. Blocks that became
    /// full can be hit from now on; blocks that no later token looks at are given back.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] (lengths differ, a handle twice, a
    /// request without blocks, more tokens than were allocated or exist); then nothing was recorded.
    pub fn advance(&mut self, handles: &[u64], num_tokens: &[u32]) -> Result<(), Error> {
        self.check_batch(handles, num_tokens)?;
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            let progress = self.requests.progress[self.requests.row(handle)?];
            let target = u64::from(progress.num_computed) + u64::from(num_new);
            if !progress.running
                || target > u64::from(progress.num_allocated.min(progress.num_tokens))
            {
                return Err(Error::InvalidArgument(format!(
                    "request {:?} has {} of {} tokens computed and room for {}: {num_new} more \
                     cannot have been",
                    self.requests.rows[self.requests.row(handle)?].id,
                    progress.num_computed,
                    progress.num_tokens,
                    progress.num_allocated,
                )));
            }
        }
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            let row = self.requests.row(handle)?;
            let progress = &mut self.requests.progress[row];
            progress.num_computed += num_new;
            if progress.num_computed >= progress.next_commit {
                self.commit(row)?;
            }
        }
        Ok(())
    }

    fn commit(&mut self, row: usize) -> Result<(), Error> {
        let progress = &mut self.requests.progress[row];
        let num_computed = progress.num_computed;
        progress.next_commit = self.coordinator.next_commit(num_computed);
        let handle = self.requests.handle(row as u32);
        let request = &mut self.requests.rows[row];
        for (group, table) in self.coordinator.groups().iter().zip(&mut request.tables) {
            if self.config.enable_caching {
                let new = group.commit(&mut self.store, &request.digests, num_computed, table);
                if self.config.enable_events
                    && let Some(event) = group.stored_event(handle, &request.digests, new, table)
                {
                    self.events.push(event);
                }
            }
            let skipped = group.skip(&mut self.store, num_computed, table)?;
            if self.config.enable_delta {
                note(&mut self.delta, row, group.id, skipped, &table.blocks);
            }
        }
        Ok(())
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
        let request = &mut self.requests.rows[row];
        for (group, table) in self.coordinator.groups().iter().zip(&mut request.tables) {
            group.release(&mut self.store, table)?;
        }
        request.matched = None;
        let progress = &mut self.requests.progress[row];
        progress.running = false;
        progress.num_computed = 0;
        progress.num_allocated = 0;
        progress.next_commit = 0;
        Ok(())
    }

    /// A request's blocks in one group, by position; null where nothing is kept.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::UnknownGroup`].
    pub fn blocks(&self, handle: u64, group: GroupId) -> Result<&[BlockId], Error> {
        let row = self.requests.row(handle)?;
        match self.requests.rows[row].tables.get(group.index()) {
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

    /// Walk everything: no block owned twice, counts equal tables, indexes and lists agree.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.store.check_integrity()?;
        let mut owners: Vec<Vec<u32>> = (0..self.store.num_pools())
            .map(|pool| vec![0; self.store.pool(PoolId(pool)).num_ids() as usize])
            .collect();
        for row in self.requests.taken() {
            for (group, table) in
                self.coordinator.groups().iter().zip(&self.requests.rows[row].tables)
            {
                for block in table.blocks.iter().filter(|block| !block.is_null()) {
                    owners[group.spec.pool.index()][block.index()] += 1;
                }
            }
        }
        for (pool, owners) in owners.iter().enumerate() {
            for (block, &count) in owners.iter().enumerate() {
                let kept = self.store.pool(PoolId(pool as u32)).ref_count(BlockId(block as u32));
                if kept != count {
                    return Err(format!(
                        "block {block} of pool {pool} is in {count} tables but has {kept} owners"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn note(
    delta: &mut Vec<TableChange>,
    row: usize,
    group: GroupId,
    positions: Range<u32>,
    blocks: &[BlockId],
) {
    delta.extend(positions.map(|position| TableChange {
        row: row as u32,
        group,
        position,
        block: blocks[position as usize],
    }));
}
