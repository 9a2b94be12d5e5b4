//! Checkpoints in another format than running states, in a pool of their own.

use hybrid_blocks::placement::Lengths;
use hybrid_blocks::{
    BlockCopy, BlockId, BlockManager, BlockStore, CheckpointFormat, CheckpointPolicy, Config,
    Error, GroupId, GroupKind, GroupSpec, PoolId, Store,
};

const STATES: GroupId = GroupId(1);
const RUNNING: PoolId = PoolId(1);
const KEPT: PoolId = PoolId(2);

fn config(format: CheckpointFormat, kept: Option<PoolId>) -> Config {
    let groups = vec![
        GroupSpec { kind: GroupKind::Full, block_size: 16, pool: PoolId(0) },
        GroupSpec { kind: GroupKind::State { slots: 1 }, block_size: 16, pool: RUNNING },
    ];
    let checkpoints = CheckpointPolicy {
        prompt_margins: Some(Lengths::from([0])),
        format,
        ..CheckpointPolicy::default()
    };
    Config { kept_pools: vec![None, kept], checkpoints, ..Config::new(groups, 16) }
}

/// Attention blocks of 16 tokens, 8 to a slab, states of a whole slab, and 4 checkpoints to a slab.
fn manager(num_slabs: u32) -> BlockManager {
    let store = BlockStore::shared(num_slabs, &[8, 1, 4]).unwrap();
    BlockManager::new(store, config(CheckpointFormat::Int8, Some(KEPT))).unwrap()
}

fn add(manager: &mut BlockManager, number: i64, len: i64) -> u64 {
    let tokens: Vec<i64> = (0..len).map(|i| number * 1_000 + i).collect();
    manager.add_prompt(&format!("{number} of {len}"), &tokens, &[]).unwrap()
}

/// A step of one request. Returns the copies that it asks for.
fn step(manager: &mut BlockManager, handle: u64, num_tokens: u32) -> Vec<BlockCopy> {
    manager.tick();
    assert_eq!(manager.allocate(&[handle], &[num_tokens], 0), Ok(1));
    let copies = manager.take_copies().unwrap();
    manager.advance(&[handle], &[num_tokens]).unwrap();
    manager.check_integrity().unwrap();
    copies
}

fn state_of(manager: &BlockManager, handle: u64) -> BlockId {
    manager.blocks(handle, STATES).unwrap()[0]
}

fn num_kept(manager: &BlockManager) -> usize {
    assert_eq!(manager.store().prefix_index(RUNNING).len(), 0, "a running state has a key");
    manager.store().prefix_index(KEPT).len()
}

/// A request of 40 tokens that leaves a checkpoint after 32, and ends. Returns the copy.
fn leave(manager: &mut BlockManager, number: i64) -> BlockCopy {
    let handle = add(manager, number, 40);
    assert!(step(manager, handle, 32).is_empty());
    let copies = step(manager, handle, 8);
    assert_eq!(copies.len(), 1);
    assert_eq!((copies[0].src, copies[0].src_pool), (state_of(manager, handle), RUNNING));
    assert_eq!(copies[0].dst_pool, KEPT);
    manager.free(&[handle]).unwrap();
    copies[0]
}

#[test]
fn checkpoints_share_a_slab_and_requests_resume_by_a_copy_back() {
    let mut manager = manager(40);
    let kept: Vec<_> = (0..4).map(|number| leave(&mut manager, number).dst).collect();
    assert_eq!(num_kept(&manager), 4);
    assert!(kept.iter().all(|block| block.0 / 4 == kept[0].0 / 4), "{kept:?}");
    assert_eq!(manager.store().pool(KEPT).num_live(), 0);
    let next = add(&mut manager, 2, 60);
    assert_eq!(manager.match_prefix(next).unwrap().num_tokens, 32);
    let copies = step(&mut manager, next, 16);
    assert_eq!(copies.len(), 1);
    assert_eq!((copies[0].src, copies[0].src_pool), (kept[2], KEPT));
    assert_eq!((copies[0].dst, copies[0].dst_pool), (state_of(&manager, next), RUNNING));
    assert_eq!(manager.store().pool(KEPT).num_live(), 0, "the copy was made");
}

#[test]
fn a_request_that_ends_owns_its_state_until_it_is_copied() {
    let mut manager = manager(40);
    for preempts in [true, false] {
        let handle = add(&mut manager, preempts.into(), 48);
        step(&mut manager, handle, 32);
        step(&mut manager, handle, 16);
        let (state, before) = (state_of(&manager, handle), num_kept(&manager));
        if preempts {
            manager.preempt(&[handle]).unwrap();
        } else {
            manager.free(&[handle]).unwrap();
        }
        manager.check_integrity().unwrap();
        assert_eq!(manager.store().pool(RUNNING).ref_count(state), 1);
        assert_eq!(num_kept(&manager), before + 1);
        let copies = manager.take_copies().unwrap();
        assert_eq!((copies[0].src, copies[0].src_pool, copies.len()), (state, RUNNING, 1));
        assert_eq!(manager.store().pool(RUNNING).num_live(), 0);
        if preempts {
            manager.free(&[handle]).unwrap();
        }
    }
}

