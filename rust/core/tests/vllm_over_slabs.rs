//! vLLM's rules over a store of several pools: whatever a request reads is what its tokens wrote.

use std::collections::HashMap;

use hybrid_blocks::vllm::{
    AllocateArgs, GroupConfig, KvCacheManager, Lookup, LookupGroup, ManagerConfig, RequestProgress,
};
use hybrid_blocks::{BlockId, Digest, GroupId, GroupKind, PoolId, SlabStore, Store};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

const HASH_BLOCK: u32 = 2;
const UNITS_PER_SLAB: u32 = 6;
const BLOCKS_PER_SLAB: [u32; 2] = [3, 1];
const WINDOW: u32 = 5;
const STATE_BLOCK: u32 = 4;
const MAX_LEN: u32 = 64;

const GROUPS: [(GroupKind, u32, u32); 3] = [
    (GroupKind::Full, HASH_BLOCK, 0),
    (GroupKind::sliding_window(WINDOW), HASH_BLOCK, 0),
    (
        GroupKind::MambaAligned {
            num_speculative: 0,
            checkpoint_alignment: None,
            has_checkpoint_blocks: false,
        },
        STATE_BLOCK,
        1,
    ),
];

fn config() -> ManagerConfig {
    let group = |(kind, block_size, pool)| GroupConfig {
        pool: PoolId(pool),
        ..GroupConfig::new(kind, block_size)
    };
    let spec = |group| LookupGroup { groups: vec![GroupId(group)], use_eagle: false };
    let specs = vec![spec(0), spec(1), spec(2)];
    let lookup = Lookup::Hybrid { specs, fine_grained: false };
    ManagerConfig::new(GROUPS.map(group).to_vec(), lookup, HASH_BLOCK, STATE_BLOCK, MAX_LEN)
}

/// The last content of a unit of the arena: group, and the tokens that its block stands for.
type Content = (usize, Vec<u8>);

struct Request {
    id: String,
    tokens: Vec<u8>,
    num_computed: u32,
    is_running: bool,
}

struct Engine {
    manager: KvCacheManager<SlabStore>,
    device: HashMap<u32, Content>,
    requests: Vec<Request>,
    num_added: u32,
}

#[derive(Clone, Debug)]
enum Op {
    Add { prefix: u8, shared: u8, own: u8 },
    Step { which: u8, num_new: u8 },
    Free(u8),
}

fn digests(tokens: &[u8]) -> Vec<Digest> {
    let digest = |end: usize| {
        let mut bytes = [0; 32];
        let hash = tokens[..end].iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &token| {
            (hash ^ (u64::from(token) + 1)).wrapping_mul(0x0100_0000_01b3)
        });
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        Digest::from(bytes)
    };
    (1..=tokens.len() / HASH_BLOCK as usize).map(|at| digest(at * HASH_BLOCK as usize)).collect()
}

impl Engine {
    fn new(num_slabs: u32) -> Self {
        let store = SlabStore::new(num_slabs, &BLOCKS_PER_SLAB).unwrap();
        Self {
            manager: KvCacheManager::new(store, config()).unwrap(),
            device: HashMap::new(),
            requests: Vec::new(),
            num_added: 0,
        }
    }

    fn units(group: usize, block: BlockId) -> std::ops::Range<u32> {
        let size = UNITS_PER_SLAB / BLOCKS_PER_SLAB[GROUPS[group].2 as usize];
        block.0 * size..(block.0 + 1) * size
    }

    fn write(&mut self, group: usize, block: BlockId, content: &[u8]) {
        for unit in Self::units(group, block) {
            self.device.insert(unit, (group, content.to_vec()));
        }
    }

    fn read(&self, group: usize, block: BlockId, content: &[u8]) -> Result<(), TestCaseError> {
        prop_assert!(!block.is_null(), "group {group} lacks a block that is needed");
        for unit in Self::units(group, block) {
            let expected = (group, content.to_vec());
            prop_assert_eq!(self.device.get(&unit), Some(&expected), "block {}", block);
        }
        Ok(())
    }

    /// The blocks that the token after `num_computed` needs, and what each must hold.
    fn needed(&self, handle: u64, group: usize, tokens: &[u8]) -> Vec<(BlockId, Vec<u8>)> {
        let (kind, size, _) = GROUPS[group];
        let blocks = self.manager.blocks(handle, GroupId(group as u32));
        let num_computed = tokens.len() as u32;
        if kind == GROUPS[2].0 {
            let position = num_computed.checked_sub(1).map(|last| last / size);
            return position.map(|at| (blocks[at as usize], tokens.to_vec())).into_iter().collect();
        }
        let first = kind.num_skipped_tokens(num_computed) / size;
        (first..num_computed.div_ceil(size))
            .map(|at| {
                let end = ((at + 1) * size).min(num_computed) as usize;
                (blocks[at as usize], tokens[..end].to_vec())
            })
            .collect()
    }

