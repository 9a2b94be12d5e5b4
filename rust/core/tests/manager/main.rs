//! The manager against a naive model, operation by operation, in several group mixes.

mod memory;
mod model;
mod setup;

use hybrid_blocks::{Error, GroupId, Store};
use model::{Check, Model, Request};
use proptest::prelude::*;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};
use setup::{MAX_CHUNK, setup};

/// Requests are named by a number that is reduced to those that exist when the operation runs.
#[derive(Clone, Debug)]
enum Op {
    Add { base: u8, shared: usize, own: usize },
    Append(usize, u32),
    Match(usize),
    Allocate(Vec<(usize, u32)>, u32),
    Advance(Vec<(usize, u32)>),
    Preempt(Vec<usize>),
    Free(Vec<usize>),
    Tick,
    Reset,
    Bad(Bad, usize),
}

#[derive(Clone, Copy, Debug)]
enum Bad {
    UnknownHandle,
    TwiceInABatch,
    LengthsDiffer,
    MoreThanThereIsRoomFor,
    TooLarge,
    IdInUse,
    DigestsMissing,
    UnknownGroup,
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0usize..64;
    let batch = || prop::collection::vec((0usize..64, 0u32..7), 1..4);
    let bad = prop::sample::select(vec![
        Bad::UnknownHandle,
        Bad::TwiceInABatch,
        Bad::LengthsDiffer,
        Bad::MoreThanThereIsRoomFor,
        Bad::TooLarge,
        Bad::IdInUse,
        Bad::DigestsMissing,
        Bad::UnknownGroup,
    ]);
    prop_oneof![
        4 => (0u8..3, 0usize..14, 0usize..6)
            .prop_map(|(base, shared, own)| Op::Add { base, shared, own }),
        3 => (which.clone(), 1u32..4).prop_map(|(which, n)| Op::Append(which, n)),
        3 => which.clone().prop_map(Op::Match),
        6 => (which.clone(), 0u32..7, 0u32..3)
            .prop_map(|(which, n, lookahead)| Op::Allocate(vec![(which, n)], lookahead)),
        3 => (batch(), 0u32..3).prop_map(|(batch, lookahead)| Op::Allocate(batch, lookahead)),
        8 => batch().prop_map(Op::Advance),
        1 => prop::collection::vec(which.clone(), 1..3).prop_map(Op::Preempt),
        2 => prop::collection::vec(which.clone(), 1..3).prop_map(Op::Free),
        1 => Just(Op::Tick),
        1 => Just(Op::Reset),
        2 => (bad, which).prop_map(|(bad, which)| Op::Bad(bad, which)),
    ]
}

impl Model {
    fn pick(&self, which: usize) -> Option<usize> {
        (!self.requests.is_empty()).then(|| which % self.requests.len())
    }

    /// Different requests, in the order given.
    fn pick_all(&self, which: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut picked = Vec::new();
        for at in which.into_iter().filter_map(|which| self.pick(which)) {
            if !picked.contains(&at) {
                picked.push(at);
            }
        }
        picked
    }

    fn handles(&self, picked: &[usize]) -> Vec<u64> {
        picked.iter().map(|&at| self.requests[at].handle).collect()
    }

