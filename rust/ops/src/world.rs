//! [`World`]: a manager, the requests and the device that it serves, and the naive model of it all.

use std::collections::BTreeMap;

use hybrid_blocks::hash::{Algorithm, BlockHasher};
use hybrid_blocks::{
    BlockCopy, BlockManager, CacheEvent, Digest, Error, GroupKind, Hint, PrefillCheckpoint, Stats,
};

use crate::memory::Memory;
use crate::op::Op;
use crate::request::Request;
use crate::setup::{Group, Setup};
use crate::system::{Call, System};

/// Error of the manager, if there is any.
pub type Check = Result<(), String>;

/// Fails with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

/// Everything around one manager.
///
/// Whatever the groups, what a request reads must be what its tokens wrote, through hits, forks,
/// evictions and preemption; a refused call must change nothing; what is computed and held is found.
/// In a plain setup ([`Setup::is_plain`]) every hit is also predicted.
pub struct World {
    pub(crate) setup: Setup,
    pub(crate) system: System,
    pub(crate) requests: Vec<Request>,
    pub(crate) memory: Memory,
    /// How many blocks carry each key, as told.
    pub(crate) stored: BTreeMap<(u32, Digest), u32>,
    /// States that the next forward pass keeps.
    pub(crate) inside: Vec<PrefillCheckpoint>,
    hasher: BlockHasher,
    num_added: u32,
    /// Whether a request was admitted in the step at hand: it may have hit what others compute in it.
    pub(crate) has_admitted: bool,
}

impl World {
    /// A manager without requests.
    pub fn new(setup: &Setup) -> Self {
        Self {
            system: System::new(setup),
            memory: Memory::new(setup.num_slabs, setup.pools()),
            setup: setup.clone(),
            requests: Vec::new(),
            stored: BTreeMap::new(),
            inside: Vec::new(),
            hasher: BlockHasher::new(Algorithm::Xxhash),
            num_added: 0,
            has_admitted: false,
        }
    }

    /// Notes every call from now on.
    #[must_use]
    pub fn with_transcript(mut self) -> Self {
        self.system.record();
        self
    }

    /// The calls so far.
    pub fn take_transcript(&mut self) -> Vec<Call> {
        self.system.take_transcript()
    }

