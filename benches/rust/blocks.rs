//! The cost of one full-attention group: blocks in and out, a long match, a decode step, a start.

mod digests;
#[allow(dead_code, unused_imports, reason = "only what is raced is used here")]
#[path = "../../rust/core/src/key_table.rs"]
mod key_table;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use hashbrown::HashTable;
use hybrid_blocks::{
    BlockManager, BlockStore, Config, Digest, FixedStore, GroupId, GroupKind, GroupSpec, PoolId,
    Store,
};

use digests::{BLOCK_SIZE, digests};
use key_table::KeyTable;

const POOL: PoolId = PoolId(0);

fn manager(num_blocks: u32) -> BlockManager {
    let groups = vec![GroupSpec { kind: GroupKind::Full, block_size: BLOCK_SIZE, pool: POOL }];
    let config = Config { max_in_flight_tokens: u32::MAX / 4, ..Config::new(groups, BLOCK_SIZE) };
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
            // An append of no tokens makes the manager match again.
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

/// The first bytes of a digest are uniform: they are its hash.
fn hash(digest: &Digest) -> u64 {
    u64::from_le_bytes(*digest.as_bytes().first_chunk().unwrap())
}

/// The hash table that the prefix index needs. Entry `i` has the digest `digests[i]`.
trait Table {
    fn find(&self, digests: &[Digest], digest: &Digest) -> Option<u32>;
    fn insert(&mut self, digests: &[Digest], entry: u32);
    fn remove(&mut self, digests: &[Digest], entry: u32);
}

impl Table for KeyTable {
    fn find(&self, digests: &[Digest], digest: &Digest) -> Option<u32> {
        let slot = self.find(hash(digest), |entry| digests[entry as usize] == *digest);
        slot.map(|slot| self.entry(slot))
    }

    fn insert(&mut self, digests: &[Digest], entry: u32) {
        self.insert(hash(&digests[entry as usize]), entry);
    }

    fn remove(&mut self, digests: &[Digest], entry: u32) {
        let hash = hash(&digests[entry as usize]);
        let slot = self.find(hash, |other| other == entry).unwrap();
        self.remove(hash, slot);
    }
}

impl Table for HashTable<u32> {
    fn find(&self, digests: &[Digest], digest: &Digest) -> Option<u32> {
        self.find(hash(digest), |&entry| digests[entry as usize] == *digest).copied()
    }

    fn insert(&mut self, digests: &[Digest], entry: u32) {
        let rehash = |&entry: &u32| hash(&digests[entry as usize]);
        self.insert_unique(hash(&digests[entry as usize]), entry, rehash);
    }

    fn remove(&mut self, digests: &[Digest], entry: u32) {
        let hash = hash(&digests[entry as usize]);
        self.find_entry(hash, |&other| other == entry).unwrap().remove();
    }
}

const NUM_KEYS: u32 = 1 << 20;
/// Operations between two walks over 128 MiB, which stand for the rest of an engine's step.
const BATCH: u32 = 2_048;

/// A digest as random as a hash function's (splitmix64).
fn digest_of(number: u32) -> Digest {
    let mut z = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    bytes.into()
}

/// An entry that depends on `number` and is different for each of a million in a row.
fn random(number: u32) -> u32 {
    number.wrapping_mul(0x9E37_79B1) % NUM_KEYS
}

/// Gives an entry another digest.
fn replace(table: &mut impl Table, digests: &mut [Digest], number: u32) {
    let entry = random(number);
    table.remove(digests, entry);
    digests[entry as usize] = digest_of(NUM_KEYS + number);
    table.insert(digests, entry);
}

fn race(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, mut table: impl Table) {
    let mut digests: Vec<_> = (0..NUM_KEYS).map(digest_of).collect();
    (0..NUM_KEYS).for_each(|entry| table.insert(&digests, entry));
    // Keys have come and gone, as in a cache that has served for long.
    (0..2 * NUM_KEYS).for_each(|number| replace(&mut table, &mut digests, number));
    let mut number = 2 * NUM_KEYS;
    let mut other = vec![0u64; 1 << 24];
    for row in ["found", "missed", "replaced"] {
        group.bench_function(BenchmarkId::new(row, name), |b| {
            b.iter_custom(|iterations| {
                let mut time = Duration::ZERO;
                for _ in 0..iterations {
                    let numbers = number..number + BATCH;
                    number += BATCH;
                    let known = |n| digests[random(n) as usize];
                    let wanted: Vec<_> = match row {
                        "found" => numbers.clone().map(known).collect(),
                        _ => numbers.clone().map(|n| digest_of(!n)).collect(),
                    };
                    other.iter_mut().step_by(8).for_each(|word| *word += 1);
                    black_box(&mut other);
                    let start = Instant::now();
                    if row == "replaced" {
                        numbers.for_each(|n| replace(&mut table, &mut digests, n));
                    } else {
                        let found = wanted.iter().filter_map(|it| table.find(&digests, it)).count();
                        assert_eq!(found, if row == "found" { wanted.len() } else { 0 });
                    }
                    time += start.elapsed();
                }
                time
            });
        });
    }
}

/// A million keys, looked up one by one: the index's own table against `hashbrown`.
///
/// `hashbrown` is the faster one here. The own table is smaller, can be read ahead for 16 keys at a
/// time, and does not rehash while as many keys come as go. This row shows what those cost.
fn key_tables(c: &mut Criterion) {
    let mut group = c.benchmark_group("blocks/key_table");
    group.sample_size(10).measurement_time(Duration::from_millis(50));
    group.warm_up_time(Duration::from_millis(5)).throughput(Throughput::Elements(BATCH.into()));
    let own = KeyTable::new(NUM_KEYS as usize);
    let other = HashTable::with_capacity(NUM_KEYS as usize);
    assert!(own.memory_bytes() * 5 < other.allocation_size() * 4, "at least a fifth smaller");
    race(&mut group, "own", own);
    race(&mut group, "hashbrown", other);
    group.finish();
}

criterion_group!(benches, get_and_free, long_match, construction, decode_step, key_tables);
criterion_main!(benches);