    fn step(&mut self, op: Op, number: usize) -> Check {
        match op {
            Op::Add { base, shared, own } => self.add(base, shared, own, number),
            Op::Append(which, n) => {
                self.append(which, n);
                Ok(())
            }
            Op::Match(which) => match self.pick(which) {
                Some(at) => self.match_prefix(at),
                None => Ok(()),
            },
            Op::Allocate(batch, lookahead) => self.allocate(&batch, lookahead),
            Op::Advance(batch) => self.advance(&batch),
            Op::Preempt(which) => {
                let picked = self.pick_all(which);
                self.manager.preempt(&self.handles(&picked)).unwrap();
                for at in picked {
                    let request = &mut self.requests[at];
                    request.running = false;
                    (request.computed, request.allocated, request.promised) = (0, 0, None);
                }
                Ok(())
            }
            Op::Free(which) => {
                let picked = self.pick_all(which);
                let handles = self.handles(&picked);
                self.manager.free(&handles).unwrap();
                self.requests.retain(|request| !handles.contains(&request.handle));
                for handle in handles {
                    let gone = Error::UnknownRequest { handle };
                    prop_assert_eq!(self.manager.progress(handle), Err(gone));
                }
                Ok(())
            }
            Op::Tick => {
                self.manager.tick();
                Ok(())
            }
            Op::Reset => {
                let busy = self.requests.iter().any(|request| {
                    (0..self.setup.groups.len())
                        .any(|group| self.table(request, group).iter().any(|b| !b.is_null()))
                });
                let before = self.dump();
                let result = self.manager.reset();
                prop_assert_eq!(result.is_err(), busy);
                if busy {
                    prop_assert!(matches!(result, Err(Error::BlocksInUse { .. })), "{result:?}");
                    prop_assert_eq!(before, self.dump());
                }
                Ok(())
            }
            Op::Bad(bad, which) => self.refuse(bad, which),
        }
    }

    fn add(&mut self, base: u8, shared: usize, own: usize, number: usize) -> Check {
        let mut tokens: Vec<u8> = (0..shared).map(|at| base * 50 + at as u8 % 7).collect();
        tokens.extend((0..own).map(|at| 200 + (number + at) as u8 % 3));
        let digests = self.setup.digests(&tokens);
        let (id, num_tokens) = (format!("request {number}"), tokens.len() as u32);
        let fits = num_tokens <= self.manager.max_request_tokens();
        let result = self.manager.add_request(&id, num_tokens, digests);
        prop_assert_eq!(result.is_ok(), fits);
        let Ok(handle) = result else { return Ok(()) };
        prop_assert_eq!(self.manager.find(&id), Some(handle));
        let hashed = vec![0; self.setup.groups.len()];
        self.requests.push(Request {
            id,
            handle,
            tokens,
            running: false,
            computed: 0,
            allocated: 0,
            promised: None,
            hashed,
        });
        Ok(())
    }

    fn append(&mut self, which: usize, n: u32) {
        let Some(at) = self.pick(which) else { return };
        let mut tokens = self.requests[at].tokens.clone();
        let before = self.setup.digests(&tokens).len();
        tokens.extend((0..n).map(|i| 100 + ((which as u32 + i) % 3) as u8));
        let digests = self.setup.digests(&tokens);
        self.manager.append(self.requests[at].handle, n, &digests[before..]).unwrap();
        self.requests[at].tokens = tokens;
    }

    fn match_prefix(&mut self, at: usize) -> Check {
        let request = &self.requests[at];
        let limit = (request.tokens.len() as u32).saturating_sub(1);
        let expected = if request.running { 0 } else { self.longest_hit(&request.tokens, limit) };
        let hit = self.manager.match_prefix(request.handle).unwrap().num_tokens;
        // A hit that does not fit though its request is alone is given up.
        if request.promised != Some(0) || hit != 0 {
            prop_assert_eq!(hit, expected, "{:?}", request);
        }
        if !request.running {
            self.requests[at].promised = Some(hit);
        }
        Ok(())
    }

