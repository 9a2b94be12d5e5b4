//! A simulated device: every request must read exactly what was written for its tokens, through
//! prefix hits, forks, evictions, preemption and compaction, for any mix of groups.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use hybrid_blocks::{
    BlockCopy, BlockId, BlockStore, Config, FlopModel, GroupId, GroupKind, GroupSpec, Manager,
    Placement, Policy, PoolId, Store,
};
use proptest::prelude::*;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};

const HASH_BLOCK: u32 = 2;

/// Arena bytes in units that every pool's block is a multiple of.
struct Device {
    units_per_slab: u64,
    blocks_per_slab: Vec<u32>,
    units: HashMap<u64, u64>,
}

impl Device {
    fn new(blocks_per_slab: &[u32]) -> Self {
        let units_per_slab = blocks_per_slab.iter().map(|&n| u64::from(n)).product();
        Self { units_per_slab, blocks_per_slab: blocks_per_slab.to_vec(), units: HashMap::new() }
    }

    fn range(&self, pool: PoolId, block: BlockId) -> std::ops::Range<u64> {
        let width = self.units_per_slab / u64::from(self.blocks_per_slab[pool.index()]);
        let start = u64::from(block.0) * width;
        start..start + width
    }

    fn write(&mut self, pool: PoolId, block: BlockId, tag: u64) {
        for unit in self.range(pool, block) {
            self.units.insert(unit, tag);
        }
    }

    /// The block's tag, if all of it was written together.
    fn read(&self, pool: PoolId, block: BlockId) -> Option<u64> {
        let mut tags = self.range(pool, block).map(|unit| self.units.get(&unit).copied());
        let first = tags.next()??;
        tags.all(|tag| tag == Some(first)).then_some(first)
    }

    fn run(&mut self, groups: &[GroupSpec], copies: &[BlockCopy]) {
        for &BlockCopy { group, src, dst } in copies {
            let pool = groups[group.index()].pool;
            let tags: Vec<_> = self.range(pool, src).map(|u| self.units.get(&u).copied()).collect();
            for (unit, tag) in self.range(pool, dst).zip(tags) {
                match tag {
                    Some(tag) => self.units.insert(unit, tag),
                    None => self.units.remove(&unit),
                };
            }
        }
    }
}

