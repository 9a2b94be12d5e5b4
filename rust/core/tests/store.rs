//! The block store against a naive model, operation by operation.

mod common;

use std::collections::BTreeSet;

use common::{ModelStore, key};
use hybrid_blocks::{
    BlockId, Error, EvictionOrder, FixedStore, Key, PoolId, Reservation, SlabStore, Store,
};
use proptest::prelude::*;

const POOL: PoolId = PoolId(0);

/// Blocks are named by a number that is reduced to those that exist when the operation runs.
#[derive(Clone, Debug)]
enum Op {
    Allocate(u64),
    Touch(u32),
    TouchAndUndo(Vec<u32>),
    Free(Vec<u32>),
    FreeWarm(Vec<u32>),
    Insert(u32, u8, u32),
    InsertRun(Vec<u32>, u8, u32),
    MoveKeys(u32, u32),
    Discard(u8, u32),
    DropKeys(u32),
    Get(u8, u32),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u64..6).prop_map(Op::Allocate),
        2 => any::<u32>().prop_map(Op::Touch),
        1 => prop::collection::vec(any::<u32>(), 1..4).prop_map(Op::TouchAndUndo),
        1 => prop::collection::vec(any::<u32>(), 1..4).prop_map(Op::FreeWarm),
        4 => prop::collection::vec(any::<u32>(), 1..6).prop_map(Op::Free),
        4 => (any::<u32>(), 0u8..6, 0u32..3).prop_map(|(b, k, g)| Op::Insert(b, k, g)),
        2 => (prop::collection::vec(any::<u32>(), 1..20), 0u8..6, 0u32..3)
            .prop_map(|(b, k, g)| Op::InsertRun(b, k, g)),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(from, to)| Op::MoveKeys(from, to)),
        1 => (0u8..6, 0u32..3).prop_map(|(k, g)| Op::Discard(k, g)),
        1 => any::<u32>().prop_map(Op::DropKeys),
        3 => (0u8..6, 0u32..3).prop_map(|(k, g)| Op::Get(k, g)),
        1 => Just(Op::Reset),
    ]
}

fn ids(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.0).collect()
}

/// Everything that can be seen of a fixed store is what the model has.
fn same(store: &mut FixedStore, model: &mut ModelStore) -> Result<(), TestCaseError> {
    store.check_integrity().map_err(TestCaseError::fail)?;
    prop_assert_eq!(ids(&store.free_order(POOL)), model.queue.clone());
    let queue = store.queue();
    let next = |block: &BlockId| queue.next_available(Some(*block));
    let forward: Vec<_> = std::iter::successors(queue.next_available(None), next).collect();
    prop_assert_eq!(ids(&forward), model.queue.clone());
    let previous = |block: &BlockId| queue.previous_available(Some(*block));
    let mut back: Vec<_> =
        std::iter::successors(queue.previous_available(None), previous).collect();
    back.reverse();
    prop_assert_eq!(ids(&back), model.queue.clone());
    let (states, index) = (store.pool(POOL), store.prefix_index(POOL));
    for (block, expected) in model.blocks.iter().enumerate() {
        let block = BlockId(block as u32);
        prop_assert_eq!(states.ref_count(block), expected.refs);
        prop_assert_eq!(states.is_hashed(block), !expected.keys.is_empty());
        prop_assert_eq!(states.is_available(block), model.queue.contains(&block.0));
        let first = expected.keys.first().map(|&key| (key, expected.num_tokens));
        prop_assert_eq!(index.first_key(block), first);
        let further: Vec<_> = index.further_keys(block).collect();
        prop_assert_eq!(&further, expected.keys.get(1..).unwrap_or_default());
    }
    for (key, blocks) in &model.carriers {
        prop_assert_eq!(&ids(&index.blocks(key).collect::<Vec<_>>()), blocks);
        for block in 0..model.blocks.len() as u32 {
            prop_assert_eq!(index.contains(key, BlockId(block)), blocks.contains(&block));
        }
    }
    for group in 0..3 {
        let keys = (0..6).map(|number| key(number, group));
        let found: Vec<_> = index.get_run(keys.clone()).map(|block| block.0).collect();
        prop_assert_eq!(found, keys.map_while(|key| model.get(key)).collect::<Vec<_>>());
    }
    prop_assert_eq!(index.len(), model.carriers.len());
    prop_assert_eq!(index.is_empty(), model.carriers.is_empty());
    let num_live = model.blocks.iter().filter(|block| block.refs > 0).count();
    prop_assert_eq!(states.num_live() as usize, num_live);
    prop_assert_eq!(store.num_available(POOL), model.queue.len() as u64);
    prop_assert_eq!(store.num_free_slabs() + states.num_cached(), model.queue.len() as u32);
    prop_assert_eq!(store.num_dropped(), model.num_dropped);
    prop_assert_eq!(std::mem::take(store.evicted()), std::mem::take(&mut model.evicted));
    Ok(())
}