    fn allocate(&mut self, batch: &[(usize, u32)], lookahead: u32) -> Check {
        let picked = self.pick_all(batch.iter().map(|&(which, _)| which));
        let counts: Vec<u32> = picked.iter().zip(batch).map(|(_, &(_, n))| n).collect();
        let before = self.dump();
        let starts: Vec<Option<u32>> = picked.iter().map(|&at| self.start(at)).collect();
        let targets: Vec<u32> = starts
            .iter()
            .zip(&counts)
            .map(|(start, n)| start.unwrap_or(0) + n + lookahead)
            .collect();
        let result = self.manager.allocate(&self.handles(&picked), &counts, lookahead);
        if targets.iter().any(|&target| target > self.manager.max_request_tokens()) {
            prop_assert!(matches!(result, Err(Error::RequestTooLarge { .. })), "{result:?}");
            prop_assert_eq!(before, self.dump());
            return Ok(());
        }
        let served = result.unwrap();
        if served == 0 {
            prop_assert_eq!(&before, &self.dump());
        }
        for (i, &at) in picked[..served].iter().enumerate() {
            let (mut start, mut target) = (starts[i], targets[i]);
            let request = &self.requests[at];
            if i > 0 && !request.running && request.promised.is_none() {
                // Those before it in the batch may have evicted some of what it would have hit.
                let (_, hit, allocated) = self.manager.progress(request.handle).unwrap();
                prop_assert!(start.is_some_and(|start| hit <= start));
                (start, target) = (Some(hit), allocated);
                prop_assert_eq!(allocated, hit + counts[i] + lookahead);
            }
            self.grown(at, start, target)?;
        }
        self.settle()?;
        if let Some(&at) = picked.get(served) {
            let before = self.dump();
            let request = self.requests[at].clone();
            let start = self.start(at);
            let fits = start.is_some_and(|start| {
                let target = start + counts[served] + lookahead;
                target <= request.allocated || self.fits(&request, start, target)
            });
            prop_assert!(!fits, "{request:?} was refused");
            let nobody_runs = self.requests.iter().all(|request| !request.running);
            if nobody_runs && start.is_some_and(|start| start > 0) {
                // Alone, what was refused with its hit is served without it.
                self.requests[at].promised = Some(0);
            } else {
                let again =
                    self.manager.allocate(&[request.handle], &counts[served..=served], lookahead);
                prop_assert_eq!(again, Ok(0));
            }
            prop_assert_eq!(before, self.dump());
        }
        Ok(())
    }

    /// Tokens after which the next allocation of a request starts; none if its match is gone.
    fn start(&self, at: usize) -> Option<u32> {
        let request = &self.requests[at];
        let limit = (request.tokens.len() as u32).saturating_sub(1);
        match request.promised {
            _ if request.running => Some(request.computed),
            None => Some(self.longest_hit(&request.tokens, limit)),
            Some(hit) => (self.longest_hit(&request.tokens, hit) == hit).then_some(hit),
        }
    }

    /// A request was served: its tables reach as far as they must, with blocks of its own.
    fn grown(&mut self, at: usize, start: Option<u32>, target: u32) -> Check {
        let start = start.ok_or_else(|| TestCaseError::fail("served without its prefix"))?;
        let request = &mut self.requests[at];
        let held: Vec<u32> = self
            .setup
            .groups
            .iter()
            .map(|spec| {
                let held = if request.running { request.allocated } else { start };
                held.div_ceil(spec.block_size)
            })
            .collect();
        if !request.running {
            request.running = true;
            request.computed = start;
            request.hashed = self.setup.groups.iter().map(|g| start / g.block_size).collect();
        }
        request.allocated = request.allocated.max(target);
        let request = self.requests[at].clone();
        self.look(&request, start)?;
        for (group, spec) in self.setup.groups.iter().enumerate() {
            let table = self.table(&request, group);
            prop_assert_eq!(table.len() as u32, request.allocated.div_ceil(spec.block_size));
            for &block in &table[held[group] as usize..] {
                prop_assert!(!block.is_null());
                let owners = self.manager.store().pool(spec.pool).ref_count(block);
                prop_assert_eq!(owners, 1, "new block {} of group {}", block, group);
            }
        }
        Ok(())
    }

    fn advance(&mut self, batch: &[(usize, u32)]) -> Check {
        let mut batch: Vec<(usize, u32)> = self
            .pick_all(batch.iter().map(|&(which, _)| which))
            .into_iter()
            .zip(batch)
            .map(|(at, &(_, n))| (at, n))
            .collect();
        batch.retain(|&(at, _)| self.requests[at].running);
        for (at, n) in &mut batch {
            let request = &self.requests[*at];
            let room = request.allocated.min(request.tokens.len() as u32) - request.computed;
            *n = (*n).min(room);
        }
        self.compute(&batch)?;
        let picked: Vec<usize> = batch.iter().map(|&(at, _)| at).collect();
        let tables: Vec<Vec<_>> = picked
            .iter()
            .map(|&at| {
                let request = &self.requests[at];
                (0..self.setup.groups.len()).map(|group| self.table(request, group)).collect()
            })
            .collect();
        let counts: Vec<u32> = batch.iter().map(|&(_, n)| n).collect();
        self.manager.advance(&self.handles(&picked), &counts).unwrap();
        for (&(at, n), tables) in batch.iter().zip(&tables) {
            self.record(at, n, tables);
            let request = self.requests[at].clone();
            if request.computed < request.tokens.len() as u32 {
                self.look(&request, request.computed)?;
            }
        }
        Ok(())
    }