/// Names the content that a group keeps of a prefix.
fn tag(group: GroupId, tokens: &[i64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (group, tokens).hash(&mut hasher);
    hasher.finish()
}

struct Request {
    handle: u64,
    tokens: Vec<i64>,
    final_len: usize,
    running: bool,
}

struct Engine {
    manager: Manager,
    groups: Vec<GroupSpec>,
    device: Device,
    requests: Vec<Request>,
    num_added: i64,
}

impl Engine {
    fn computed(&self, at: usize) -> u32 {
        self.manager.progress(self.requests[at].handle).unwrap().1
    }

    fn first_needed(kind: GroupKind, computed: u32) -> u32 {
        match kind {
            GroupKind::SlidingWindow { window } => (computed + 1).saturating_sub(window),
            GroupKind::Chunked { chunk } => computed / chunk * chunk,
            _ => 0,
        }
    }

    /// What the request's next token reads is what its tokens wrote.
    fn check_content(&self, at: usize) -> Result<(), TestCaseError> {
        let request = &self.requests[at];
        let computed = self.computed(at);
        for (id, spec) in (0..).map(GroupId).zip(&self.groups) {
            let table = self.manager.blocks(request.handle, id).unwrap();
            match spec.kind {
                GroupKind::State { slots } => {
                    prop_assert_eq!(table.len(), slots as usize);
                    if computed > 0 {
                        let expected = tag(id, &request.tokens[..computed as usize]);
                        prop_assert_eq!(self.device.read(spec.pool, table[0]), Some(expected));
                    }
                }
                GroupKind::Cross { .. } => {}
                kind => {
                    let start = Self::first_needed(kind, computed) / spec.block_size;
                    for position in start..computed.div_ceil(spec.block_size) {
                        let end = ((position + 1) * spec.block_size).min(computed) as usize;
                        let expected = tag(id, &request.tokens[..end]);
                        let block = table[position as usize];
                        prop_assert!(!block.is_null(), "position {} is needed", position);
                        prop_assert_eq!(self.device.read(spec.pool, block), Some(expected));
                    }
                }
            }
        }
        Ok(())
    }

    /// One scheduler step for one request: as many tokens as `budget` and the next boundary allow.
    fn step(&mut self, at: usize, budget: u32) -> Result<bool, TestCaseError> {
        let handle = self.requests[at].handle;
        let start = if self.requests[at].running {
            self.computed(at)
        } else {
            self.manager.match_prefix(handle).unwrap().num_tokens
        };
        let known = self.requests[at].tokens.len() as u32;
        let mut num_new = budget.min(known - start);
        if let Some(boundary) = self.manager.next_boundary(handle).unwrap() {
            prop_assert!(boundary > start);
            num_new = num_new.min(boundary - start);
        }
        let fitting = self.manager.fitting_chunk(handle, num_new).unwrap();
        prop_assert!(fitting <= num_new && (fitting > 0 || num_new == 0));
        if budget % 2 == 1 {
            num_new = fitting;
        }
        let served = self.manager.allocate(&[handle], &[num_new], 0).unwrap() == 1;
        let copies = self.manager.take_copies().unwrap();
        self.device.run(&self.groups, &copies);
        if !served {
            return Ok(false);
        }
        self.requests[at].running = true;
        self.check_content(at)?;
        self.forward(at, num_new);
        self.manager.advance(&[handle], &[num_new]).unwrap();
        let request = &mut self.requests[at];
        if start + num_new == known && (known as usize) < request.final_len {
            let token = i64::from(known % 3);
            request.tokens.push(token);
            self.manager.append_tokens(&[handle], &[token as i32]).unwrap();
        }
        Ok(true)
    }

    fn forward(&mut self, at: usize, num_new: u32) {
        let request = &self.requests[at];
        let (start, end) = (self.computed(at), self.computed(at) + num_new);
        for (id, spec) in (0..).map(GroupId).zip(&self.groups) {
            let table = self.manager.blocks(request.handle, id).unwrap();
            match spec.kind {
                GroupKind::State { .. } => {
                    let content = tag(id, &request.tokens[..end as usize]);
                    self.device.write(spec.pool, table[0], content);
                }
                GroupKind::Cross { .. } => {}
                _ => {
                    for position in start / spec.block_size..end.div_ceil(spec.block_size) {
                        let until = ((position + 1) * spec.block_size).min(end) as usize;
                        let content = tag(id, &request.tokens[..until]);
                        self.device.write(spec.pool, table[position as usize], content);
                    }
                }
            }
        }
    }

    fn finish(&mut self, at: usize) {
        let request = self.requests.swap_remove(at);
        self.manager.free(&[request.handle]).unwrap();
    }
}

#[derive(Clone, Debug)]
enum Op {
    Add { prefix: u8, shared: u8, own: u8, output: u8 },
    Step { which: u8, budget: u8 },
    Preempt(u8),
    Free(u8),
    Compact(u8),
    TakeNothing,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u8..3, 0u8..24, 0u8..9, 0u8..9)
            .prop_map(|(prefix, shared, own, output)| Op::Add { prefix, shared, own, output }),
        12 => (any::<u8>(), 1u8..12).prop_map(|(which, budget)| Op::Step { which, budget }),
        1 => any::<u8>().prop_map(Op::Preempt),
        2 => any::<u8>().prop_map(Op::Free),
        1 => (1u8..4).prop_map(Op::Compact),
        1 => Just(Op::TakeNothing),
    ]
}

