//! [`Engine`]: a scheduler's queues over a manager, and the memory that a worker writes.

use std::collections::VecDeque;

use hybrid_blocks::vllm::{AllocateArgs, KvCacheManager, KvCacheStats};
use hybrid_blocks::{BlockId, BlockStore, GroupId, Hint, Store};

use super::request::{Request, Stage};
use super::step::{Load, Step};
use super::{Event, Setup};
use crate::memory::Memory;
use crate::setup::Group;
use crate::tokens::Tokens;
use crate::world::{Check, ensure, hint_of, session_id};

/// Everything around one manager of an engine.
pub struct Engine {
    pub(super) setup: Setup,
    pub(super) manager: KvCacheManager<BlockStore>,
    pub(super) memory: Memory,
    pub(super) running: Vec<Request>,
    pub(super) waiting: VecDeque<Request>,
    /// Waiting ones that hold blocks. They are served before others.
    pub(super) holding: VecDeque<Request>,
    /// Their clients are gone, but loads still write into their blocks.
    pub(super) aborted: Vec<Request>,
    pub(super) loads: Vec<Load>,
    pub(super) in_flight: VecDeque<Step>,
    /// Tokens of requests that ended, for others to continue.
    ended: Vec<Tokens>,
    num_added: u32,
    /// States kept from inside chunks.
    pub(super) num_inside: u64,
    /// How many drafts are right.
    luck: u32,
}