    fn refuse(&mut self, bad: Bad, which: usize) -> Check {
        let Some(at) = self.pick(which) else { return Ok(()) };
        let request = self.requests[at].clone();
        let before = self.dump();
        let (handle, too_many) = (request.handle, self.manager.max_request_tokens() + 1);
        let manager = &mut self.manager;
        match bad {
            Bad::UnknownHandle => {
                let handle = handle ^ (1 << 40);
                let unknown = Error::UnknownRequest { handle };
                let both = [request.handle, handle];
                prop_assert_eq!(manager.match_prefix(handle), Err(unknown.clone()));
                prop_assert_eq!(manager.allocate(&both, &[1, 1], 0), Err(unknown.clone()));
                prop_assert_eq!(manager.advance(&both, &[0, 0]), Err(unknown.clone()));
                prop_assert_eq!(manager.preempt(&both), Err(unknown.clone()));
                prop_assert_eq!(manager.free(&both), Err(unknown.clone()));
                prop_assert_eq!(manager.append(handle, 1, &[]), Err(unknown));
            }
            Bad::TwiceInABatch => {
                let twice = [handle, handle];
                for result in [
                    manager.allocate(&twice, &[1, 1], 0).map(|_| ()),
                    manager.advance(&twice, &[0, 0]),
                    manager.preempt(&twice),
                    manager.free(&twice),
                ] {
                    prop_assert!(matches!(result, Err(Error::InvalidArgument(_))));
                }
            }
            Bad::LengthsDiffer => {
                let result = manager.allocate(&[handle], &[1, 1], 0);
                prop_assert!(matches!(result, Err(Error::InvalidArgument(_))));
                let result = manager.advance(&[handle], &[]);
                prop_assert!(matches!(result, Err(Error::InvalidArgument(_))));
            }
            Bad::MoreThanThereIsRoomFor => {
                let room = request.allocated.min(request.tokens.len() as u32) - request.computed;
                for n in [room + 1, u32::MAX] {
                    let result = manager.advance(&[handle], &[n]);
                    prop_assert!(matches!(result, Err(Error::InvalidArgument(_))));
                }
            }
            Bad::TooLarge => {
                for (n, lookahead) in [(too_many, 0), (0, too_many), (u32::MAX, u32::MAX)] {
                    let result = manager.allocate(&[handle], &[n], lookahead);
                    prop_assert!(
                        matches!(result, Err(Error::RequestTooLarge { .. })),
                        "{result:?}"
                    );
                }
            }
            Bad::IdInUse => {
                let result = manager.add_request(&request.id, 0, vec![]);
                prop_assert_eq!(result, Err(Error::DuplicateRequest(request.id.clone())));
            }
            Bad::DigestsMissing => {
                let num_tokens = self.setup.hash_block_size;
                let result = manager.add_request("new", num_tokens, vec![]);
                let refused = matches!(
                    result,
                    Err(Error::InvalidArgument(_) | Error::RequestTooLarge { .. })
                );
                prop_assert!(refused, "{result:?}");
                let result = manager.append(handle, num_tokens, &[]);
                prop_assert!(matches!(result, Err(Error::InvalidArgument(_))));
            }
            Bad::UnknownGroup => {
                let num_groups = self.setup.groups.len() as u32;
                let group = GroupId(num_groups);
                let result = manager.blocks(handle, group).map(<[_]>::len);
                prop_assert_eq!(result, Err(Error::UnknownGroup { group, num_groups }));
            }
        }
        prop_assert_eq!(before, self.dump());
        Ok(())
    }