fn group(num_pools: u32) -> impl Strategy<Value = GroupSpec> {
    let kind = prop_oneof![
        2 => Just(GroupKind::Full),
        1 => (1u32..8).prop_map(|window| GroupKind::SlidingWindow { window }),
        1 => (1u32..8).prop_map(|chunk| GroupKind::Chunked { chunk }),
        2 => (1u32..4).prop_map(|slots| GroupKind::State { slots }),
        1 => (1u32..8).prop_map(|encoder_tokens| GroupKind::Cross { encoder_tokens }),
    ];
    (kind, 1u32..4, 0..num_pools).prop_map(|(kind, blocks, pool)| GroupSpec {
        kind,
        block_size: blocks * HASH_BLOCK,
        pool: PoolId(pool),
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    let flops = FlopModel {
        linear: 10.0,
        quadratic: 1.0,
        token_bytes: 4.0,
        state_bytes: 64.0,
        alpha: 20.0,
    };
    prop_oneof![Just(Policy::Lru), Just(Policy::FlopAware(flops)), Just(Policy::Explicit)]
}

prop_compose! {
    fn setup()(sizes in prop::collection::vec(1u32..6, 1..4))(
        groups in prop::collection::vec(group(sizes.len() as u32), 0..4),
        num_slabs in 6u32..30,
        policy in policy(),
        every in prop::option::of(1u32..12),
        max_per_request in 0u32..5,
        finish in any::<bool>(),
        prompt_margin in 0u32..6,
        follow_every in 0u32..6,
        sizes in Just(sizes),
    ) -> (Vec<u32>, Vec<GroupSpec>, u32, Policy, Placement) {
        let mut groups = groups;
        // Tokens have to be kept somewhere.
        groups.push(GroupSpec { kind: GroupKind::Full, block_size: HASH_BLOCK, pool: PoolId(0) });
        let placement = Placement {
            every, max_per_request, finish, prompt_margin, follow_every, ..Placement::default()
        };
        (sizes, groups, num_slabs, policy, placement)
    }
}

/// Where the seeds of failures are kept.
fn beside_the_source() -> Box<dyn FailurePersistence> {
    Box::new(FileFailurePersistence::WithSource("proptest-regressions"))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(beside_the_source()),
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_reads_what_its_tokens_wrote(
        (sizes, groups, num_slabs, policy, placement) in setup(),
        ops in prop::collection::vec(op(), 0..90),
    ) {
        let config = Config {
            enable_events: true,
            enable_delta: true,
            policy,
            placement,
            max_chunk: 12,
            ..Config::new(groups.clone(), HASH_BLOCK)
        };
        let store = BlockStore::shared(num_slabs, &sizes).unwrap();
        let mut engine = Engine {
            manager: Manager::new(store, config).unwrap(),
            groups,
            device: Device::new(&sizes),
            requests: Vec::new(),
            num_added: 0,
        };
        for op in ops {
            let pick = |which: u8, len: usize| (len > 0).then(|| which as usize % len.max(1));
            let len = engine.requests.len();
            match op {
                Op::Add { prefix, shared, own, output } => {
                    let number = engine.num_added;
                    let common = (0..i64::from(shared)).map(|i| 100 + 10 * i64::from(prefix) + i);
                    let tokens: Vec<i64> =
                        common.chain((0..i64::from(own)).map(|i| 1_000 * number + i)).collect();
                    let id = format!("request-{number}");
                    let fits = engine.manager.max_request_tokens() as usize;
                    let final_len = tokens.len() + usize::from(output);
                    if tokens.is_empty() || final_len > fits {
                        prop_assert!(tokens.len() <= fits
                            || engine.manager.add_prompt(&id, &tokens, &[]).is_err());
                        continue;
                    }
                    let handle = engine.manager.add_prompt(&id, &tokens, &[]).unwrap();
                    if policy == Policy::Explicit {
                        let priority = (0..20).map(|i| (number.unsigned_abs() * 7 + 3) % 11 * (20 - i)).collect();
                        engine.manager.set_priority(handle, priority).unwrap();
                    }
                    engine.num_added += 1;
                    engine.requests.push(Request { handle, tokens, final_len, running: false });
                }
                Op::Step { which, budget } => {
                    if let Some(at) = pick(which, len)
                        && (!engine.requests[at].running
                            || (engine.computed(at) as usize) < engine.requests[at].tokens.len())
                    {
                        engine.step(at, u32::from(budget))?;
                    }
                }
                Op::Preempt(which) => if let Some(at) = pick(which, len) {
                    engine.manager.preempt(&[engine.requests[at].handle]).unwrap();
                    engine.requests[at].running = false;
                },
                Op::Free(which) => if let Some(at) = pick(which, len) {
                    engine.finish(at);
                },
                Op::Compact(num_slabs) => {
                    let free_before = engine.manager.store().num_free_slabs();
                    let plan = engine.manager.plan_compaction(usize::from(num_slabs));
                    engine.manager.apply_compaction(&plan).unwrap();
                    let free = engine.manager.store().num_free_slabs() - free_before;
                    prop_assert_eq!(free as usize, plan.num_slabs());
                    if plan.num_slabs() > 0 {
                        prop_assert!(engine.manager.apply_compaction(&plan).is_err(), "stale plan");
                    }
                }
                Op::TakeNothing => {
                    let copies = engine.manager.take_copies().unwrap();
                    engine.device.run(&engine.groups, &copies);
                }
            }
            engine.manager.tick();
            engine.manager.check_integrity().map_err(TestCaseError::fail)?;
        }

        // Whoever was admitted finishes, if the others make way.
        while !engine.requests.is_empty() {
            for at in 1..engine.requests.len() {
                let handle = engine.requests[at].handle;
                engine.manager.preempt(&[handle]).unwrap();
                engine.requests[at].running = false;
            }
            let mut misfits = 0;
            while !engine.requests[0].running
                || (engine.computed(0) as usize) < engine.requests[0].final_len
            {
                misfits = if engine.step(0, 12)? { 0 } else { misfits + 1 };
                prop_assert!(
                    misfits < 3,
                    "a request that fits alone is refused: {:?} of {}, {} whole slabs of {}",
                    engine.manager.progress(engine.requests[0].handle),
                    engine.requests[0].final_len,
                    engine.manager.store().num_whole_slabs(),
                    num_slabs
                );
                engine.manager.check_integrity().map_err(TestCaseError::fail)?;
            }
            engine.finish(0);
        }
        engine.manager.take_copies().unwrap();
        engine.manager.take_copies().unwrap();
        prop_assert_eq!(engine.manager.store().num_whole_slabs(), u64::from(num_slabs) - 1);
        engine.manager.reset().unwrap();
        prop_assert_eq!(engine.manager.store().num_free_slabs(), num_slabs - 1);
        engine.manager.check_integrity().map_err(TestCaseError::fail)?;
    }
}
