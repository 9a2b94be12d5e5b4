//! States that a worker keeps from inside a forward pass, case by case.

use hybrid_blocks::placement::Lengths;
use hybrid_blocks::{
    BlockManager, BlockStore, CheckpointFormat, CheckpointPolicy, Config, Digest, GroupId,
    GroupKind, GroupSpec, PoolId, Store,
};

/// Tokens of a hash block and of an attention block; a slab has four of these, or a state.
const BLOCK: u32 = 2;
const ATTENTION: PoolId = PoolId(0);
const STATES: PoolId = PoolId(1);
/// Tokens of a prompt that leaves states at 20 and 36. They fill 5 slabs, and the running state one.
const PROMPT: u32 = 40;

fn config(alignment: Option<u32>, slots: u32) -> Config {
    let groups = vec![
        GroupSpec { kind: GroupKind::Full, block_size: BLOCK, pool: ATTENTION },
        GroupSpec { kind: GroupKind::State { slots }, block_size: BLOCK, pool: STATES },
    ];
    let checkpoints = CheckpointPolicy {
        prompt_margins: Some(Lengths::from([4, 20])),
        finish: false,
        ..CheckpointPolicy::default()
    };
    Config { checkpoints, prefill_checkpoint_alignment: alignment, ..Config::new(groups, BLOCK) }
}

fn manager_with(num_slabs: u32, alignment: Option<u32>) -> BlockManager {
    let store = BlockStore::shared(num_slabs, &[4, 1]).unwrap();
    BlockManager::new(store, config(alignment, 1)).unwrap()
}

fn manager() -> BlockManager {
    manager_with(100, Some(1))
}

/// Adds a request of `num_tokens` tokens. All of one `text` begin alike.
fn add(manager: &mut BlockManager, id: &str, text: u8, num_tokens: u32) -> u64 {
    let digest = |at: u32| {
        let mut bytes = [text; 32];
        bytes[0] = at as u8;
        Digest::from(bytes)
    };
    manager.add_request(id, num_tokens, (0..num_tokens / BLOCK).map(digest).collect()).unwrap()
}

/// Gives a request its whole prompt in one chunk of a step.
fn schedule(manager: &mut BlockManager, handle: u64, num_tokens: u32) {
    manager.tick();
    assert_eq!(manager.chunk(handle, 0, num_tokens), Ok(num_tokens));
    assert_eq!(manager.allocate(&[handle], &[num_tokens], 0), Ok(1));
}

fn positions(manager: &mut BlockManager) -> Vec<u32> {
    assert!(manager.take_copies().unwrap().is_empty());
    manager.take_prefill_checkpoints().iter().map(|it| it.position).collect()
}

fn hit(manager: &mut BlockManager, handle: u64) -> u32 {
    manager.match_prefix(handle).unwrap().num_tokens
}

fn num_live(manager: &BlockManager) -> u32 {
    manager.store().pool(STATES).num_live()
}

#[test]
fn a_chunk_keeps_all_its_states_and_a_hit_finds_them_in_the_next_step() {
    let mut manager = manager();
    let first = add(&mut manager, "first", 1, PROMPT);
    let again = add(&mut manager, "again", 1, PROMPT + 4);
    schedule(&mut manager, first, PROMPT);
    assert_eq!(num_live(&manager), 3);
    let kept = manager.take_prefill_checkpoints();
    let running = manager.blocks(first, GroupId(1)).unwrap()[0];
    let expected = [20, 36].map(|position| (first, GroupId(1), position, running));
    let found = kept.iter().map(|it| (it.handle, it.group, it.position, it.src));
    assert!(found.eq(expected), "{kept:?}");
    assert!(kept[0].dst != kept[1].dst && kept.iter().all(|it| it.dst != running), "{kept:?}");
    assert_eq!(hit(&mut manager, again), 0, "no state is written yet");
    manager.advance(&[first], &[PROMPT]).unwrap();
    assert_eq!(hit(&mut manager, again), 0, "the step has not ended");
    assert!(manager.take_prefill_checkpoints().is_empty(), "each is given once");
    manager.tick();
    assert_eq!(hit(&mut manager, again), 36);
    assert_eq!(num_live(&manager), 1, "only the running state is owned");
    manager.check_integrity().unwrap();
}

#[test]
fn a_chunk_ends_at_each_place_where_no_worker_keeps_states_inside() {
    let mut manager = manager_with(100, None);
    let handle = add(&mut manager, "request", 1, PROMPT);
    assert_eq!(manager.chunk(handle, 0, PROMPT), Ok(20));
}

#[test]
fn a_place_off_the_alignment_ends_its_chunk() {
    let mut manager = manager_with(100, Some(16));
    let handle = add(&mut manager, "request", 1, PROMPT);
    manager.tick();
    assert_eq!(manager.chunk(handle, 0, PROMPT), Ok(20));
    assert_eq!(manager.allocate(&[handle], &[20], 0), Ok(1));
    assert!(positions(&mut manager).is_empty());
    manager.advance(&[handle], &[20]).unwrap();
    manager.tick();
    assert_eq!(manager.chunk(handle, 20, 20), Ok(20));
    assert_eq!(manager.allocate(&[handle], &[20], 0), Ok(1));
    assert_eq!(manager.take_copies().unwrap().len(), 1, "the state after 20 tokens");
    assert_eq!(positions(&mut manager), [36]);
}

#[test]
fn a_chunk_no_longer_than_a_step_with_drafts_ends_at_a_place() {
    let store = BlockStore::shared(100, &[4, 1]).unwrap();
    let mut manager = BlockManager::new(store, config(Some(1), 3)).unwrap();
    let handle = add(&mut manager, "request", 1, PROMPT);
    for (most, chunk) in [(3, 1), (5, 5)] {
        assert_eq!(manager.chunk(handle, 35, most), Ok(chunk), "at most {most}");
    }
}

