//! [`System`]: the manager under test. The only file that changes it.

use std::ops::Deref;

use hybrid_blocks::{
    BlockCopy, BlockId, BlockManager, BlockStore, CacheEvent, Config, Digest, Error, GroupId,
    GroupSpec, Hint, PoolId, PrefillCheckpoint, Store,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::setup::{Group, Setup};

/// A call as Python makes it, and what it answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Call {
    /// Name of the method.
    pub call: &'static str,
    /// Arguments of the call.
    pub args: Value,
    /// Result, or `{"error": name}`.
    pub returned: Value,
}

/// The manager, and a transcript of the calls that change it or that Python repeats. Other looks are the manager's own.
pub(crate) struct System {
    manager: BlockManager,
    keeps_apart: bool,
    transcript: Option<Vec<Call>>,
}

fn spec(group: &Group) -> GroupSpec {
    GroupSpec { kind: group.kind, block_size: group.block_size, pool: PoolId(group.pool) }
}

/// Returns an event as Python sees it: digests are its own, so only their number counts.
fn event(event: &CacheEvent) -> Value {
    match event {
        CacheEvent::Stored { handle, group, first_block, block_size, parent, digests, .. } => {
            json!([
                "stored",
                handle,
                group.0,
                first_block,
                block_size,
                parent.is_some(),
                digests.len()
            ])
        }
        CacheEvent::StoredTail { handle, group, block_size, num_tokens, .. } => {
            let block = num_tokens / block_size - 1;
            json!(["stored", handle, group.0, block, block_size, false, 1])
        }
        CacheEvent::Removed(key) => json!(["removed", key.group.0]),
        CacheEvent::Cleared => json!(["cleared"]),
        _ => json!(["another"]),
    }
}

fn error_name(error: &Error) -> &'static str {
    match error {
        Error::OutOfBlocks { .. } => "OutOfBlocksError",
        Error::RequestTooLarge { .. } => "RequestTooLargeError",
        Error::UnknownRequest { .. } => "UnknownRequestError",
        Error::DuplicateRequest(_) => "DuplicateRequestError",
        Error::ForeignBlock { .. } | Error::NotLive { .. } | Error::BlocksInUse { .. } => {
            "BlockError"
        }
        _ => "InvalidArgumentError",
    }
}

fn returned<T>(result: &Result<T, Error>, value: impl FnOnce(&T) -> Value) -> Value {
    result.as_ref().map_or_else(|error| json!({ "error": error_name(error) }), value)
}

fn ids(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.0).collect()
}

/// Rows as Python gets them: copies name pools where checkpoints have one of their own.
fn copies(copies: &[BlockCopy], keeps_apart: bool) -> Vec<Vec<u32>> {
    let row = |it: &BlockCopy| {
        let row = vec![it.group.0, it.src.0, it.dst.0, it.src_pool.0, it.dst_pool.0];
        row.into_iter().take(if keeps_apart { 5 } else { 3 }).collect()
    };
    copies.iter().map(row).collect()
}

/// A prefill checkpoint as Python gets it.
fn row(it: &PrefillCheckpoint) -> Vec<u64> {
    let ids = [it.group.0, it.position, it.src.0, it.dst.0].map(u64::from);
    [[it.handle].as_slice(), &ids].concat()
}

impl Deref for System {
    type Target = BlockManager;

    fn deref(&self) -> &BlockManager {
        &self.manager
    }
}

/// Methods that note a call of the manager's method of the same name.
macro_rules! noted {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $returned:ty;)*) => {$(
        pub(crate) fn $name(&mut self, $($arg: $kind),*) -> Result<$returned, Error> {
            let result = self.manager.$name($($arg),*);
            self.noted(stringify!($name), || json!([$($arg),*]), result)
        }
    )*};
}

impl System {
    pub(crate) fn new(setup: &Setup) -> Self {
        let store = if setup.blocks_per_slab.is_empty() {
            BlockStore::fixed(setup.num_slabs)
        } else {
            BlockStore::shared(setup.num_slabs, &setup.blocks_per_slab)
        };
        let keeps_apart = setup.groups.iter().any(|it| it.kept_pool.is_some());
        let config = Config {
            enable_events: true,
            checkpoints: setup.placement.parse().expect("a placement"),
            max_in_flight_tokens: Setup::max_in_flight_tokens(),
            prefill_checkpoint_alignment: setup.prefill_checkpoint_alignment,
            kept_pools: setup.groups.iter().map(|it| it.kept_pool.map(PoolId)).collect(),
            ..Config::new(setup.groups.iter().map(spec).collect(), setup.hash_block_size)
        };
        let manager = BlockManager::new(store.expect("a store of a few slabs"), config);
        Self {
            manager: manager.expect("groups of whole hash blocks"),
            keeps_apart,
            transcript: None,
        }
    }

    pub(crate) fn record(&mut self) {
        self.transcript = Some(Vec::new());
    }

