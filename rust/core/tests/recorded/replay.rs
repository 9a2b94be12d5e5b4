//! A life once more, on the engine: every answer must be the one that vLLM gave.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;

use hybrid_blocks::CacheEvent;
use hybrid_blocks::Digest;

use super::digests::{digest, number};
use super::engine::Engine;
use super::fixture::{Allocate, Call, Config, Event, Life, State, Step};

/// Questions of callers before they call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Nothing.
    Plain,
    /// Callers ask whether the call would change anything, and if not they spare it.
    Sparing,
}

/// How often calls were spared by those who spare them.
#[derive(Debug, Default)]
pub(crate) struct Spared {
    /// Decode steps that followed another one of the request, and in which nothing changed.
    pub(crate) num_idle: usize,
    /// Idle steps that the engine told beforehand.
    pub(crate) num_spared: usize,
}

/// The life on a new engine.
///
/// # Errors
/// The first step whose answer is another one.
pub(crate) fn replay(life: &Life, caller: Caller) -> Result<Spared, String> {
    let mut replay = Replay {
        engine: Engine::new(&life.start),
        config: &life.start.config,
        num_blocks: life.start.num_blocks,
        digests: HashMap::new(),
        caller,
        spared: Spared::default(),
        decoding: HashSet::new(),
    };
    for (at, step) in life.steps.iter().enumerate() {
        replay.step(step).map_err(|what| {
            format!("life {:?}, {caller:?}, step {at}: {what}\n  of {step:?}", life.name)
        })?;
    }
    Ok(replay.spared)
}

struct Replay<'a> {
    engine: Engine,
    config: &'a Config,
    num_blocks: u32,
    digests: HashMap<u32, Vec<Digest>>,
    caller: Caller,
    spared: Spared,
    /// Requests whose latest call was a decode step.
    decoding: HashSet<u32>,
}

fn same<T: PartialEq + Debug>(what: &str, expected: &T, got: &T) -> Result<(), String> {
    if expected == got {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:?}, got {got:?}"))
}

