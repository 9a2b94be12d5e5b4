//! [`BlockManager`]: level `natural` for an engine without vLLM, driven by arrays of request handles.
//!
//! The manager drives [`KvCacheManager`] as vLLM's scheduler does. vLLM tells it with each call how far a request
//! has come.
//! `BlockManager` remembers that itself, so that a caller names requests by handles in arrays.
//!
//! ```text
//! config <- manager_config, stats <- BlockManager <- step
//! ```

mod config;
mod manager_config;
mod stats;
mod step;

pub use config::{Config, Hashing};
pub use stats::Stats;

use crate::engine::requests::known_row;
use crate::engine::{ByteSizes, CacheEvent, ReservedBytes};
use crate::error::Error;
use crate::group::GroupBlocks;
use crate::ids::{BlockId, GroupId};
use crate::learn::sessions::Hint;
use crate::rules::vllm::{ComputedBlocks, KvCacheManager, RequestProgress};
use crate::store::{BlockStore, Store};
use hybrid_blocks_hash::Digest;
use hybrid_blocks_hash::{BlockHasher, HashChain, Value};

/// Requests and blocks. Every call either does all of its work or changes nothing.
#[derive(Debug)]
pub struct BlockManager {
    core: KvCacheManager<BlockStore>,
    hasher: BlockHasher,
    config: Config,
    max_request_tokens: u32,
    /// Encoder tokens of a request, where a group keeps them.
    num_encoder: u32,
    /// By row of the handle; what a step looks at for every request.
    rows: Vec<Row>,
    /// The rest, by row.
    rests: Vec<Rest>,
    num_running: usize,
    /// Blocks that the last allocation took, by group; the lists are kept for their memory.
    new: GroupBlocks,
    stats: Stats,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    progress: RequestProgress,
    /// Tokens that have room.
    num_allocated: u32,
    /// Tokens that have room and were known when they got it: they are taken for computed.
    num_entered: u32,
}

/// State of a request that only some calls read.
#[derive(Debug, Default)]
struct Rest {
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

impl BlockManager {
    /// A manager over `store`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for groups or sizes that cannot be.
    pub fn new(store: BlockStore, config: Config) -> Result<Self, Error> {
        manager_config::check(&store, &config)?;
        let fits = manager_config::longest_request(&store, &config);
        let longest = config.max_request_tokens.map_or(fits, |most| most.min(fits));
        let served = manager_config::manager_config(&config, store.is_slabbed(), longest)?;
        Ok(Self {
            core: KvCacheManager::new(store, served)?,
            hasher: BlockHasher::new(config.hashing.algorithm),
            max_request_tokens: longest,
            num_encoder: config.groups.iter().map(|it| it.kind.encoder_tokens()).max().unwrap_or(0),
            config,
            rows: Vec::new(),
            rests: Vec::new(),
            num_running: 0,
            new: GroupBlocks::new(),
            stats: Stats::default(),
        })
    }

    /// Returns the store of blocks.
    pub fn store(&self) -> &BlockStore {
        self.core.store()
    }

    /// Returns the number of groups.
    pub fn num_groups(&self) -> u32 {
        self.config.groups.len() as u32
    }

    /// Returns the number of known requests.
    pub fn num_requests(&self) -> usize {
        self.core.num_requests()
    }

    /// Tokens of the longest request that is allowed, and fits when it is alone.
    pub fn max_request_tokens(&self) -> u32 {
        self.max_request_tokens
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        let served = self.core.stats();
        Stats {
            checkpoints: served.prompt + served.followed + served.loaded + served.kept,
            forks: served.forks,
            shortened: served.shortened,
            limits: served.limits,
            ..self.stats
        }
    }

    /// The handle of a request id.
    pub fn find(&self, id: &str) -> Option<u64> {
        self.core.find(id)
    }

