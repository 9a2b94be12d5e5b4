//! What one full-attention group costs: blocks in and out, a long match, a decode step, a start.

mod digests;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hybrid_blocks::{
    BlockManager, BlockStore, Config, Digest, FixedStore, GroupId, GroupKind, GroupSpec, PoolId,
    Store,
};

use digests::{BLOCK_SIZE, digests};

const POOL: PoolId = PoolId(0);

fn manager(num_blocks: u32) -> BlockManager {
    let groups = vec![GroupSpec { kind: GroupKind::Full, block_size: BLOCK_SIZE, pool: POOL }];
    let config = Config { max_chunk: u32::MAX / 4, ..Config::new(groups, BLOCK_SIZE) };
    BlockManager::new(BlockStore::fixed(num_blocks).unwrap(), config).unwrap()
}

fn get_and_free(c: &mut Criterion) {
    let mut store = FixedStore::new(100_000).unwrap();
    let mut blocks = Vec::with_capacity(256);
    store.allocate(POOL, 256, &mut blocks).unwrap();
    assert!((1..).zip(&blocks).all(|(id, block)| block.0 == id));
    store.free(POOL, blocks.iter().copied()).unwrap();
    let mut group = c.benchmark_group("blocks");
    group.throughput(Throughput::Elements(256));
    group.bench_function("get_free_256", |b| {
        b.iter(|| {
            blocks.clear();
            store.allocate(POOL, 256, &mut blocks).unwrap();
            store.free(POOL, black_box(&blocks).iter().copied()).unwrap();
        });
    });
    group.finish();
    assert_eq!(store.num_available(POOL), 99_999);
}

fn long_match(c: &mut Criterion) {
    // All 6,250 blocks of 100,000 tokens; the token after them has to be computed.
    let num_tokens = 100_001;
    let mut manager = manager(1_000_000);
    for request in 0..100 {
        let id = format!("cached {request}");
        let handle = manager.add_request(&id, num_tokens, digests(request, num_tokens)).unwrap();
        assert_eq!(manager.allocate(&[handle], &[num_tokens], 0), Ok(1));
        manager.advance(&[handle], &[num_tokens]).unwrap();
        manager.free(&[handle]).unwrap();
    }
    let handle = manager.add_request("returning", num_tokens, digests(50, num_tokens)).unwrap();
    let mut group = c.benchmark_group("blocks");
    group.throughput(Throughput::Elements(6_250));
    group.bench_function("match_6250", |b| {
        b.iter(|| {
            // Tells that more tokens are known, none in fact: the match is made anew.
            manager.append(handle, 0, &[]).unwrap();
            manager.match_prefix(handle).unwrap().num_tokens
        });
    });
    group.finish();
    assert_eq!(manager.match_prefix(handle).unwrap().num_tokens, 100_000);
}

fn construction(c: &mut Criterion) {
    let mut group = c.benchmark_group("blocks");
    group.sample_size(20);
    group.bench_function("new_1m", |b| {
        b.iter_with_large_drop(|| FixedStore::new(black_box(1_000_000)).unwrap());
    });
    group.finish();
}

/// 1,024 requests of 512 tokens, all running.
fn running(manager: &mut BlockManager) -> Vec<u64> {
    let handles: Vec<u64> = (0..1_024)
        .map(|request| {
            let id = format!("request {request}");
            let handle = manager.add_request(&id, 512, digests(request, 512)).unwrap();
            assert_eq!(manager.allocate(&[handle], &[512], 0), Ok(1));
            manager.advance(&[handle], &[512]).unwrap();
            handle
        })
        .collect();
    assert_eq!(manager.blocks(handles[1], GroupId(0)).unwrap().len(), 32);
    handles
}

fn decode_step(c: &mut Criterion) {
    let num_blocks = 1_000_000;
    let mut manager = manager(num_blocks);
    let mut handles = running(&mut manager);
    let mut num_tokens = 512;
    let ones = vec![1; handles.len()];
    let mut group = c.benchmark_group("blocks");
    group.throughput(Throughput::Elements(handles.len() as u64));
    group.bench_function("decode_1024", |b| {
        b.iter_custom(|steps| {
            let mut elapsed = Duration::ZERO;
            for _ in 0..steps {
                if manager.store().num_available(POOL) < 2_048 {
                    manager.free(&handles).unwrap();
                    manager.reset().unwrap();
                    handles = running(&mut manager);
                    num_tokens = 512;
                }
                num_tokens += 1;
                for (request, &handle) in (0..).zip(&handles) {
                    let digest = [digest_at(request, num_tokens)];
                    let new = if num_tokens % BLOCK_SIZE == 0 { &digest[..] } else { &[] };
                    manager.append(handle, 1, new).unwrap();
                }
                let start = Instant::now();
                let served = manager.allocate(black_box(&handles), &ones, 0);
                manager.advance(&handles, &ones).unwrap();
                elapsed += start.elapsed();
                assert_eq!(served, Ok(handles.len()));
            }
            elapsed
        });
    });
    group.finish();
}

/// The digest of a block that decoding fills.
fn digest_at(request: u64, num_tokens: u32) -> Digest {
    let mut bytes = [0; 32];
    let spread = (request << 32 | u64::from(num_tokens)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bytes[..8].copy_from_slice(&spread.rotate_left(29).to_le_bytes());
    bytes[24..].copy_from_slice(&spread.to_le_bytes());
    bytes.into()
}

criterion_group!(benches, get_and_free, long_match, construction, decode_step);
criterion_main!(benches);