impl Replay<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let known = self.digests.entry(step.request).or_default();
        known.extend(step.digests.iter().copied().map(digest));
        let request = step.request;
        match &step.call {
            Call::Allocate(ask) if ask.raised => return self.fail(step, ask),
            Call::Allocate(ask) => self.allocate(step, ask)?,
            Call::Blocks { blocks } => {
                let groups = 0..self.config.groups.len() as u32;
                let got = groups.map(|group| self.engine.blocks(request, group)).collect();
                same("blocks", blocks, &got)?;
            }
            Call::CachedTokens { tokens } => {
                same("tokens", tokens, &self.engine.num_cached_tokens(request))?;
            }
            Call::Commit { tokens } => self.commit(step, *tokens)?,
            Call::Demand { span, hit, blocks } => {
                same("demand", blocks, &self.engine.demand(request, hit.as_ref(), *span))?;
            }
            Call::Evict { blocks } => self.engine.evict(blocks),
            Call::Free {} => self.engine.free(request)?,
            Call::FreeBlocks { blocks } => self.engine.free_blocks(blocks)?,
            Call::Hit { limit, blocks, tokens, uncached } => {
                self.update_digests(request);
                let (got, got_tokens, got_uncached) = self.engine.hit(request, *limit);
                same("blocks", blocks, &got)?;
                same("tokens", &(tokens, uncached), &(&got_tokens, &got_uncached))?;
            }
            Call::Hits { limit, blocks, lengths } => {
                let digests = &self.digests[&request];
                let (got, got_lengths) = self.engine.hit_per_group(digests, *limit);
                same("blocks", blocks, &got)?;
                same("lengths", lengths, &got_lengths)?;
            }
            Call::Look { queue, contents, tables, holders } => {
                self.look(*queue, *contents, tables, holders)?;
            }
            Call::Pop { blocks } => {
                // vLLM 0.32 returns null blocks too, which are never freed.
                let mut got = self.engine.pop(request);
                got.retain(|&block| block != 0);
                same("blocks", blocks, &got)?;
            }
            Call::Recede { tokens } => self.engine.recede(request, *tokens)?,
            Call::Reset { refused } => same("refused", refused, &!self.engine.reset())?,
            Call::Step {} => self.engine.start_step(),
            Call::TakeCopies { pairs } => same("copies", pairs, &self.engine.take_copies())?,
            Call::TakeFinalStates { states } => {
                let got = self.engine.take_final_states(request, step.facts.unwrap_or_default());
                same("states", states, &got)?;
            }
            Call::TakeNew { blocks } => same("blocks", blocks, &self.engine.take_new_blocks())?,
            Call::TakeStates { states } => {
                same("states", states, &by_request(&self.engine.take_boundary_states()))?;
            }
            Call::Touch { blocks } => self.engine.touch(blocks)?,
            Call::ZeroAgain { tokens } => self.engine.zero_again(request, *tokens)?,
        }
        same("events", &step.events, &self.events(request))?;
        same("free blocks", &step.free, &self.engine.num_free())
    }

    fn allocate(&mut self, step: &Step, ask: &Allocate) -> Result<(), String> {
        let facts = step.facts.ok_or("no facts")?;
        let only_new = ask.hit.is_none()
            && ask.hit_tokens == 0
            && ask.external == 0
            && !ask.delayed
            && !ask.must_fit
            && ask.reserved == 0;
        let is_held_back = self.config.watermark_blocks > 0 && facts[5] != 0 && !ask.alone;
        let is_quiet = only_new && !is_held_back && self.engine.is_quiet(step.request, facts, ask);
        let was_decoding = self.decoding.contains(&step.request);
        if is_quiet && self.caller == Caller::Sparing {
            self.spared.num_idle += 1;
            self.spared.num_spared += 1;
            let nothing = vec![Vec::new(); self.config.groups.len()];
            return same("new blocks", &ask.blocks, &Some(nothing));
        }
        let before = self.table(step.request);
        self.update_digests(step.request);
        same("new blocks", &ask.blocks, &self.engine.allocate(step.request, facts, ask)?)?;
        let is_idle = self.table(step.request) == before && step.events.is_empty();
        if is_quiet && !is_idle {
            return Err("it was said to change nothing".to_owned());
        }
        let is_decode = only_new && !is_held_back && facts[0] >= facts[2] && ask.blocks.is_some();
        if is_decode && is_idle && was_decoding {
            self.spared.num_idle += 1;
        }
        if is_decode {
            self.decoding.insert(step.request);
        } else {
            self.decoding.remove(&step.request);
        }
        Ok(())
    }

    /// Calls at which vLLM raised must be errors here too, but where it counted a block too few for a state that
    /// others compute: there the request waits.
    fn fail(&mut self, step: &Step, ask: &Allocate) -> Result<(), String> {
        self.update_digests(step.request);
        match self.engine.allocate(step.request, step.facts.ok_or("no facts")?, ask) {
            Err(_) => Ok(()),
            Ok(None) if ask.external > 0 => Ok(()),
            Ok(got) => Err(format!("new blocks: expected an error, got {got:?}")),
        }
    }

    fn commit(&mut self, step: &Step, num_computed: u32) -> Result<(), String> {
        if self.engine.is_commit_quiet(step.request, num_computed) {
            if !step.events.is_empty() {
                return Err("said to change nothing".to_owned());
            }
            if self.caller == Caller::Sparing {
                return Ok(());
            }
        }
        self.decoding.remove(&step.request);
        self.update_digests(step.request);
        self.engine.commit(step.request, step.facts.ok_or("no facts")?, num_computed)
    }

    fn update_digests(&mut self, request: u32) {
        if self.config.lookup != "none" {
            self.engine.update_digests(request, &self.digests[&request]);
        }
    }

    fn look(
        &self,
        queue: u32,
        contents: u32,
        tables: &[(u32, u32)],
        holders: &[Vec<u32>],
    ) -> Result<(), String> {
        let groups = 0..self.config.groups.len() as u32;
        for &(request, table) in tables {
            same(&format!("table of {request}"), &table, &self.table(request))?;
        }
        let got: Vec<_> = groups.map(|group| self.engine.holders(group)).collect();
        same("holders", &holders, &got.as_slice())?;
        same("contents", &contents, &self.contents())?;
        same("free queue", &queue, &fnv(self.engine.free_queue()))?;
        self.engine.check_integrity()
    }

    /// As the recorder hashes it.
    fn table(&self, request: u32) -> u32 {
        let mut told = Vec::new();
        for group in 0..self.config.groups.len() as u32 {
            let blocks = self.engine.blocks(request, group);
            told.push(blocks.len() as u32);
            told.extend(blocks);
            told.push(self.engine.num_cached_blocks(request, group).map_or(0, |it| it + 1));
            let checkpoint = self.engine.checkpoint(request, group).unwrap_or_default();
            told.extend([checkpoint.0, checkpoint.1]);
        }
        fnv(told.into_iter())
    }

    fn contents(&self) -> u32 {
        let mut told = Vec::new();
        for block in 1..self.num_blocks {
            told.push(self.engine.num_owners(block));
            if let Some((first, num_tokens, mut further)) = self.engine.keys(block) {
                further.sort_unstable();
                told.extend([first.0, first.1, num_tokens]);
                told.extend(further.into_iter().flat_map(|(digest, group)| [digest, group]));
            }
        }
        fnv(told.into_iter())
    }

    /// Changes of the prefix cache, as vLLM tells others of it.
    fn events(&mut self, request: u32) -> Vec<Event> {
        let taken = self.engine.take_events().into_iter();
        let mut events: Vec<_> = taken.map(|event| self.event(request, event)).collect();
        // One block's removals have no order in vLLM.
        let is_removal = |event: &Event| matches!(event, Event::Removed(..));
        for run in events.chunk_by_mut(|a, b| is_removal(a) && is_removal(b)) {
            run.sort_unstable();
        }
        events
    }

    fn event(&self, request: u32, event: CacheEvent) -> Event {
        let digests = &self.digests[&request];
        let unit = self.config.hash_block_size;
        let before = |tokens: u32| match tokens / unit {
            0 => 0,
            at => number(&digests[at as usize - 1]),
        };
        match event {
            CacheEvent::Removed(key) => Event::Removed(key.group.0, number(&key.digest)),
            CacheEvent::Stored { group, first_block, end_block, positions, .. } => {
                let size = self.config.groups[group.index()].block_size;
                let blocks = positions.iter().map(|&block| before((block + 1) * size)).collect();
                let num_tokens = (end_block - first_block) * size;
                Event::Stored(group.0, size, num_tokens, before(first_block * size), blocks)
            }
            CacheEvent::StoredTail { group, num_tokens, .. } => {
                let start = num_tokens - unit;
                Event::Stored(group.0, unit, unit, before(start), vec![before(num_tokens)])
            }
            other => unreachable!("{other:?}"),
        }
    }
}

/// States in the order of requests' first ones.
fn by_request(states: &[(u32, State)]) -> Vec<(u32, State)> {
    let first = |request| states.iter().position(|&(other, _)| other == request);
    let mut sorted = states.to_vec();
    sorted.sort_by_key(|&(request, _)| first(request));
    sorted
}

/// The FNV-1a hash of numbers, each as a whole.
fn fnv(numbers: impl Iterator<Item = u32>) -> u32 {
    numbers.fold(0x811c_9dc5, |value, number| (value ^ number).wrapping_mul(0x0100_0193))
}