    /// Registers a request of `num_tokens` tokens, whose full hash blocks have `digests`. No block
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
        if self.find(id).is_some() {
            return Err(Error::DuplicateRequest(id.to_owned()));
        }
        let handle = self.core.add(id);
        *self.core.digests_mut(handle)? = digests;
        let row = known_row(handle);
        if self.rows.len() <= row {
            self.rows.resize(row + 1, Row::default());
            self.rests.resize_with(row + 1, Rest::default);
        }
        let progress = RequestProgress {
            num_tokens,
            num_prompt: num_tokens,
            is_waiting: true,
            ..RequestProgress::default()
        };
        self.rows[row] = Row { progress, ..Row::default() };
        self.rests[row] = Rest::default();
        Ok(handle)
    }

    /// Registers a request by its prompt. `extras` holds one entry for each full hash block, or
    /// nothing when no block has extra keys. Returns the handle.
    ///
    /// # Errors
    /// [`Error::Hash`]; [`Error::DuplicateRequest`]; [`Error::RequestTooLarge`].
    pub fn add_prompt(
        &mut self,
        id: &str,
        tokens: &[i64],
        extras: &[Option<Value>],
    ) -> Result<u64, Error> {
        let mut digests = Vec::new();
        let seed = self.config.hashing.seed;
        let mut chain = HashChain::new(self.config.hash_block_size as usize, 0, seed)?;
        chain.append(&mut self.hasher, tokens, extras, &mut digests)?;
        self.add_hashed(id, chain, digests)
    }

    /// Registers a request whose prompt was hashed already: all `digests` that `chain` made so far.
    /// Returns the handle.
    ///
    /// # Errors
    /// [`Error::DuplicateRequest`]; [`Error::RequestTooLarge`]; [`Error::InvalidArgument`] if the
    /// digests are not one a full hash block.
    pub fn add_hashed(
        &mut self,
        id: &str,
        chain: HashChain<i64>,
        digests: Vec<Digest>,
    ) -> Result<u64, Error> {
        let num_tokens = u32::try_from(chain.num_tokens()).map_err(|_| {
            Error::InvalidArgument(format!("{} tokens are more than 2^32", chain.num_tokens()))
        })?;
        let handle = self.add_request(id, num_tokens, digests)?;
        self.rests[known_row(handle)].chain = Some(chain);
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

    /// Refuses what would not fit into the empty cache.
    fn check_size(&self, num_tokens: u64) -> Result<(), Error> {
        if num_tokens <= u64::from(self.max_request_tokens) {
            return Ok(());
        }
        let most = u32::try_from(num_tokens).unwrap_or(u32::MAX);
        Err(Error::RequestTooLarge {
            num_tokens,
            unit: self.store().unit(),
            needed: manager_config::slabs_for(self.store(), &self.config, most),
            available: self.store().num_slabs(),
            fits: u64::from(self.max_request_tokens),
        })
    }

    /// Tells that a request has `num_new` more tokens, and the digests of the hash blocks that they
    /// fill.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] if the digests do not match.
    pub fn append(&mut self, handle: u64, num_new: u32, digests: &[Digest]) -> Result<(), Error> {
        let row = self.row(handle)?;
        let known = self.rows[row].progress.num_tokens;
        let num_tokens = known
            .checked_add(num_new)
            .ok_or_else(|| Error::InvalidArgument(format!("{num_new} tokens are too many")))?;
        self.check_digests(num_tokens, self.core.digests(handle).len() + digests.len())?;
        self.core.digests_mut(handle)?.extend_from_slice(digests);
        self.rows[row].progress.num_tokens = num_tokens;
        self.rests[row].matched = None;
        Ok(())
    }

    /// Appends one token to each request, as after sampling.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] (lengths differ, a handle twice, a
    /// request that was registered by digests); then nothing was appended.
    pub fn append_tokens(&mut self, handles: &[u64], tokens: &[i32]) -> Result<(), Error> {
        self.check_batch(handles, tokens.len())?;
        for &handle in handles {
            if self.rests[known_row(handle)].chain.is_none() {
                return Err(Error::InvalidArgument(format!(
                    "request {:?} was added by digests; append digests to it",
                    self.core.id(handle).unwrap_or_default()
                )));
            }
        }
        for (&handle, &token) in handles.iter().zip(tokens) {
            let rest = &mut self.rests[known_row(handle)];
            if let Some(chain) = &mut rest.chain {
                let digests = self.core.digests_mut(handle)?;
                chain.append(&mut self.hasher, &[i64::from(token)], &[], digests)?;
            }
            rest.matched = None;
            self.rows[known_row(handle)].progress.num_tokens += 1;
        }
        Ok(())
    }

    /// Says which session a request belongs to, and how that goes on; before the request is
    /// admitted. Turns are then told apart even where the history was rewritten.
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

    /// Says how the session of a request goes on; the last word before the request is freed counts.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_hint(&mut self, handle: u64, hint: Hint) -> Result<(), Error> {
        self.core.set_hint(handle, hint)
    }