    /// Returns the counters since the start.
    pub fn stats(&self) -> Stats {
        self.system.stats()
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = (u32, Group)> + use<> {
        (0..).zip(self.setup.groups.clone())
    }

    /// Runs one operation, then compares everything that can be seen.
    pub(crate) fn apply(&mut self, op: &Op) -> Check {
        match op {
            &Op::Add { prompt, shared, own, output, session } => {
                self.add(prompt, shared, own, output, session)?;
            }
            &Op::Hint { which, hint } => {
                if let Some(at) = self.pick(which) {
                    let handle = self.requests[at].handle;
                    let told = self.system.set_hint(handle, hint_of(hint));
                    told.map_err(|error| format!("hint: {error}"))?;
                }
            }
            &Op::HintSession { session, hint } => {
                self.system.set_session_hint(&session_id(session), hint_of(hint));
            }
            &Op::Append { which, num_tokens } => {
                if let Some(at) = self.pick(which) {
                    let tokens = (0..num_tokens).map(|i| 100 + (which.wrapping_add(i) % 3));
                    self.append(at, &tokens.map(i32::from).collect::<Vec<_>>())?;
                }
            }
            &Op::Match { which } => {
                if let Some(at) = self.pick(which) {
                    self.match_prefix(at)?;
                }
            }
            Op::Allocate { batch, lookahead } => {
                let batch = self.pick_pairs(batch);
                self.allocate(&batch, u32::from(*lookahead))?;
            }
            Op::Advance => self.advance()?,
            &Op::Step { which, budget } => {
                if let Some(at) = self.pick(which) {
                    self.step(at, u32::from(budget))?;
                }
            }
            Op::Preempt { which } => {
                let picked = self.pick_all(which);
                self.preempt(&picked)?;
            }
            Op::Free { which } => {
                let picked = self.pick_all(which);
                self.free(&picked)?;
            }
            Op::TakeCopies => drop(self.run_copies()?),
            Op::Tick => self.system.tick(),
            Op::Reset => self.reset()?,
            &Op::Refuse { refusal, which } => {
                if let Some(at) = self.pick(which) {
                    self.refuse(refusal, at)?;
                }
            }
        }
        self.settle()
    }

    fn pick(&self, which: u8) -> Option<usize> {
        (!self.requests.is_empty()).then(|| usize::from(which) % self.requests.len())
    }

    /// Different requests, in the order given.
    fn pick_all(&self, which: &[u8]) -> Vec<usize> {
        self.pick_pairs(&which.iter().map(|&which| (which, 0)).collect::<Vec<_>>())
            .into_iter()
            .map(|(at, _)| at)
            .collect()
    }

    fn pick_pairs(&self, batch: &[(u8, u8)]) -> Vec<(usize, u32)> {
        let mut picked: Vec<(usize, u32)> = Vec::new();
        for &(which, n) in batch {
            if let Some(at) = self.pick(which)
                && picked.iter().all(|&(other, _)| other != at)
            {
                picked.push((at, u32::from(n)));
            }
        }
        picked
    }

    /// The digest of the first `n` tokens of a request, whole hash blocks.
    pub(crate) fn digest(&self, request: &Request, n: u32) -> Digest {
        request.digests[(n / self.setup.hash_block_size) as usize - 1]
    }

    pub(crate) fn handles(&self, picked: &[usize]) -> Vec<u64> {
        picked.iter().map(|&at| self.requests[at].handle).collect()
    }

    fn add(&mut self, prompt: u8, shared: u8, own: u8, output: u8, session: u8) -> Check {
        let number = self.num_added;
        self.num_added += 1;
        let shared = (0..i32::from(shared)).map(|at| i32::from(prompt) * 50 + at % 7);
        // A request has a token.
        let own = (0..i32::from(own.max(u8::from(shared.len() == 0))))
            .map(|at| 200 + (number.cast_signed() + at) % 3);
        let tokens: Vec<i32> = shared.chain(own).collect();
        let id = format!("request {number}");
        let mut request = Request::new(id, self.setup.hash_block_size, u32::from(output));
        let digests = request.append(&mut self.hasher, &tokens).to_vec();
        let fits = request.num_tokens() <= self.system.max_request_tokens();
        let session = (session > 0).then(|| session_id(session));
        let result = self.system.add(&request.id, &tokens, digests, session.as_deref());
        ensure!(result.is_ok() == fits, "a request of {} tokens: {result:?}", tokens.len());
        let Ok(handle) = result else { return Ok(()) };
        ensure!(self.system.find(&request.id) == Some(handle), "{} is not found", request.id);
        request.handle = handle;
        self.requests.push(request);
        Ok(())
    }

    fn append(&mut self, at: usize, tokens: &[i32]) -> Check {
        let request = &mut self.requests[at];
        // A hit that was found before is looked up again.
        request.promised = None;
        let handle = request.handle;
        let digests = request.append(&mut self.hasher, tokens);
        self.system.append(handle, tokens, digests).map_err(|error| format!("append: {error}"))
    }

    pub(crate) fn match_prefix(&mut self, at: usize) -> Result<u32, String> {
        self.take_events()?;
        let (handle, num_shortened) = (self.requests[at].handle, self.system.stats().shortened);
        let hit = self.system.match_prefix(handle).map_err(|error| error.to_string())?;
        let request = &self.requests[at];
        if self.setup.is_plain() {
            let expected = if request.running { 0 } else { self.longest_hit(request, u32::MAX) };
            // One with which the request could not come to its end is shortened.
            let is_shortened = self.system.stats().shortened > num_shortened;
            ensure!(
                hit == expected || (is_shortened && hit < expected),
                "hit of {hit}, not {expected}: {request:?}"
            );
        }
        if !request.running {
            self.requests[at].promised = Some(hit);
        }
        Ok(hit)
    }

    /// Up to `most` tokens that a request may compute next: not past what it knows, or where a checkpoint is wanted.
    pub(crate) fn chunk(&mut self, at: usize, most: u32) -> Result<u32, String> {
        let start = match &self.requests[at] {
            request if request.running => request.computed,
            _ => self.match_prefix(at)?,
        };
        let request = &self.requests[at];
        let num_new = most.min(request.num_tokens().saturating_sub(start));
        let chunk = self.system.chunk(request.handle, start, num_new);
        let chunk = chunk.map_err(|error| error.to_string())?;
        ensure!(chunk <= num_new && (chunk > 0 || num_new == 0), "a chunk of {chunk} of {num_new}");
        Ok(chunk)
    }

    /// The step at hand is computed: all tokens that got room are written and recorded.
    pub(crate) fn advance(&mut self) -> Check {
        let requests = (0..).zip(&self.requests).filter(|(_, it)| it.running);
        let batch: Vec<(usize, u32)> =
            requests.map(|(at, it)| (at, it.entered.saturating_sub(it.computed))).collect();
        self.run_copies()?;
        self.forward(&batch)?;
        self.keep_inside(&batch)?;
        let (picked, counts): (Vec<usize>, Vec<u32>) = batch.iter().copied().unzip();
        self.system
            .advance(&self.handles(&picked), &counts)
            .map_err(|error| format!("advance: {error}"))?;
        self.has_admitted = false;
        for (at, n) in batch {
            let request = &mut self.requests[at];
            request.computed += n;
            request.entered = request.computed;
            self.look(&self.requests[at], self.requests[at].computed)?;
        }
        Ok(())
    }

    /// The next tokens are computed: write all of them, and a rejected draft behind, then look at
    /// everything that they look at.
    fn forward(&mut self, batch: &[(usize, u32)]) -> Check {
        for &(at, n) in batch {
            let request = &self.requests[at];
            self.look_at_states(request, request.computed)?;
            let (start, end) = (request.computed, request.computed + n);
            for (id, group) in self.groups() {
                let table = self.system.table(request.handle, id);
                if let GroupKind::State { .. } = group.kind {
                    if end > start {
                        let content = request.tokens.content(end) ^ u64::from(id);
                        self.memory.write((group.pool, table[0].0), 0, content);
                    }
                } else if group.is_attention() {
                    for token in start..request.allocated {
                        let block = table[(token / group.block_size) as usize];
                        let content =
                            if token < end { request.tokens.content(token + 1) } else { 0 };
                        let place = (group.pool, block.0);
                        let content = content ^ u64::from(id);
                        self.memory.write(place, token % group.block_size, content);
                    }
                }
            }
        }
        for &(at, n) in batch {
            let request = &self.requests[at];
            for token in request.computed..request.computed + n {
                self.look_at_tokens(request, token)?;
            }
        }
        Ok(())
    }

    /// States are kept from inside the pass that was run.
    fn keep_inside(&mut self, batch: &[(usize, u32)]) -> Check {
        for it in std::mem::take(&mut self.inside) {
            let PrefillCheckpoint { handle, group, position, src, dst } = it;
            let own = batch.iter().find(|&&(at, _)| self.requests[at].handle == handle);
            let Some(&(at, n)) = own else {
                return Err(format!("{it:?} of a request that computes nothing"));
            };
            let request = &self.requests[at];
            let inside = request.computed + 1..request.computed + n;
            ensure!(inside.contains(&position), "{it:?} outside {inside:?}");
            let running = self.system.table(handle, group.0)[0];
            ensure!(src == running, "{it:?} keeps another state than {running}");
            let content = request.tokens.content(position) ^ u64::from(group.0);
            let pool = self.setup.groups[group.index()].pool;
            self.memory.write((pool, dst.0), 0, content);
        }
        Ok(())
    }

    /// Checks that all that the token at `at` looks at, before itself, lies where the tables say.
    pub(crate) fn look(&self, request: &Request, at: u32) -> Check {
        self.look_at_tokens(request, at)?;
        self.look_at_states(request, at)
    }

    pub(crate) fn look_at_states(&self, request: &Request, at: u32) -> Check {
        for (id, group) in self.groups() {
            let table = self.system.table(request.handle, id);
            match group.kind {
                GroupKind::State { slots } => {
                    ensure!(
                        table.len() == slots as usize,
                        "group {id}: {table:?} are {} state slots: {request:?}",
                        table.len()
                    );
                    if at > 0 {
                        let found = self.memory.read((group.pool, table[0].0), 0);
                        let expected = request.tokens.content(at) ^ u64::from(id);
                        ensure!(found == Some(expected), "state of group {id} after {at} tokens");
                    }
                }
                GroupKind::Cross { encoder_tokens } => {
                    let blocks = encoder_tokens.div_ceil(group.block_size);
                    ensure!(table.len() == blocks as usize, "{} encoder blocks", table.len());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn look_at_tokens(&self, request: &Request, at: u32) -> Check {
        for (id, group) in self.groups().filter(|(_, group)| group.is_attention()) {
            let table = self.system.table(request.handle, id);
            for token in group.first_seen(at)..at {
                let block = table[(token / group.block_size) as usize];
                ensure!(!block.is_null(), "token {at} of {} looks at {token}: null", request.id);
                let found = self.memory.read((group.pool, block.0), token % group.block_size);
                let expected = request.tokens.content(token + 1) ^ u64::from(id);
                ensure!(found == Some(expected), "group {id}, token {token} for {at}: {request:?}");
            }
        }
        Ok(())
    }

    /// Runs a step of a scheduler for one request. Returns whether it was served.
    pub(crate) fn step(&mut self, at: usize, budget: u32) -> Result<bool, String> {
        let request = &self.requests[at];
        if request.running && request.computed == request.num_tokens() {
            self.sample(at)?;
            return Ok(true);
        }
        self.system.tick();
        let num_new = self.chunk(at, budget)?;
        if self.allocate(&[(at, num_new)], 0)? == 0 {
            return Ok(false);
        }
        self.advance()?;
        self.sample(at)?;
        Ok(true)
    }

    fn sample(&mut self, at: usize) -> Check {
        let request = &mut self.requests[at];
        let known = request.num_tokens();
        if request.computed < known || request.output == 0 {
            return Ok(());
        }
        request.output -= 1;
        self.append(at, &[known.cast_signed() % 3])
    }

    /// Requests are taken out of a step only before others are admitted, who may have hit what they compute in it.
    fn end_step_of(&mut self, picked: &[usize]) -> Check {
        let is_due = |&at: &usize| self.requests[at].entered > self.requests[at].computed;
        if self.has_admitted && picked.iter().any(is_due) { self.advance() } else { Ok(()) }
    }

    pub(crate) fn preempt(&mut self, picked: &[usize]) -> Check {
        self.end_step_of(picked)?;
        let handles = self.handles(picked);
        self.system.preempt(&handles).map_err(|error| format!("preempt: {error}"))?;
        self.inside.retain(|it| !handles.contains(&it.handle));
        for &at in picked {
            self.requests[at].preempted();
        }
        Ok(())
    }

    pub(crate) fn free(&mut self, picked: &[usize]) -> Check {
        self.end_step_of(picked)?;
        let handles = self.handles(picked);
        self.system.free(&handles).map_err(|error| format!("free: {error}"))?;
        self.inside.retain(|it| !handles.contains(&it.handle));
        self.requests.retain(|request| !handles.contains(&request.handle));
        for handle in handles {
            let gone = Err(Error::UnknownRequest { handle });
            ensure!(self.system.progress(handle) == gone, "request {handle} was freed");
        }
        Ok(())
    }

    fn copy(&mut self, copies: &[BlockCopy]) {
        for copy in copies {
            self.memory.copy((copy.src_pool.0, copy.src.0), (copy.dst_pool.0, copy.dst.0));
        }
    }

    /// Returns how many there were.
    pub(crate) fn run_copies(&mut self) -> Result<usize, String> {
        let copies = self.system.take_copies().map_err(|error| format!("copies: {error}"))?;
        ensure!(copies.is_empty() || !self.setup.is_plain(), "nothing asked for {copies:?}");
        self.copy(&copies);
        let inside = self.system.take_prefill_checkpoints();
        let states = |it: &PrefillCheckpoint| self.setup.groups[it.group.index()].kind;
        let is_state = |it| matches!(states(it), GroupKind::State { .. });
        ensure!(inside.iter().all(is_state), "other blocks are kept inside a chunk: {inside:?}");
        self.inside.extend(inside);
        self.check_checkpoints()?;
        Ok(copies.len())
    }

    /// No copy waits: a checkpoint that is found holds the state after its tokens, in the pool where its group keeps
    /// checkpoints.
    fn check_checkpoints(&self) -> Check {
        let states = self.groups().filter(|(_, it)| matches!(it.kind, GroupKind::State { .. }));
        for (id, group) in states {
            let kept = group.kept();
            for request in &self.requests {
                let full = request.num_tokens() / self.setup.hash_block_size;
                for end in (1..=full).map(|at| at * self.setup.hash_block_size) {
                    let digest = self.digest(request, end);
                    let found = self.system.cached_block(kept, id, digest);
                    let held = found.map(|block| self.memory.read((kept, block.0), 0));
                    let expected = request.tokens.content(end) ^ u64::from(id);
                    ensure!(
                        held.is_none_or(|held| held == Some(expected)),
                        "{found:?} of group {id} holds no state after {end} tokens: {request:?}"
                    );
                    if kept != group.pool {
                        let running = self.system.cached_block(group.pool, id, digest);
                        ensure!(running.is_none(), "{running:?} of group {id} runs and is found");
                    }
                }
            }
        }
        Ok(())
    }

    fn reset(&mut self) -> Check {
        let held = |request: &Request| {
            self.groups().any(|(id, _)| {
                self.system.table(request.handle, id).iter().any(|block| !block.is_null())
            })
        };
        let busy = self.requests.iter().any(held);
        let before = self.dump();
        match self.system.reset() {
            Ok(()) => ensure!(!busy, "blocks in use were dropped"),
            Err(Error::BlocksInUse { .. }) => {
                ensure!(busy, "nothing was in use");
                ensure!(before == self.dump(), "a refused reset changed something");
            }
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    /// Takes in events, then compares everything that can be seen.
    pub(crate) fn settle(&mut self) -> Check {
        self.take_events()?;
        for at in 0..self.requests.len() {
            let request = &self.requests[at];
            let handle = request.handle;
            for (id, _) in self.groups() {
                self.system.ask_table(handle, id).map_err(|error| error.to_string())?;
            }
            let request = &self.requests[at];
            let expected = (request.num_tokens(), request.computed, request.allocated);
            let found = self.system.progress(handle);
            ensure!(found == Ok(expected), "{found:?}, not {expected:?}: {}", request.id);
        }
        let (keys, expected) = (self.system.num_keys(), self.stored.len());
        ensure!(keys == expected, "{keys} keys are cached, not {expected}");
        self.check_entered()?;
        self.check_reserved()?;
        self.system.check_integrity()
    }

    /// Full blocks of full attention that requests hold can be found, as far as they are computed, or the step at hand
    /// computes them. Of a window only those are entered that a hit can need.
    fn check_entered(&self) -> Check {
        for request in &self.requests {
            for (id, group) in self.groups().filter(|(_, group)| group.kind == GroupKind::Full) {
                let table = self.system.table(request.handle, id);
                let entered = request.entered.max(request.computed);
                let full = entered / self.setup.grain() * self.setup.grain() / group.block_size;
                for position in (0..full).filter(|&at| !table[at as usize].is_null()) {
                    let digest = self.digest(request, (position + 1) * group.block_size);
                    let is_found = self.system.cached_block(group.pool, id, digest).is_some();
                    ensure!(is_found, "block {position} of group {id} is not found: {request:?}");
                }
            }
        }
        Ok(())
    }

    fn take_events(&mut self) -> Check {
        let events = self.system.take_events();
        events.into_iter().try_for_each(|event| self.hear(event))
    }

    fn hear(&mut self, event: CacheEvent) -> Check {
        match event {
            CacheEvent::Removed(key) => {
                let key = (key.group.0, key.digest);
                let Some(count) = self.stored.get_mut(&key) else {
                    return Err(format!("{key:?} was removed but never stored"));
                };
                *count -= 1;
                if *count == 0 {
                    self.stored.remove(&key);
                }
            }
            CacheEvent::Cleared => self.stored.clear(),
            CacheEvent::Stored { group, digests, .. } => {
                for digest in digests {
                    *self.stored.entry((group.0, digest)).or_default() += 1;
                }
            }
            CacheEvent::StoredTail { group, digest, .. } => {
                *self.stored.entry((group.0, digest)).or_default() += 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything that can be seen, in words.
    pub(crate) fn dump(&self) -> String {
        let requests: Vec<_> = self
            .requests
            .iter()
            .map(|request| {
                let tables = self.groups().map(|(id, _)| self.system.table(request.handle, id));
                (tables.collect::<Vec<_>>(), BlockManager::progress(&self.system, request.handle))
            })
            .collect();
        format!("{} {requests:?}", self.system.dump())
    }
}

pub(crate) fn session_id(number: u8) -> String {
    format!("session {number}")
}

pub(crate) fn hint_of(number: u8) -> Hint {
    Hint::ALL[usize::from(number) % Hint::ALL.len()]
}
