//! The block store against a naive model, operation by operation.

mod common;

use common::{ModelStore, key};
use hybrid_blocks::{BlockId, Error, FixedStore, PoolId, SlabStore, Store};
use proptest::prelude::*;

const POOL: PoolId = PoolId(0);

/// Blocks are named by a number that is reduced to those that exist when the operation runs.
#[derive(Clone, Debug)]
enum Op {
    Allocate(u64),
    Touch(u32),
    Free(Vec<u32>),
    Insert(u32, u8, u32),
    DropKeys(u32),
    Get(u8, u32),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u64..6).prop_map(Op::Allocate),
        2 => any::<u32>().prop_map(Op::Touch),
        4 => prop::collection::vec(any::<u32>(), 1..6).prop_map(Op::Free),
        4 => (any::<u32>(), 0u8..6, 0u32..3).prop_map(|(b, k, g)| Op::Insert(b, k, g)),
        1 => any::<u32>().prop_map(Op::DropKeys),
        3 => (0u8..6, 0u32..3).prop_map(|(k, g)| Op::Get(k, g)),
        1 => Just(Op::Reset),
    ]
}

fn ids(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_fixed_store_decides_as_the_model_does(
        num_blocks in 1u32..24,
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut store = FixedStore::new(num_blocks).unwrap();
        let mut model = ModelStore::new(num_blocks);
        for op in ops {
            match op {
                Op::Allocate(n) => {
                    let mut out = Vec::new();
                    let result = store.allocate(POOL, n, &mut out);
                    match model.allocate(n as usize) {
                        Some(expected) => prop_assert_eq!(ids(&out), expected),
                        None => prop_assert!(matches!(result, Err(Error::OutOfBlocks { .. })), "no refusal"),
                    }
                }
                Op::Touch(block) => {
                    let block = block % num_blocks;
                    let result = store.touch(POOL, BlockId(block));
                    prop_assert_eq!(result.is_ok(), block != 0);
                    if block != 0 {
                        model.touch(block);
                    }
                }
                Op::Free(blocks) => {
                    let blocks: Vec<u32> = blocks.iter().map(|block| block % num_blocks).collect();
                    let result = store.free(POOL, blocks.iter().copied().map(BlockId));
                    prop_assert_eq!(result.is_ok(), model.free(&blocks));
                }
                Op::Insert(block, number, group) => {
                    let block = block % num_blocks;
                    // An ownerless block without content is in no table: nobody could fill it.
                    let model_block = &model.blocks[block as usize];
                    if block != 0 && (model_block.refs > 0 || !model_block.keys.is_empty()) {
                        let new = store.insert_key(POOL, BlockId(block), &key(number, group), 16);
                        prop_assert_eq!(new, model.insert(block, key(number, group)));
                    }
                }
                Op::DropKeys(block) => {
                    store.drop_keys(POOL, BlockId(block % num_blocks));
                    model.drop_keys(block % num_blocks);
                }
                Op::Get(number, group) => {
                    let found = store.get(POOL, &key(number, group)).map(|block| block.0);
                    prop_assert_eq!(found, model.get(key(number, group)));
                }
                Op::Reset => prop_assert_eq!(store.reset().is_ok(), model.reset()),
            }
            store.check_integrity().map_err(TestCaseError::fail)?;
            let queue: Vec<u32> = store.queue().iter_available().map(|block| block.0).collect();
            prop_assert_eq!(&queue, &model.queue);
            prop_assert_eq!(&std::mem::take(store.evicted()), &std::mem::take(&mut model.evicted));
        }
    }

    #[test]
    fn pools_over_one_arena_never_share_a_block_and_never_refuse_what_fits(
        num_slabs in 2u32..12,
        sizes in prop::collection::vec(1u32..9, 1..4),
        ops in prop::collection::vec((0usize..4, op()), 0..120),
    ) {
        let mut store = SlabStore::new(num_slabs, &sizes).unwrap();
        let mut live: Vec<(PoolId, BlockId)> = Vec::new();
        for (pool, op) in ops {
            let pool = PoolId((pool % sizes.len()) as u32);
            let pick = |number: u32| {
                let own: Vec<_> = live.iter().filter(|(p, _)| *p == pool).collect();
                (!own.is_empty()).then(|| own[number as usize % own.len()].1)
            };
            match op {
                Op::Allocate(n) => {
                    let available = store.num_available(pool);
                    let mut out = Vec::new();
                    let result = store.allocate(pool, n, &mut out);
                    prop_assert_eq!(result.is_ok(), n <= available);
                    prop_assert_eq!(out.len() as u64, if n <= available { n } else { 0 });
                    for block in out {
                        prop_assert!(!live.contains(&(pool, block)));
                        prop_assert!(block.0 >= sizes[pool.0 as usize], "in the null slab");
                        live.push((pool, block));
                    }
                }
                Op::Touch(number) => {
                    if let Some(block) = pick(number) {
                        store.touch(pool, block).unwrap();
                        live.push((pool, block));
                    }
                }
                Op::Free(numbers) => {
                    if let Some(block) = pick(numbers[0]) {
                        store.free(pool, [block].into_iter()).unwrap();
                        let at = live.iter().position(|&owned| owned == (pool, block)).unwrap();
                        live.swap_remove(at);
                    }
                }
                Op::Insert(number, k, group) => {
                    if let Some(block) = pick(number) {
                        store.insert_key(pool, block, &key(k, group), 16);
                    }
                }
                Op::DropKeys(number) => {
                    let ids = store.pool(pool).num_ids();
                    store.drop_keys(pool, BlockId(number % ids));
                }
                Op::Get(k, group) => {
                    if let Some(block) = store.get(pool, &key(k, group)) {
                        prop_assert!(store.prefix_index(pool).contains(&key(k, group), block));
                    }
                }
                Op::Reset => {
                    prop_assert_eq!(store.reset().is_ok(), live.is_empty());
                    if live.is_empty() {
                        prop_assert_eq!(store.num_free_slabs(), num_slabs - 1);
                    }
                }
            }
            store.tick();
            store.check_integrity().map_err(TestCaseError::fail)?;
        }
        for (pool, block) in live.drain(..) {
            store.free(pool, [block].into_iter()).unwrap();
        }
        prop_assert_eq!(store.num_whole_slabs(), u64::from(num_slabs) - 1);
        store.check_integrity().map_err(TestCaseError::fail)?;
    }
}