/// Whether blocks of all pools fit together is what counting slabs says.
fn check_room(
    store: &SlabStore,
    sizes: &[u32],
    live: &[(PoolId, BlockId)],
) -> Result<(), TestCaseError> {
    let mut whole = store.num_slabs();
    let pools: Vec<(u64, u64, u64)> = (0..)
        .zip(sizes)
        .map(|(pool, &size)| {
            let own = live.iter().filter(|(other, _)| other.0 == pool);
            let blocks: BTreeSet<u32> = own.map(|(_, block)| block.0).collect();
            let slabs: BTreeSet<u32> = blocks.iter().map(|block| block / size).collect();
            whole -= slabs.len() as u64;
            (size.into(), blocks.len() as u64, slabs.len() as u64 * u64::from(size))
        })
        .collect();
    prop_assert_eq!(store.num_whole_slabs(), whole);
    for demand in [0u64, 1, 3, 5, 8] {
        let needed = |(size, live, room): &(u64, u64, u64)| {
            demand.saturating_sub(room - live).div_ceil(*size)
        };
        let needed: u64 = pools.iter().map(needed).sum();
        let spare = store.reserve(&vec![demand; sizes.len()], &mut Reservation::default());
        prop_assert_eq!(spare.ok(), whole.checked_sub(needed));
    }
    for (pool, (size, live, room)) in (0..).map(PoolId).zip(pools) {
        prop_assert_eq!(store.num_available(pool), room - live + whole * size);
        prop_assert_eq!(u64::from(store.blocks_per_slab(pool)), size);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn a_fixed_store_decides_as_the_model_does(
        num_blocks in 1u32..24,
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut store = FixedStore::new(num_blocks).unwrap();
        let mut model = ModelStore::new(num_blocks);
        for op in ops {
            let before = (store.num_changes(), model.carriers.clone());
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
                Op::TouchAndUndo(blocks) => {
                    let blocks = blocks.iter().map(|block| block % num_blocks);
                    let blocks: Vec<_> =
                        blocks.filter(|&block| model.has_content(block)).map(BlockId).collect();
                    for &block in &blocks {
                        store.touch(POOL, block).unwrap();
                    }
                    for &block in blocks.iter().rev() {
                        store.undo_touch(POOL, block);
                    }
                }
                Op::Free(blocks) => {
                    let blocks: Vec<u32> = blocks.iter().map(|block| block % num_blocks).collect();
                    let result = store.free(POOL, blocks.iter().copied().map(BlockId));
                    prop_assert_eq!(result.is_ok(), model.free(&blocks));
                }
                Op::FreeWarm(blocks) => {
                    let blocks: Vec<u32> = blocks.iter().map(|block| block % num_blocks).collect();
                    let result = store.free_warm(blocks.iter().copied().map(BlockId));
                    prop_assert_eq!(result.is_ok(), model.free_warm(&blocks));
                }
                Op::Insert(block, number, group) => {
                    let block = block % num_blocks;
                    // An ownerless block without content is in no table: nobody could fill it.
                    if model.has_content(block) {
                        let key = key(number, group);
                        let new = store.insert_key(POOL, BlockId(block), &key, number.into());
                        prop_assert_eq!(new, model.insert(block, key, number.into()));
                    }
                }
                Op::InsertRun(blocks, first, group) => {
                    let blocks = blocks.iter().map(|block| block % num_blocks);
                    let run = (0u8..).zip(blocks.filter(|&block| model.has_content(block)));
                    let run: Vec<_> =
                        run.map(|(at, block)| (block, key((first + at) % 6, group))).collect();
                    let before = run.last().map(|&(block, _)| BlockId(block));
                    let entries = run.iter().map(|&(block, key)| (BlockId(block), key, 16));
                    store.insert_run(POOL, before, entries);
                    for (block, key) in run {
                        model.insert(block, key, 16);
                    }
                }
                Op::MoveKeys(from, to) => {
                    let (from, to) = (from % num_blocks, to % num_blocks);
                    let free = &model.blocks[to as usize];
                    if from != to && free.refs > 0 && free.keys.is_empty() {
                        store.move_keys(POOL, BlockId(from), BlockId(to));
                        model.move_keys(from, to);
                    }
                }
                Op::Discard(number, group) => {
                    store.discard(POOL, &key(number, group));
                    model.discard(key(number, group));
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
            same(&mut store, &mut model)?;
            let (num_changes, carriers) = before;
            prop_assert!(store.num_changes() > num_changes || carriers == model.carriers);
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
                Op::TouchAndUndo(numbers) => {
                    let order = store.free_order(pool);
                    let before = (store.num_whole_slabs(), store.num_available(pool), &order);
                    let is_cached = |block: &BlockId| store.pool(pool).is_hashed(*block);
                    let cached: Vec<_> = order.iter().copied().filter(is_cached).collect();
                    let touched: Vec<_> = numbers
                        .iter()
                        .filter_map(|&at| cached.get(at as usize % cached.len().max(1)).copied())
                        .chain(pick(numbers[0]))
                        .collect();
                    for &block in &touched {
                        store.touch(pool, block).unwrap();
                    }
                    for &block in touched.iter().rev() {
                        store.undo_touch(pool, block);
                    }
                    let after = store.free_order(pool);
                    prop_assert_eq!(
                        (store.num_whole_slabs(), store.num_available(pool), &after),
                        before
                    );
                }
                Op::FreeWarm(numbers) => {
                    // Refreshed, a cached block is the last to be evicted.
                    let is_cached = |block: &BlockId| store.pool(pool).is_hashed(*block);
                    let cached: Vec<_> =
                        store.free_order(pool).into_iter().filter(is_cached).collect();
                    if let Some(&block) = cached.get(numbers[0] as usize % cached.len().max(1)) {
                        store.refresh(pool, block);
                        prop_assert_eq!(store.free_order(pool).last().copied(), Some(block));
                        prop_assert_eq!(store.priority(pool, block), store.now());
                    }
                }
                Op::InsertRun(numbers, first, group) => {
                    // Ownerless blocks with this content and no other.
                    let num_spare = |store: &SlabStore, key: &Key| {
                        let index = store.prefix_index(pool);
                        let is_spare = |&block: &BlockId| {
                            store.pool(pool).ref_count(block) == 0
                                && index.further_keys(block).next().is_none()
                        };
                        index.blocks(key).filter(is_spare).count()
                    };
                    let run: Vec<_> = (0u8..)
                        .zip(numbers.iter().filter_map(|&number| pick(number)))
                        .map(|(at, block)| (block, key((first + at) % 6, group)))
                        .map(|(block, key)| (block, key, num_spare(&store, &key)))
                        .collect();
                    store.insert_run(pool, None, run.iter().map(|&(block, key, _)| (block, key, 16)));
                    for (block, key, before) in run {
                        prop_assert!(store.prefix_index(pool).contains(&key, block));
                        let after = num_spare(&store, &key);
                        prop_assert!(before == 0 || after < before, "{} of {}", after, before);
                    }
                }
                Op::MoveKeys(from, to) => {
                    if let (Some(from), Some(to)) = (pick(from), pick(to))
                        && !store.pool(pool).is_hashed(to)
                    {
                        let keys = |store: &SlabStore, block| {
                            let first = store.prefix_index(pool).first_key(block).map(|(key, _)| key);
                            first.into_iter().chain(store.prefix_index(pool).further_keys(block)).collect::<Vec<_>>()
                        };
                        let moved = keys(&store, from);
                        store.move_keys(pool, from, to);
                        prop_assert_eq!(keys(&store, to), moved);
                    }
                }
                Op::Discard(k, group) => {
                    let found = store.get(pool, &key(k, group));
                    let is_owned = found.is_some_and(|block| store.pool(pool).ref_count(block) > 0);
                    store.discard(pool, &key(k, group));
                    let left = store.prefix_index(pool).blocks(&key(k, group)).next();
                    prop_assert_eq!(left == found, is_owned || found.is_none());
                    prop_assert!(is_owned || found.is_none() || store.was_evicted(pool, &key(k, group)));
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
            check_room(&store, &sizes, &live)?;
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
fn a_slab_belongs_to_the_pool_that_has_blocks_in_it() {
    let mut store = SlabStore::new(8, &[4, 1]).unwrap();
    store.allocate(POOL, 5, &mut Vec::new()).unwrap();
    store.allocate(PoolId(1), 3, &mut Vec::new()).unwrap();
    assert_eq!([0, 1].map(|pool| store.num_owned(PoolId(pool))), [2, 3]);
    assert_eq!(store.num_free_slabs(), 2);
}

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
