//! Digests of a 2,000-token prompt in blocks of 16, by every algorithm; and of one block.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hybrid_blocks::Digest;
use hybrid_blocks::hash::{Algorithm, BlockHasher, BlockKey, HashChain};

const BLOCK_SIZE: usize = 16;
const NUM_TOKENS: usize = 2_000;

/// Token ids of a vocabulary of 150,000, by a multiplicative generator (Lehmer's).
fn tokens() -> Vec<i32> {
    let mut state = 1_u64;
    let next = || {
        state = state * 48_271 % 0x7fff_ffff;
        (state % 150_000) as i32
    };
    std::iter::repeat_with(next).take(NUM_TOKENS).collect()
}

fn prompt(c: &mut Criterion) {
    let tokens = tokens();
    let mut group = c.benchmark_group("hash/prompt");
    group.throughput(Throughput::Elements((NUM_TOKENS / BLOCK_SIZE) as u64));
    for algorithm in Algorithm::ALL {
        let mut hasher = BlockHasher::new(algorithm);
        let mut digests = Vec::with_capacity(NUM_TOKENS / BLOCK_SIZE);
        group.bench_function(BenchmarkId::from_parameter(algorithm.name()), |b| {
            b.iter(|| {
                digests.clear();
                let mut chain = HashChain::new(BLOCK_SIZE, 0, Digest::from([1; 32])).unwrap();
                chain.append(&mut hasher, black_box(&tokens), &[], &mut digests).unwrap();
                digests.last().copied()
            });
        });
    }
    group.finish();
}

fn block(c: &mut Criterion) {
    let tokens = tokens();
    let parent = Digest::from([1; 32]);
    let mut group = c.benchmark_group("hash/block");
    for algorithm in Algorithm::ALL {
        let mut hasher = BlockHasher::new(algorithm);
        group.bench_function(BenchmarkId::from_parameter(algorithm.name()), |b| {
            b.iter(|| {
                hasher.hash_block(
                    black_box(&parent),
                    &BlockKey::new(black_box(&tokens[..BLOCK_SIZE])),
                )
            });
        });
    }
    group.finish();
}

criterion_group!(benches, prompt, block);
criterion_main!(benches);