    /// Free everything: nothing may be left behind.
    fn finish(&mut self) -> Check {
        let all: Vec<u64> = self.requests.iter().map(|request| request.handle).collect();
        self.manager.free(&all).unwrap();
        self.requests.clear();
        let store = self.manager.store();
        if store.is_slabbed() {
            prop_assert_eq!(store.num_whole_slabs(), u64::from(self.setup.size) - 1);
        }
        for pool in (0..store.num_pools()).map(hybrid_blocks::PoolId) {
            prop_assert_eq!(store.pool(pool).num_live(), 0);
        }
        self.manager.reset().unwrap();
        self.settle()?;
        prop_assert!(self.stored.is_empty());
        Ok(())
    }
}

/// Where the seeds of failures are kept.
fn beside_the_source() -> Box<dyn FailurePersistence> {
    Box::new(FileFailurePersistence::WithSource("proptest-regressions"))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: Some(beside_the_source()),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_manager_keeps_its_promises_after_every_operation(
        mix in 0usize..10,
        size in 4u32..20,
        ops in prop::collection::vec(op(), 0..100),
    ) {
        let mut model = Model::new(setup(mix, size));
        for (number, op) in ops.into_iter().enumerate() {
            model.step(op, number)?;
            model.settle()?;
        }
        model.finish()?;
    }

    #[test]
    fn a_request_as_long_as_the_manager_allows_finishes_alone(
        mix in 0usize..10,
        size in 4u32..20,
        steps in prop::collection::vec(1..=MAX_CHUNK, 40),
    ) {
        let mut model = Model::new(setup(mix, size));
        let most = model.manager.max_request_tokens().min(300);
        let tokens: Vec<u8> = (0..most).map(|token| token as u8).collect();
        let digests = model.setup.digests(&tokens);
        let handle = model.manager.add_request("longest", most, digests).unwrap();
        // Where no layer looks back across it, a border is a hit without any cache.
        let mut computed = model.manager.match_prefix(handle).unwrap().num_tokens;
        for step in steps.into_iter().cycle() {
            if computed == most {
                break;
            }
            let step = step.min(most - computed);
            prop_assert_eq!(model.manager.allocate(&[handle], &[step], 0), Ok(1));
            model.manager.advance(&[handle], &[step]).unwrap();
            computed += step;
        }
        prop_assert_eq!(model.manager.progress(handle), Ok((most, most, most)));
    }
}

fn op_by_op(mix: usize, size: u32, ops: Vec<Op>) {
    let mut model = Model::new(setup(mix, size));
    for (number, op) in ops.into_iter().enumerate() {
        model.step(op, number).unwrap();
        model.settle().unwrap();
    }
    model.finish().unwrap();
}

#[test]
fn a_match_grows_with_what_others_computed_since_it_was_last_asked_for() {
    let add = || Op::Add { base: 0, shared: 9, own: 0 };
    op_by_op(
        0,
        12,
        vec![
            add(),
            add(),
            Op::Match(1),
            Op::Allocate(vec![(0, 6)], 0),
            Op::Advance(vec![(0, 6)]),
            Op::Match(1),
        ],
    );
}

#[test]
fn a_match_grows_with_the_tokens_of_its_request() {
    let add = || Op::Add { base: 0, shared: 3, own: 0 };
    op_by_op(
        0,
        12,
        vec![
            add(),
            Op::Append(0, 2),
            Op::Allocate(vec![(0, 5)], 0),
            Op::Advance(vec![(0, 5)]),
            Op::Preempt(vec![0]),
            Op::Match(0),
            Op::Append(0, 2),
            Op::Match(0),
        ],
    );
}

#[test]
fn blocks_of_sizes_that_do_not_divide_each_other_can_be_hit_as_soon_as_they_are_full() {
    let mut ops = vec![Op::Add { base: 0, shared: 13, own: 0 }, Op::Allocate(vec![(0, 6)], 0)];
    ops.extend([Op::Advance(vec![(0, 6)]), Op::Free(vec![0])]);
    op_by_op(4, 12, ops);
}