#[test]
fn a_request_that_resumes_before_the_copy_is_made_gets_the_running_state() {
    let mut manager = manager(40);
    let first = add(&mut manager, 0, 48);
    step(&mut manager, first, 32);
    step(&mut manager, first, 16);
    let state = state_of(&manager, first);
    manager.free(&[first]).unwrap();
    let next = add(&mut manager, 0, 60);
    assert_eq!(manager.match_prefix(next).unwrap().num_tokens, 48);
    assert_eq!(manager.allocate(&[next], &[12], 0), Ok(1));
    let copies = manager.take_copies().unwrap();
    let pools: Vec<_> = copies.iter().map(|it| (it.src, it.src_pool, it.dst_pool)).collect();
    assert_eq!(pools, [(state, RUNNING, KEPT), (state, RUNNING, RUNNING)]);
    assert_eq!(copies[1].dst, state_of(&manager, next));
    manager.check_integrity().unwrap();
}

#[test]
fn a_reset_gives_up_the_copies_that_wait_while_no_request_owns_a_block() {
    let mut manager = manager(40);
    let [running, ends] = [0, 1].map(|number| add(&mut manager, number, 48));
    for num_tokens in [32, 16] {
        step(&mut manager, running, num_tokens);
        step(&mut manager, ends, num_tokens);
    }
    manager.free(&[ends]).unwrap();
    let before = num_kept(&manager);
    assert!(matches!(manager.reset(), Err(Error::BlocksInUse { .. })));
    assert_eq!(num_kept(&manager), before, "a refused reset changes nothing");
    manager.check_integrity().unwrap();
    // Preempted, it leaves a copy beside that of the other.
    manager.preempt(&[running]).unwrap();
    manager.reset().unwrap();
    assert_eq!((num_kept(&manager), manager.store().num_free_slabs()), (0, 39));
    assert_eq!(manager.take_copies(), Ok(vec![]));
    manager.check_integrity().unwrap();
    manager.free(&[running]).unwrap();
}

#[test]
fn a_state_is_not_kept_where_its_copy_has_no_room() {
    // The null slab, one of attention and one of the state.
    let mut manager = manager(3);
    let handle = add(&mut manager, 0, 48);
    step(&mut manager, handle, 32);
    assert!(step(&mut manager, handle, 16).is_empty());
    manager.free(&[handle]).unwrap();
    assert!(manager.take_copies().unwrap().is_empty());
    assert_eq!(num_kept(&manager), 0);
    manager.check_integrity().unwrap();
}

#[test]
fn a_running_request_takes_the_slab_of_a_copy_that_is_not_made_yet() {
    // The null slab, one of attention, two of states, and one more.
    let mut manager = manager(5);
    let long = add(&mut manager, 0, 140);
    step(&mut manager, long, 32);
    let short = add(&mut manager, 1, 40);
    step(&mut manager, short, 32);
    manager.tick();
    assert_eq!(manager.allocate(&[short], &[8], 0), Ok(1));
    assert_eq!((num_kept(&manager), manager.store().num_free_slabs()), (1, 0));
    assert_eq!(manager.allocate(&[long], &[80], 0), Ok(1), "it needs a slab of attention");
    assert_eq!(num_kept(&manager), 0);
    assert_eq!(manager.take_copies(), Ok(vec![]));
    manager.check_integrity().unwrap();
}

#[test]
fn a_running_request_takes_the_slabs_of_the_state_that_a_preempted_one_would_keep() {
    let mut manager = manager(5);
    let long = add(&mut manager, 0, 170);
    step(&mut manager, long, 32);
    let short = add(&mut manager, 1, 40);
    step(&mut manager, short, 32);
    manager.tick();
    manager.preempt(&[short]).unwrap();
    assert_eq!((num_kept(&manager), manager.store().num_whole_slabs()), (1, 0));
    assert_eq!(manager.allocate(&[long], &[128], 0), Ok(1), "it needs a slab of attention");
    assert_eq!((num_kept(&manager), manager.store().num_free_slabs()), (0, 1));
    assert_eq!(manager.take_copies(), Ok(vec![]));
    manager.check_integrity().unwrap();
}

#[test]
fn a_format_and_a_pool_for_it_come_together() {
    use CheckpointFormat::{Bf16, Full};
    let made =
        |config| BlockManager::new(BlockStore::shared(40, &[8, 1, 4]).unwrap(), config).map(|_| ());
    assert_eq!(made(config(Full, None)), Ok(()));
    assert_eq!(made(config(Bf16, Some(KEPT))), Ok(()));
    for (format, kept, why) in [
        (Bf16, None, "group 1 needs a pool of its own"),
        (Full, Some(KEPT), "which another format has alone"),
        (Bf16, Some(RUNNING), "the pool of its running states"),
        (Bf16, Some(PoolId(3)), "in pool 3 of 3"),
    ] {
        let Err(Error::InvalidConfig(text)) = made(config(format, kept)) else {
            panic!("{format:?} in {kept:?} is refused")
        };
        assert!(text.contains(why), "{text}");
    }
    let attention = Config { kept_pools: vec![Some(KEPT), Some(KEPT)], ..config(Bf16, None) };
    assert!(made(attention).unwrap_err().to_string().contains("group 0 has none"));
    let uncached = Config { enable_caching: false, ..config(Bf16, Some(KEPT)) };
    assert_eq!(made(uncached), Ok(()));
}