#[test]
fn a_request_that_is_taken_out_of_its_step_keeps_nothing_of_it() {
    for is_taken in [false, true] {
        let mut manager = manager();
        let first = add(&mut manager, "first", 1, PROMPT);
        schedule(&mut manager, first, PROMPT);
        if is_taken {
            assert_eq!(positions(&mut manager), [20, 36]);
        }
        manager.preempt(&[first]).unwrap();
        assert!(manager.take_prefill_checkpoints().is_empty());
        assert_eq!(num_live(&manager), 0, "taken: {is_taken}");
        manager.tick();
        assert_eq!(hit(&mut manager, first), 0);
    }
}

#[test]
fn states_that_no_worker_was_told_of_are_not_kept() {
    let mut manager = manager();
    let first = add(&mut manager, "first", 1, PROMPT);
    let again = add(&mut manager, "again", 1, PROMPT);
    schedule(&mut manager, first, PROMPT);
    manager.advance(&[first], &[PROMPT]).unwrap();
    manager.tick();
    assert!(manager.take_prefill_checkpoints().is_empty());
    assert_eq!((hit(&mut manager, again), num_live(&manager)), (0, 1));
}

#[test]
fn a_request_that_ends_with_its_step_keeps_its_states() {
    let mut manager = manager();
    let first = add(&mut manager, "first", 1, PROMPT);
    schedule(&mut manager, first, PROMPT);
    assert_eq!(positions(&mut manager), [20, 36]);
    manager.advance(&[first], &[PROMPT]).unwrap();
    manager.free(&[first]).unwrap();
    let again = add(&mut manager, "again", 1, PROMPT);
    assert_eq!((hit(&mut manager, again), num_live(&manager)), (36, 0));
    assert_eq!(manager.stats().checkpoints, 2);
}

#[test]
fn a_state_that_another_request_left_meanwhile_is_kept_once() {
    let mut manager = manager();
    let both = ["one", "other"].map(|id| add(&mut manager, id, 1, PROMPT));
    manager.tick();
    assert_eq!(manager.allocate(&both, &[PROMPT; 2], 0), Ok(2));
    assert_eq!(positions(&mut manager), [20, 36, 20, 36]);
    manager.advance(&both, &[PROMPT; 2]).unwrap();
    manager.tick();
    let states = manager.store().pool(STATES);
    assert_eq!((states.num_live(), states.num_cached()), (2, 2));
    assert_eq!(manager.stats().checkpoints, 2);
}

#[test]
fn a_request_that_waits_resumes_from_the_longest_state_after_one_step() {
    let mut manager = manager();
    let first = add(&mut manager, "first", 1, PROMPT);
    let again = add(&mut manager, "again", 1, PROMPT + 4);
    schedule(&mut manager, first, PROMPT);
    assert_eq!(manager.waits_for_checkpoint(again), Ok(true));
    assert_eq!(manager.num_uncached(again), Ok(PROMPT + 4));
    assert_eq!(positions(&mut manager), [20, 36]);
    manager.advance(&[first], &[PROMPT]).unwrap();
    manager.tick();
    assert_eq!(manager.waits_for_checkpoint(again), Ok(false));
    assert_eq!(manager.num_uncached(again), Ok(PROMPT + 4 - 36));
    assert_eq!(hit(&mut manager, again), 36);
    schedule(&mut manager, again, PROMPT + 4 - 36);
    assert_eq!(manager.num_uncached(again), Ok(PROMPT + 4), "it looks for no hit any more");
}

#[test]
fn the_shortest_states_have_no_room_first_and_none_costs_its_request_the_room() {
    for (num_free, kept) in [(0, &[][..]), (1, &[36]), (2, &[20, 36])] {
        let mut manager = manager_with(1 + 6 + num_free, Some(1));
        let first = add(&mut manager, "first", 1, PROMPT);
        schedule(&mut manager, first, PROMPT);
        assert_eq!(positions(&mut manager), kept);
    }
}

#[test]
fn a_running_request_gets_the_room_of_states_that_no_worker_knows_of() {
    // One slab of attention and a state; the prompt's 6 slabs; and one for its longer place.
    let mut manager = manager_with(1 + 2 + 6 + 1, Some(1));
    let running = add(&mut manager, "running", 2, 9);
    manager.tick();
    assert_eq!(manager.allocate(&[running], &[8], 0), Ok(1));
    manager.advance(&[running], &[8]).unwrap();
    let first = add(&mut manager, "first", 1, PROMPT);
    schedule(&mut manager, first, PROMPT);
    assert_eq!(num_live(&manager), 3, "both running states, and the place");
    assert_eq!(manager.allocate(&[running], &[1], 0), Ok(1));
    assert!(positions(&mut manager).is_empty());
    assert_eq!(num_live(&manager), 2);
    manager.check_integrity().unwrap();
}

#[test]
fn an_alignment_that_no_worker_can_have_is_refused() {
    let store = || BlockStore::shared(100, &[4, 1, 2]).unwrap();
    assert!(BlockManager::new(store(), config(Some(0), 1)).is_err());
    let converted = |alignment| Config {
        checkpoints: CheckpointPolicy {
            format: CheckpointFormat::Int8,
            ..config(None, 1).checkpoints
        },
        kept_pools: vec![None, Some(PoolId(2))],
        ..config(alignment, 1)
    };
    assert!(BlockManager::new(store(), converted(None)).is_ok());
    let refused = BlockManager::new(store(), converted(Some(1))).unwrap_err().to_string();
    assert!(refused.contains("no forward pass"), "{refused}");
}