impl Engine {
    pub(super) fn new(setup: &Setup) -> Self {
        let manager = KvCacheManager::new(setup.store(), setup.config());
        Self {
            manager: manager.expect("groups that fit each other"),
            memory: Memory::new(setup.num_slabs, setup.pools()),
            setup: setup.clone(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            holding: VecDeque::new(),
            aborted: Vec::new(),
            loads: Vec::new(),
            in_flight: VecDeque::new(),
            ended: Vec::new(),
            num_added: 0,
            num_inside: 0,
            luck: 1,
        }
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (u32, Group)> + use<> {
        (0..).zip(self.setup.groups.clone())
    }

    /// Lets an event happen.
    pub(super) fn apply(&mut self, event: &Event) -> Check {
        match *event {
            Event::Add { begins, shared, own, answer, said, reach, load } => {
                self.add((begins, shared, own), answer, said, (reach, load));
            }
            Event::Steps { count, luck } => {
                self.luck = u32::from(luck) + 1;
                for _ in 0..count {
                    self.step()?;
                }
            }
            Event::Abort { which } => self.abort(which)?,
            Event::Preempt { which } => {
                if !self.running.is_empty() {
                    let request = self.running.remove(usize::from(which) % self.running.len());
                    self.preempt(request)?;
                }
            }
            Event::Hint { session, hint } => {
                self.manager.set_session_hint(&session_id(session), hint_of(hint));
            }
            Event::Reset => self.reset()?,
        }
        self.check()
    }

    fn add(&mut self, prompt: (u8, u8, u8), answer: u8, said: u8, (reach, load): (u8, u8)) {
        let (begins, shared, own) = prompt;
        let number = self.num_added;
        self.num_added += 1;
        let family = i32::from(begins % 3);
        let begin: Vec<i32> = if begins > 2 && !self.ended.is_empty() {
            self.ended[usize::from(begins - 3) % self.ended.len()].ids().to_vec()
        } else {
            (0..i32::from(shared)).map(|at| family * 50 + at % (family + 5)).collect()
        };
        let own = (0..i32::from(own)).map(|at| 200 + (number.cast_signed() % 4 * 11 + at) % 32);
        let max_len = self.setup.max_len;
        let prompt = begin.into_iter().chain(own).take(max_len as usize - 2);
        let mut tokens: Tokens = prompt.collect();
        let num_prompt = tokens.len();
        // Sampled tokens follow from the prompt.
        let first = (tokens.content(num_prompt) % 5) as i32;
        // A drafter may look further than the longest request.
        for at in num_prompt..max_len + 1 + self.setup.num_drafts {
            tokens.push(400 + (first + at.cast_signed() * 13) % 5);
        }
        self.waiting.push_back(Request {
            id: format!("request {number}"),
            number,
            priority: said % 3,
            tokens,
            num_prompt,
            length: (num_prompt + u32::from(answer)).min(max_len),
            ends_unforeseen: answer.is_multiple_of(2),
            session: (!said.is_multiple_of(4)).then(|| session_id(said % 4)),
            hint: hint_of(said / 4),
            reach: reach.into(),
            load_steps: u32::from(load % 4),
            load_fails: load & 4 > 0,
            is_asked_again: load & 8 > 0,
            stage: Stage::Waiting,
            num_known: num_prompt,
            num_computed: 0,
            num_in_flight: 0,
            num_placeholders: 0,
            is_drafted: false,
            boundary: 0,
            num_preemptions: 0,
            num_written: 0,
            column: 0,
        });
    }

    pub(super) fn draw(&mut self, below: u32) -> u32 {
        self.luck = self.luck.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.luck >> 8) % below
    }

    /// The handle of a request, with its digests brought up to date.
    pub(super) fn open(&mut self, request: &Request) -> Result<u64, String> {
        let handle = self.manager.add(&request.id);
        let digests = request.digests(self.setup.hash_block_size);
        *self.manager.digests_mut(handle).map_err(|error| error.to_string())? = digests;
        Ok(handle)
    }

    /// Room for what a request asks for. Returns whether there is.
    pub(super) fn allocate(
        &mut self,
        request: &Request,
        args: &AllocateArgs<'_>,
    ) -> Result<bool, String> {
        let handle = self.open(request)?;
        let progress = request.progress();
        let is_noop =
            !progress.is_waiting && self.manager.is_noop(handle, &progress, args.num_new, 0);
        let before = self.manager.store().num_changes();
        let new = self.manager.allocate(handle, &progress, args);
        let new = new.map_err(|error| format!("allocate {args:?} for {request:?}: {error}"))?;
        if is_noop {
            let is_same = before == self.manager.store().num_changes();
            let is_empty = new.as_ref().is_some_and(|new| new.iter().all(Vec::is_empty));
            ensure!(is_same && is_empty, "{new:?} of a call that should change nothing");
        }
        Ok(new.is_some())
    }

    pub(super) fn tables(&self, request: &Request) -> Vec<Vec<BlockId>> {
        let handle = self.manager.find(&request.id).unwrap_or(u64::MAX);
        let table = |(id, _)| self.manager.blocks(handle, GroupId(id)).to_vec();
        self.groups().map(table).collect()
    }

    /// Gives back the blocks of a request, which continues later or is over.
    pub(super) fn give_back(&mut self, request: &Request, is_over: bool) -> Check {
        if self.manager.find(&request.id).is_none() {
            return Ok(());
        }
        let handle = self.open(request)?;
        if self.setup.is_slabbed() {
            let settled = self.manager.settle(handle, &request.progress());
            settled.map_err(|error| format!("settle: {error}"))?;
        }
        let freed = if is_over { self.manager.finish(handle) } else { self.manager.free(handle) };
        freed.map_err(|error| format!("free: {error}"))
    }

    /// A request has to start again. What a step in flight samples for it arrives nevertheless.
    pub(super) fn preempt(&mut self, mut request: Request) -> Check {
        self.give_back(&request, false)?;
        let is_over = request.take_sampled(request.num_written);
        request.forget_computed();
        request.num_preemptions += 1;
        if !is_over {
            self.waiting.push_front(request);
        }
        Ok(())
    }

    pub(super) fn end(&mut self, request: &Request) -> Check {
        self.give_back(request, true)?;
        self.ended
            .push(request.tokens.ids()[..request.num_known as usize].iter().copied().collect());
        Ok(())
    }

    fn abort(&mut self, which: u8) -> Check {
        let num_requests = self.running.len() + self.holding.len() + self.waiting.len();
        if num_requests == 0 {
            return Ok(());
        }
        let at = usize::from(which) % num_requests;
        let num_active = self.running.len() + self.holding.len();
        let request = if at < self.running.len() {
            self.running.remove(at)
        } else if at < num_active {
            self.holding.remove(at - self.running.len()).expect("there are more")
        } else {
            self.waiting.remove(at - num_active).expect("there are more")
        };
        if request.stage == Stage::Loading {
            self.aborted.push(request);
            return Ok(());
        }
        self.end(&request)
    }

    fn reset(&mut self) -> Check {
        while let Some(request) = self.running.pop() {
            self.preempt(request)?;
        }
        let is_held = !(self.holding.is_empty() && self.aborted.is_empty());
        let before = self.manager.store().num_changes();
        let given_up = self.manager.give_up_copies_before_reset();
        given_up.map_err(|error| format!("copies: {error}"))?;
        match self.manager.store_mut().reset() {
            Ok(()) => {
                ensure!(!is_held, "blocks in use were dropped");
                let num_free = u64::from(self.manager.store().num_free_slabs());
                let num_slabs = self.manager.store().num_slabs();
                ensure!(num_free == num_slabs, "{num_free} of {num_slabs} slabs are free");
            }
            Err(error) => {
                ensure!(is_held, "nothing was in use: {error}");
                let is_same = before == self.manager.store().num_changes();
                ensure!(is_same, "a refused reset changed something");
            }
        }
        Ok(())
    }

    /// A step is scheduled and computed; outputs of the last one, or the one before it, are taken in.
    fn step(&mut self) -> Check {
        let mut step = self.schedule()?;
        self.compute(&mut step)?;
        self.in_flight.push_back(step);
        while self.in_flight.len() > usize::from(self.setup.is_async) {
            let step = self.in_flight.pop_front().expect("there is one");
            self.update(&step)?;
        }
        self.check()
    }

    /// Returns the counters since the start.
    pub fn stats(&self) -> KvCacheStats {
        self.manager.stats()
    }

    /// Returns how many states the worker kept from inside chunks.
    pub fn num_inside(&self) -> u64 {
        self.num_inside
    }

    /// Steps on until all requests have ended, and nothing is held.
    pub(super) fn finish(&mut self) -> Check {
        let num_requests = self.waiting.len() + self.holding.len() + self.running.len();
        // Every request needs fewer steps than this when it is alone.
        let most = 2 * (self.setup.max_len as usize + 8) * (num_requests + 2);
        for _ in 0..most {
            if self.is_idle() {
                break;
            }
            self.step()?;
        }
        ensure!(
            self.is_idle(),
            "{} requests wait, {} with blocks, and {} run for ever",
            self.waiting.len(),
            self.holding.len(),
            self.running.len()
        );
        // The next step would copy what the last request leaves.
        self.copy()?;
        let (num_whole, num_slabs) =
            (self.manager.store().num_whole_slabs(), self.manager.store().num_slabs());
        ensure!(num_whole == num_slabs, "{num_whole} of {num_slabs} slabs are whole");
        self.manager.store_mut().reset().map_err(|error| error.to_string())?;
        self.check()
    }

    fn is_idle(&self) -> bool {
        let is_empty = self.waiting.is_empty() && self.holding.is_empty();
        is_empty && self.running.is_empty() && self.aborted.is_empty() && self.in_flight_is_empty()
    }

    fn in_flight_is_empty(&self) -> bool {
        self.in_flight.iter().all(|step| step.work.is_empty() && step.ended.is_empty())
    }

    /// Passes on the hint of a request's client.
    pub(super) fn tell(&mut self, request: &Request, handle: u64) -> Check {
        if request.session.is_none() && request.hint == Hint::None {
            return Ok(());
        }
        let told = self.manager.set_session(handle, request.session.as_deref(), request.hint);
        told.map_err(|error| format!("session: {error}"))
    }
}