    /// Says how a session goes on, at any time. It counts for the requests of the session that are
    /// known; if there is none, for what the last one left behind, as if it had been said before
    /// that request was freed. Returns whether a request of the session is known or remembered; one
    /// that ended long ago may be forgotten.
    pub fn set_session_hint(&mut self, session_id: &str, hint: Hint) -> bool {
        self.core.set_session_hint(session_id, hint)
    }

    /// Says which client, or kind of clients, a request comes from, by a number below
    /// [`BlockManager::MAX_CLIENTS`]; 0 stands for no client. Where checkpoints go is learned for each.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::InvalidArgument`] for a larger number.
    pub fn set_client(&mut self, handle: u64, client: u16) -> Result<(), Error> {
        if client >= Self::MAX_CLIENTS {
            return Err(Error::InvalidArgument(format!(
                "client {client}: numbers lie below {}; let several clients share one",
                Self::MAX_CLIENTS
            )));
        }
        self.core.set_client(handle, client)
    }

    /// Numbers of clients: what is learned of each takes some 700 bytes.
    pub const MAX_CLIENTS: u16 = 1_024;

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

    /// Changes of the prefix cache since the last call.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        let mut events = self.core.take_events();
        events.retain_mut(|event| match event {
            CacheEvent::Stored { positions, .. } => !positions.is_empty(),
            CacheEvent::StoredTail { block_size, .. } => {
                // The block of a state holds the longest request; checkpoints lie where hash blocks end.
                *block_size = self.config.hash_block_size;
                true
            }
            _ => true,
        });
        events
    }

    /// A request's blocks in one group, by position; null where nothing is kept.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::UnknownGroup`].
    pub fn blocks(&self, handle: u64, group: GroupId) -> Result<&[BlockId], Error> {
        self.row(handle)?;
        if group.0 >= self.num_groups() {
            return Err(Error::UnknownGroup { group, num_groups: self.num_groups() });
        }
        Ok(self.core.blocks(handle, group))
    }

    /// Tokens of a request: known, computed, and with room in every group.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn progress(&self, handle: u64) -> Result<(u32, u32, u32), Error> {
        let Row { progress, num_allocated, .. } = self.rows[self.row(handle)?];
        Ok((progress.num_tokens, progress.num_computed, num_allocated))
    }

    /// Counts what the slabs are held for in which a block has an owner.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sizes of other groups, or of blocks that do not fit into their slab.
    pub fn reserved_bytes(&self, sizes: ByteSizes<'_>) -> Result<ReservedBytes, Error> {
        let num_computed = |handle| Some(self.rows[known_row(handle)].progress.num_computed);
        self.core.reserved_bytes(sizes, num_computed)
    }

    /// Drops all cached content.
    ///
    /// # Errors
    /// [`Error::BlocksInUse`] while a request holds blocks, or a copy was not taken.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.core.reset()
    }

    /// Walks everything: no block owned twice, counts equal tables, indexes and lists agree.
    ///
    /// # Errors
    /// The first contradiction, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.core.check_integrity()
    }
}