    /// Computes `num_new` tokens of a request. Says whether there was room.
    fn step(&mut self, at: usize, num_new: u32) -> Result<bool, TestCaseError> {
        self.manager.start_step();
        let Request { id, tokens, num_computed, is_running } = &self.requests[at];
        let (id, tokens, is_running) = (id.clone(), tokens.clone(), *is_running);
        let handle = self.manager.add(&id);
        *self.manager.digests_mut(handle).unwrap() = digests(&tokens);
        let num_tokens = tokens.len() as u32;
        let (mut start, mut computed) = (*num_computed, None);
        if !is_running {
            let hit = self.manager.longest_hit(handle, num_tokens - 1);
            (start, computed) = (hit.num_tokens, Some(hit.blocks));
        }
        // A state is kept only where a chunk ends with its block.
        let border = (start / STATE_BLOCK + 1) * STATE_BLOCK;
        let end = (start + num_new).min(num_tokens).min(border);
        let progress = RequestProgress {
            num_computed: if is_running { start } else { 0 },
            num_tokens,
            num_prompt: num_tokens,
            is_waiting: !is_running,
            ..RequestProgress::default()
        };
        let args = AllocateArgs {
            num_new: end - start,
            num_new_computed: if is_running { 0 } else { start },
            computed: computed.as_deref(),
            full_sequence_must_fit: !is_running,
            ..AllocateArgs::default()
        };
        let before = self.manager.store().pool(PoolId(0)).num_live();
        if self.manager.allocate(handle, &progress, &args).unwrap().is_none() {
            if !is_running {
                prop_assert_eq!(self.manager.store().pool(PoolId(0)).num_live(), before);
                self.manager.free(handle).unwrap();
            }
            return Ok(false);
        }
        let known = &tokens[..start as usize];
        for group in 0..GROUPS.len() {
            for (block, content) in self.needed(handle, group, known) {
                self.read(group, block, &content)?;
            }
        }
        for (group, (kind, size, pool)) in GROUPS.into_iter().enumerate() {
            let blocks = self.manager.blocks(handle, GroupId(group as u32)).to_vec();
            let first = if kind == GROUPS[2].0 { (end - 1) / size } else { start / size };
            for position in first..end.div_ceil(size) {
                let block = blocks[position as usize];
                let full_until = ((position + 1) * size).min(end) as usize;
                prop_assert!(!block.is_null());
                prop_assert_eq!(
                    self.manager.store().pool(PoolId(pool)).ref_count(block),
                    1,
                    "a shared block is written"
                );
                self.write(group, block, &tokens[..full_until]);
            }
        }
        let request = &mut self.requests[at];
        (request.num_computed, request.is_running) = (end, true);
        Ok(true)
    }

    fn add(&mut self, tokens: Vec<u8>) {
        let id = self.num_added.to_string();
        self.requests.push(Request { id, tokens, num_computed: 0, is_running: false });
        self.num_added += 1;
    }

    fn free(&mut self, at: usize) {
        let request = self.requests.swap_remove(at);
        if let Some(handle) = self.manager.find(&request.id) {
            self.manager.free(handle).unwrap();
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0u8..3, 0u8..24, 1u8..12)
            .prop_map(|(prefix, shared, own)| Op::Add { prefix, shared, own }),
        6 => (any::<u8>(), 1u8..9).prop_map(|(which, num_new)| Op::Step { which, num_new }),
        1 => any::<u8>().prop_map(Op::Free),
    ]
}

#[test]
fn a_prompt_is_admitted_beside_what_running_ones_still_need() {
    // Each prompt fills 14 of 25 slabs, and one with its state.
    let mut engine = Engine::new(26);
    engine.add((0..40).collect());
    engine.add((100..140).collect());
    let mut step = |at| engine.step(at, STATE_BLOCK).unwrap();
    assert!(step(0));
    assert!(!step(1), "22 slabs are free, 12 of them are the first one's");
    assert!((0..9).all(|_| step(0)));
    assert!((0..10).all(|_| step(1)), "the first one's window is given back");
}

#[test]
fn what_was_promised_to_a_request_is_free_again_when_it_is_gone() {
    let mut engine = Engine::new(26);
    engine.add((0..40).collect());
    engine.add((100..140).collect());
    assert!(engine.step(0, STATE_BLOCK).unwrap());
    engine.free(0);
    assert!(engine.step(0, STATE_BLOCK).unwrap());
}

#[test]
fn nobody_waits_for_what_is_promised_to_a_request_that_waits_for_its_client() {
    let mut engine = Engine::new(26);
    engine.add((0..40).collect());
    engine.add((100..140).collect());
    assert!(engine.step(0, STATE_BLOCK).unwrap());
    let handle = engine.manager.find("0").unwrap();
    engine.manager.pause(handle);
    assert!(engine.step(1, STATE_BLOCK).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn requests_of_several_pools_read_what_their_tokens_wrote(
        num_slabs in 6u32..30,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut engine = Engine::new(num_slabs);
        for op in ops {
            let pick = |which: u8, len: usize| (len > 0).then(|| which as usize % len.max(1));
            let len = engine.requests.len();
            match op {
                Op::Add { prefix, shared, own } => {
                    let number = engine.num_added as u8;
                    let common = (0..shared).map(|i| 10 * prefix + i % 10);
                    let tokens = common.chain((0..own).map(|i| 100 + number % 100 + i)).collect();
                    engine.add(tokens);
                }
                Op::Step { which, num_new } => if let Some(at) = pick(which, len) {
                    let request = &engine.requests[at];
                    if (request.num_computed as usize) < request.tokens.len() {
                        engine.step(at, u32::from(num_new))?;
                    }
                },
                Op::Free(which) => if let Some(at) = pick(which, len) {
                    engine.free(at);
                },
            }
            engine.manager.check_integrity().map_err(TestCaseError::fail)?;
        }
        while !engine.requests.is_empty() {
            engine.free(0);
        }
        engine.manager.check_integrity().map_err(TestCaseError::fail)?;
        prop_assert_eq!(engine.manager.store().num_whole_slabs(), u64::from(num_slabs) - 1);
    }
}
