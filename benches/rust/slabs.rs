//! The cost of a slab that a pool takes from another one, by the number of slabs that it could take.

mod digests;

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use hybrid_blocks::{BlockId, EvictionOrder, GroupId, Key, PoolId, SlabStore, Store};

use digests::{BLOCK_SIZE, digests};

const CACHED: PoolId = PoolId(0);
const TAKER: PoolId = PoolId(1);

/// Slabs taken one after another before all are filled again.
const STEALS: u32 = 64;

/// Two pools of one block a slab. The first has content in every slab; the priorities differ, in no order.
fn store(num_slabs: u32) -> SlabStore {
    let mut store = SlabStore::new(1 + num_slabs, &[1, 1]).unwrap();
    store.order_by_priority().unwrap();
    fill(&mut store, num_slabs, 0);
    store
}

/// Fills the pool with cached blocks; their keys differ by `content`.
fn fill(store: &mut SlabStore, num_slabs: u32, content: u64) {
    let mut blocks: Vec<BlockId> = Vec::new();
    store.allocate(CACHED, num_slabs.into(), &mut blocks).unwrap();
    let digests = digests(content, num_slabs * BLOCK_SIZE);
    for ((number, &block), digest) in (0u32..).zip(&blocks).zip(digests) {
        store.insert_key(CACHED, block, &Key { digest, group: GroupId(0) }, BLOCK_SIZE);
        // An odd multiplier: every priority once, in no order.
        let priority = number.wrapping_mul(0x9E37_79B1) | 1;
        store.set_priority(CACHED, block, priority.into());
    }
    store.free(CACHED, blocks.into_iter()).unwrap();
}

fn steal(c: &mut Criterion) {
    let mut group = c.benchmark_group("slabs/steal_among_idle");
    for num_slabs in [100, 1_000, 10_000] {
        let mut store = store(num_slabs);
        let mut taken = Vec::new();
        group.bench_function(BenchmarkId::from_parameter(num_slabs), |b| {
            b.iter_custom(|iterations| {
                let mut time = Duration::ZERO;
                for _ in 0..iterations {
                    if taken.len() as u32 == STEALS {
                        store.free(TAKER, taken.iter().copied()).unwrap();
                        taken.clear();
                        let content = store.num_steals();
                        fill(&mut store, STEALS, content);
                    }
                    let before = store.num_steals();
                    let start = Instant::now();
                    store.allocate(TAKER, 1, &mut taken).unwrap();
                    time += start.elapsed();
                    assert_eq!(store.num_steals(), before + 1);
                }
                time
            });
        });
    }
    group.finish();
}

fn settings() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = settings();
    targets = steal
}
criterion_main!(benches);
