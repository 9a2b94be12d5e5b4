//! Digests of a 2,000-token prompt in blocks of 16, by every algorithm; of one block; and of 100,000
//! tokens, hashed and found among known prefixes.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hybrid_blocks::Digest;
use hybrid_blocks::hash::{Algorithm, BlockHasher, BlockKey, HashChain, KnownPrefixes};

const BLOCK_SIZE: usize = 16;
const NUM_TOKENS: usize = 2_000;
const LONG: usize = 100_000;

/// Token ids of a vocabulary of 150,000, by a multiplicative generator (Lehmer's).
fn tokens(count: usize) -> Vec<i32> {
    let mut state = 1_u64;
    let next = || {
        state = state * 48_271 % 0x7fff_ffff;
        (state % 150_000) as i32
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn prompt(c: &mut Criterion) {
    let tokens = tokens(NUM_TOKENS);
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
    let tokens = tokens(NUM_TOKENS);
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

fn returning(c: &mut Criterion) {
    let tokens: Vec<_> = tokens(LONG).into_iter().map(i64::from).collect();
    let start = Digest::from([1; 32]);
    let mut hasher = BlockHasher::new(Algorithm::Sha256);
    let mut digests = Vec::with_capacity(LONG / BLOCK_SIZE);
    let mut known = KnownPrefixes::<()>::new(BLOCK_SIZE, 0, usize::MAX, 0);
    let mut group = c.benchmark_group("hash/returning_100000_tokens");
    group.bench_function("hashed", |b| {
        b.iter(|| {
            digests.clear();
            let mut chain = HashChain::new(BLOCK_SIZE, 0, start).unwrap();
            chain.append(&mut hasher, black_box(&tokens), &[], &mut digests).unwrap();
            digests.last().copied()
        });
    });
    let path = known.find(start, &tokens[..], &mut Vec::new(), |(), _| ());
    known.remember(&path, start, &tokens, &digests, 0, ());
    group.bench_function("known", |b| {
        b.iter(|| {
            digests.clear();
            known.find(start, black_box(&tokens[..]), &mut digests, |(), _| ());
            digests.last().copied()
        });
    });
    group.finish();
}

criterion_group!(benches, prompt, block, returning);
criterion_main!(benches);
