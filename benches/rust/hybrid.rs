//! The cost of hybrid models: a decode step with several groups, admission, a returning conversation.

mod digests;

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hybrid_blocks::{BlockManager, BlockStore, Config, Digest, GroupKind, GroupSpec, PoolId};

use digests::{BLOCK_SIZE, digests};

const WINDOW: GroupKind = GroupKind::sliding_window(1_024);
const STATE: GroupKind = GroupKind::State { slots: 1 };

/// Groups of 16-token blocks; states live in a pool of their own, a slab each.
fn manager(kinds: &[GroupKind], num_slabs: u32) -> BlockManager {
    let groups = kinds
        .iter()
        .map(|&kind| GroupSpec {
            kind,
            block_size: BLOCK_SIZE,
            pool: PoolId(u32::from(kind == STATE)),
        })
        .collect();
    let store = BlockStore::shared(num_slabs, &[64, 1]).unwrap();
    BlockManager::new(store, Config::new(groups, BLOCK_SIZE)).unwrap()
}

/// Requests whose prompts are computed.
fn running(manager: &mut BlockManager, num_requests: u32, num_tokens: u32) -> Vec<u64> {
    let prompt = |i: u32| digests(u64::from(i), num_tokens);
    let handles: Vec<u64> = (0..num_requests)
        .map(|i| manager.add_request(&i.to_string(), num_tokens, prompt(i)).unwrap())
        .collect();
    for &handle in &handles {
        assert_eq!(manager.allocate(&[handle], &[num_tokens], 0).unwrap(), 1);
        manager.advance(&[handle], &[num_tokens]).unwrap();
    }
    handles
}

/// Lets each request have the token that it sampled.
fn sample(manager: &mut BlockManager, handles: &[u64], whole: &[Vec<Digest>]) {
    for (&handle, whole) in handles.iter().zip(whole) {
        let known = manager.progress(handle).unwrap().0 + 1;
        let at = (known / BLOCK_SIZE) as usize;
        let filled = if known.is_multiple_of(BLOCK_SIZE) { &whole[at - 1..at] } else { &[] };
        manager.append(handle, 1, filled).unwrap();
    }
}

/// Room for one token of every request, then that token computed: 16 steps, in which every request
/// starts a block in three groups. Appending what was sampled is not timed.
fn decode(c: &mut Criterion) {
    const FIRST: u32 = 256;
    const LAST: u32 = FIRST + 256;
    let mut group = c.benchmark_group("hybrid/decode_16_steps_4_groups");
    for num_requests in [64, 1_024, 16_384] {
        // Once for all samples: most of the time would be spent on it.
        let kinds = [GroupKind::Full, WINDOW, WINDOW, STATE];
        let mut manager = manager(&kinds, 2 + num_requests * 3);
        let mut handles = running(&mut manager, num_requests, FIRST);
        let whole: Vec<_> = (0..num_requests).map(|i| digests(u64::from(i), LAST)).collect();
        let ones = vec![1; handles.len()];
        group.throughput(Throughput::Elements(16 * u64::from(num_requests)));
        group.bench_function(BenchmarkId::from_parameter(num_requests), |b| {
            b.iter_custom(|iterations| {
                let mut time = Duration::ZERO;
                for _ in 0..iterations {
                    if manager.progress(handles[0]).unwrap().1 == LAST {
                        manager.free(&handles).unwrap();
                        manager.take_copies().unwrap();
                        manager.reset().unwrap();
                        handles = running(&mut manager, num_requests, FIRST);
                    }
                    for _ in 0..16 {
                        sample(&mut manager, &handles, &whole);
                        let start = Instant::now();
                        assert_eq!(manager.allocate(&handles, &ones, 0).unwrap(), handles.len());
                        manager.advance(&handles, &ones).unwrap();
                        time += start.elapsed();
                    }
                }
                time
            });
        });
    }
    group.finish();
}

/// Match and first allocation of a prompt that nothing is cached of.
fn admission(c: &mut Criterion) {
    let mut manager = manager(&[GroupKind::Full, WINDOW, WINDOW, WINDOW, WINDOW, WINDOW], 4_000);
    let digests = digests(1, 2_000);
    c.bench_function("hybrid/admit_2000_tokens_6_groups", |b| {
        b.iter_custom(|iterations| {
            let mut time = Duration::ZERO;
            for _ in 0..iterations {
                let handle = manager.add_request("r", 2_000, digests.clone()).unwrap();
                let start = Instant::now();
                assert_eq!(manager.match_prefix(handle).unwrap().num_tokens, 0);
                assert_eq!(manager.allocate(&[handle], &[2_000], 0).unwrap(), 1);
                time += start.elapsed();
                manager.free(&[handle]).unwrap();
            }
            time
        });
    });
}

type Timed = fn(&mut BlockManager, u64) -> Duration;

const RETURNING: u32 = 102_400;

fn time_match(manager: &mut BlockManager, handle: u64) -> Duration {
    let start = Instant::now();
    assert_eq!(manager.match_prefix(handle).unwrap().num_tokens, RETURNING);
    let time = start.elapsed();
    manager.free(&[handle]).unwrap();
    time
}

fn time_free(manager: &mut BlockManager, handle: u64) -> Duration {
    assert_eq!(manager.allocate(&[handle], &[8], 0).unwrap(), 1);
    let start = Instant::now();
    manager.free(&[handle]).unwrap();
    start.elapsed()
}

/// A conversation of 102,400 tokens comes back: what its match and its end cost.
fn returning(c: &mut Criterion) {
    let mut manager = manager(&[GroupKind::Full, STATE], 400);
    let first = running(&mut manager, 1, RETURNING);
    manager.free(&first).unwrap();
    let digests = digests(0, RETURNING + BLOCK_SIZE);
    let mut come_back = |timed: Timed| {
        let handle = manager.add_request("r", RETURNING + BLOCK_SIZE, digests.clone()).unwrap();
        let time = timed(&mut manager, handle);
        manager.take_copies().unwrap();
        time
    };
    for (name, timed) in [("match", time_match as Timed), ("free", time_free)] {
        c.bench_function(&format!("hybrid/returning_102400_tokens/{name}"), |b| {
            b.iter_custom(|iterations| (0..iterations).map(|_| come_back(timed)).sum());
        });
    }
}

fn settings() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(4))
}

criterion_group! {
    name = benches;
    config = settings();
    targets = decode, admission, returning
}
criterion_main!(benches);