#[test]
fn a_refusal_says_whether_it_counts_blocks_or_slabs() {
    let fixed = FixedStore::new(8).unwrap().allocate(POOL, 12, &mut Vec::new());
    assert_eq!(
        fixed.unwrap_err().to_string(),
        "12 blocks are needed and 7 are available; free or preempt a request"
    );
    let slabs = SlabStore::new(8, &[4, 1]).unwrap().allocate(POOL, 48, &mut Vec::new());
    assert_eq!(
        slabs.unwrap_err().to_string(),
        "12 slabs are needed and 7 are available; free or preempt a request"
    );
}

/// State 4, links 8, priority 8, first key 44, lost key 8, and 1.43 table slots of 5.3: 79.6 bytes a
/// block. Each slab costs some more.
#[test]
fn the_memory_of_a_slab_store_counts_all_that_grows_with_its_blocks() {
    let bytes = |blocks_per_slab| SlabStore::new(1_000, &[blocks_per_slab]).unwrap().memory_bytes();
    let per_block = (bytes(1_000) - bytes(500)) as f64 / 500_000.0;
    assert!((79.0..81.0).contains(&per_block), "{per_block} bytes a block");
}

#[test]
fn a_million_blocks_take_at_most_64_bytes_each() {
    let store = FixedStore::new(1_000_000).unwrap();
    assert!(store.memory_bytes() <= 64_000_000, "{} bytes", store.memory_bytes());
}
