//! The cost of a prompt in the manager that decides as vLLM's: room for it, and its keys.

mod digests;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use hybrid_blocks::vllm::{
    AllocateArgs, GroupConfig, KvCacheManager, Lookup, LookupGroup, ManagerConfig, RequestProgress,
};
use hybrid_blocks::{FixedStore, GroupId, GroupKind, Store};

use digests::{BLOCK_SIZE, digests};

/// One group of full attention, and `num_sliding` of windows.
fn config(num_sliding: u32) -> ManagerConfig {
    let group = |kind| GroupConfig::new(kind, BLOCK_SIZE);
    let window = GroupKind::sliding_window(1024);
    let spec = |groups: Vec<u32>| LookupGroup {
        groups: groups.into_iter().map(GroupId).collect(),
        use_eagle: false,
    };
    let lookup = if num_sliding == 0 {
        Lookup::Unitary { use_eagle: false }
    } else {
        let specs = vec![spec(vec![0]), spec((1..=num_sliding).collect())];
        Lookup::Hybrid { specs, fine_grained: false }
    };
    let windows = (0..num_sliding).map(|_| group(window));
    let groups = std::iter::once(group(GroupKind::Full)).chain(windows).collect();
    ManagerConfig::new(groups, lookup, BLOCK_SIZE, BLOCK_SIZE, 1 << 20)
}

/// Whether the pool holds all prompts that come, until it is emptied, or evicts the oldest for each.
#[derive(Clone, Copy, PartialEq)]
enum Pool {
    Holds,
    Evicts,
}

/// Drives what is in the caches out of them, as the rest of an engine's step does.
fn cool(other: &mut [u64]) {
    other.iter_mut().step_by(8).for_each(|word| *word += 1);
    black_box(other);
}

/// Admits prompts that share nothing, whole, and free them.
fn prompts(
    c: &mut Criterion,
    name: &str,
    num_sliding: u32,
    num_tokens: u32,
    num_blocks: u32,
    pool: Pool,
) {
    let needed = num_tokens.div_ceil(BLOCK_SIZE) * (num_sliding + 1);
    let room = u64::from(num_blocks / needed - 1);
    let per_round = if pool == Pool::Evicts { room + 3 } else { room };
    let known: Vec<_> = (0..per_round).map(|request| digests(request, num_tokens)).collect();
    let progress = RequestProgress {
        num_tokens,
        num_prompt: num_tokens,
        is_waiting: true,
        ..RequestProgress::default()
    };
    let args = AllocateArgs { num_new: num_tokens, ..AllocateArgs::default() };
    for (title, mut other) in [("", vec![]), ("_cold", vec![0; 1 << 24])] {
        c.bench_function(&format!("{name}{title}"), |b| {
            b.iter_custom(|iterations| {
                let store = FixedStore::new(num_blocks).unwrap();
                let mut manager = KvCacheManager::new(store, config(num_sliding)).unwrap();
                let mut spent = Duration::ZERO;
                // The first round is for memory that was never touched.
                for number in 0..iterations + per_round {
                    let known = &known[(number % per_round) as usize];
                    let is_timed = number >= per_round;
                    if is_timed {
                        cool(&mut other);
                    }
                    let handle = manager.add("r");
                    manager.digests_mut(handle).unwrap().extend_from_slice(known);
                    let start = Instant::now();
                    let new = manager.allocate(handle, &progress, &args).unwrap();
                    if is_timed {
                        spent += start.elapsed();
                    }
                    assert!(
                        black_box(new).is_some_and(|new| new.len() == num_sliding as usize + 1)
                    );
                    manager.free(handle).unwrap();
                    if pool == Pool::Holds && number % per_round == per_round - 1 {
                        manager.store_mut().reset().unwrap();
                    }
                }
                spent
            });
        });
    }
}

fn vllm(c: &mut Criterion) {
    prompts(c, "vllm/prompt_2000_6_groups", 5, 2_000, 60_000, Pool::Holds);
    prompts(c, "vllm/prompt_100000_1_group", 0, 100_000, 50_000, Pool::Holds);
    prompts(c, "vllm/prompt_16384_evicting", 0, 16_384, 130_000, Pool::Evicts);
}

criterion_group!(benches, vllm);
criterion_main!(benches);