    pub(crate) fn take_transcript(&mut self) -> Vec<Call> {
        self.transcript.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn note(
        &mut self,
        call: &'static str,
        args: impl FnOnce() -> Value,
        returned: impl FnOnce() -> Value,
    ) {
        if let Some(transcript) = &mut self.transcript {
            transcript.push(Call { call, args: args(), returned: returned() });
        }
    }

    /// Notes a call and hands its result on.
    fn noted<T: Serialize>(
        &mut self,
        call: &'static str,
        args: impl FnOnce() -> Value,
        result: Result<T, Error>,
    ) -> Result<T, Error> {
        self.note(call, args, || returned(&result, |done| json!(done)));
        result
    }

    noted! {
        preempt(handles: &[u64]) -> ();
        free(handles: &[u64]) -> ();
        chunk(handle: u64, start: u32, most: u32) -> u32;
        allocate(handles: &[u64], counts: &[u32], lookahead: u32) -> usize;
        advance(handles: &[u64], counts: &[u32]) -> ();
        reset() -> ();
        progress(handle: u64) -> (u32, u32, u32);
    }

    /// The manager, for calls that Python cannot make: counts are signed there, and a hasher makes the digests.
    pub(crate) fn unnoted(&mut self) -> &mut BlockManager {
        &mut self.manager
    }

    pub(crate) fn add(
        &mut self,
        id: &str,
        tokens: &[i32],
        digests: Vec<Digest>,
        session: Option<&str>,
    ) -> Result<u64, Error> {
        let result = self.manager.add_request(id, tokens.len() as u32, digests);
        if let (Ok(handle), Some(session)) = (&result, session) {
            self.manager.set_session(*handle, Some(session), Hint::None)?;
        }
        self.noted("add_request", || json!([id, tokens, session]), result)
    }

    pub(crate) fn set_hint(&mut self, handle: u64, hint: Hint) -> Result<(), Error> {
        let result = self.manager.set_hint(handle, hint);
        self.noted("set_hint", || json!([handle, hint.name()]), result)
    }

    pub(crate) fn set_session_hint(&mut self, session: &str, hint: Hint) {
        let is_known = self.manager.set_session_hint(session, hint);
        self.note("set_session_hint", || json!([session, hint.name()]), || json!(is_known));
    }

    pub(crate) fn append(
        &mut self,
        handle: u64,
        tokens: &[i32],
        digests: &[Digest],
    ) -> Result<(), Error> {
        let result = self.manager.append(handle, tokens.len() as u32, digests);
        for token in tokens {
            let done = || returned(&result, |()| Value::Null);
            self.note("append_tokens", || json!([[handle], [token]]), done);
        }
        result
    }

    pub(crate) fn match_prefix(&mut self, handle: u64) -> Result<u32, Error> {
        let result = self.manager.match_prefix(handle).map(|hit| hit.num_tokens);
        self.noted("match_prefix", || json!([handle]), result)
    }

    pub(crate) fn tick(&mut self) {
        self.manager.tick();
        self.note("tick", || json!([]), || Value::Null);
    }

    pub(crate) fn take_copies(&mut self) -> Result<Vec<BlockCopy>, Error> {
        let (result, keeps_apart) = (self.manager.take_copies(), self.keeps_apart);
        let done = || returned(&result, |it| json!(copies(it, keeps_apart)));
        self.note("take_copies", || json!([]), done);
        result
    }

    pub(crate) fn take_prefill_checkpoints(&mut self) -> Vec<PrefillCheckpoint> {
        let taken = self.manager.take_prefill_checkpoints();
        if !taken.is_empty() {
            let told = || taken.iter().map(row).collect();
            self.note("take_prefill_checkpoints", || json!([]), told);
        }
        taken
    }

    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        let events = self.manager.take_events();
        let told = || events.iter().map(event).collect();
        self.note("take_events", || json!([]), told);
        events
    }

    /// As [`System::table`], with a place in the transcript.
    pub(crate) fn ask_table(&mut self, handle: u64, group: u32) -> Result<Vec<BlockId>, Error> {
        let result = self.manager.blocks(handle, GroupId(group)).map(<[BlockId]>::to_vec);
        let done = || returned(&result, |blocks| json!(ids(blocks)));
        self.note("block_ids", || json!([handle, group]), done);
        result
    }

    pub(crate) fn table(&self, handle: u64, group: u32) -> &[BlockId] {
        self.manager.blocks(handle, GroupId(group)).expect("the request is known")
    }

    pub(crate) fn cached_block(&self, pool: u32, group: u32, digest: Digest) -> Option<BlockId> {
        let key = hybrid_blocks::Key { digest, group: GroupId(group) };
        self.manager.store().get(PoolId(pool), &key)
    }

    pub(crate) fn num_keys(&self) -> usize {
        let store = self.manager.store();
        (0..store.num_pools()).map(|pool| store.prefix_index(PoolId(pool)).len()).sum()
    }

    pub(crate) fn check_integrity(&mut self) -> Result<(), String> {
        let result = self.manager.check_integrity();
        self.note("check_integrity", || json!([]), || Value::Null);
        result
    }

    /// Everything that can be seen but the requests, in words.
    pub(crate) fn dump(&self) -> String {
        let store = self.manager.store();
        let pools: Vec<_> = (0..store.num_pools())
            .map(PoolId)
            .map(|pool| {
                let blocks: Vec<_> = store.free_order(pool);
                let counts: Vec<_> = (0..store.pool(pool).num_ids())
                    .map(|block| store.pool(pool).ref_count(BlockId(block)))
                    .collect();
                (blocks, counts, store.prefix_index(pool))
            })
            .collect();
        let (slabs, stats) = (store.num_free_slabs(), self.manager.stats());
        format!("{pools:?} {slabs} {stats:?} {}", self.manager.num_requests())
    }
}
