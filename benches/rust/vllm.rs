//! What a prompt costs the manager that decides as vLLM's: room for it, and its keys.

mod digests;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use hybrid_blocks::vllm::{
    Ask, Config, Facts, GroupConfig, Kind, Lookup, LookupGroup, Manager, Release,
};
use hybrid_blocks::{BlockStore, GroupId};

use digests::{BLOCK_SIZE, digests};

/// One group of full attention, and `num_sliding` of windows.
fn config(num_sliding: u32) -> Config {
    let group = |kind| GroupConfig {
        kind,
        block_size: BLOCK_SIZE,
        use_eagle: false,
        admission_cap: None,
        zeroes_new_blocks: false,
    };
    let window = Kind::SlidingWindow { window: 1024, extra_retained: 0 };
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
    Config {
        release: Release::V0_33,
        groups: std::iter::once(group(Kind::Full))
            .chain((0..num_sliding).map(|_| group(window)))
            .collect(),
        lookup,
        hash_block_size: BLOCK_SIZE,
        scheduler_block_size: BLOCK_SIZE,
        max_model_len: 1 << 20,
        enable_events: false,
        retention_interval: None,
        num_reprefillable: 0,
        num_hash_lookahead: 0,
        drops_eagle_block: false,
        drops_eagle_checkpoint: false,
        shared_prefix_checkpoint: false,
        watermark_blocks: 0,
    }
}

/// Admit prompts that share nothing, whole, and free them; nothing is evicted.
fn prompts(c: &mut Criterion, name: &str, num_sliding: u32, num_tokens: u32, num_blocks: u32) {
    let needed = num_tokens.div_ceil(BLOCK_SIZE) * (num_sliding + 1);
    let per_round = u64::from(num_blocks / needed - 1);
    let known: Vec<_> = (0..per_round).map(|request| digests(request, num_tokens)).collect();
    let facts = Facts { num_tokens, num_prompt: num_tokens, is_waiting: true, ..Facts::default() };
    let ask = Ask { num_new: num_tokens, ..Ask::default() };
    c.bench_function(name, |b| {
        b.iter_custom(|iterations| {
            let mut store = BlockStore::fixed(num_blocks).unwrap();
            let mut manager = Manager::new(config(num_sliding)).unwrap();
            let mut spent = Duration::ZERO;
            // The first round is for memory that was never touched.
            for number in 0..iterations + per_round {
                let known = &known[(number % per_round) as usize];
                let start = Instant::now();
                manager.digests_mut("r").extend_from_slice(known);
                let new = manager.allocate(&mut store, "r", &facts, &ask).unwrap();
                if number >= per_round {
                    spent += start.elapsed();
                }
                assert!(black_box(new).is_some_and(|new| new.len() == num_sliding as usize + 1));
                manager.free(&mut store, "r").unwrap();
                if number % per_round == per_round - 1 {
                    store.reset().unwrap();
                }
            }
            spent
        });
    });
}

fn vllm(c: &mut Criterion) {
    prompts(c, "vllm/prompt_2000_6_groups", 5, 2_000, 60_000);
    prompts(c, "vllm/prompt_100000_1_group", 0, 100_000, 50_000);
}

criterion_group!(benches, vllm);
criterion_main!(benches);
