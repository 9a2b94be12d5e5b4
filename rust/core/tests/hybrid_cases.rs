//! Cases that hybrid serving has met in practice, one test each.

use std::ops::Range;

use hybrid_blocks::placement::Lengths;
use hybrid_blocks::{
    BlockManager, BlockStore, CheckpointPolicy, Config, Error, EvictionOrder, GroupId, GroupKind,
    GroupSpec, HitLimit, PoolId, Store,
};

const ATTENTION: GroupId = GroupId(0);
const STATE: GroupId = GroupId(1);

/// Attention blocks of 16 tokens, 75 to a slab, and states of a whole slab.
fn hybrid(num_slabs: u32, slots: u32) -> BlockManager {
    hybrid_with(
        num_slabs,
        slots,
        CheckpointPolicy {
            prompt_margins: Some(Lengths::from([0])),
            ..CheckpointPolicy::default()
        },
    )
}

fn hybrid_with(num_slabs: u32, slots: u32, placement: CheckpointPolicy) -> BlockManager {
    let groups = vec![
        GroupSpec { kind: GroupKind::Full, block_size: 16, pool: PoolId(0) },
        GroupSpec { kind: GroupKind::State { slots }, block_size: 16, pool: PoolId(1) },
    ];
    let store = BlockStore::shared(num_slabs, &[75, 1]).unwrap();
    BlockManager::new(store, Config { checkpoints: placement, ..config(groups, 8_192) }).unwrap()
}

fn config(groups: Vec<GroupSpec>, max_in_flight_tokens: u32) -> Config {
    let placement = CheckpointPolicy {
        prompt_margins: Some(Lengths::from([0])),
        ..CheckpointPolicy::default()
    };
    Config { max_in_flight_tokens, checkpoints: placement, ..Config::new(groups, 16) }
}

fn prompt(number: i64, len: i64) -> Vec<i64> {
    (0..len).map(|i| number * 1_000_000 + i).collect()
}

/// Adds a request of `len` tokens for each number; prompts of different numbers share nothing.
fn add_prompts(manager: &mut BlockManager, numbers: Range<i64>, len: i64) -> Vec<u64> {
    numbers.map(|i| manager.add_prompt(&format!("r{i}"), &prompt(i, len), &[]).unwrap()).collect()
}

/// Computes all known tokens of a request, in chunks that respect its boundaries.
fn prefill(manager: &mut BlockManager, handle: u64) -> bool {
    loop {
        let (known, computed, _) = manager.progress(handle).unwrap();
        let start = if manager.blocks(handle, ATTENTION).unwrap().is_empty() {
            manager.match_prefix(handle).unwrap().num_tokens
        } else {
            computed
        };
        if start == known {
            return true;
        }
        let count = manager.chunk(handle, start, known - start).unwrap();
        if manager.allocate(&[handle], &[count], 0).unwrap() == 0 {
            return false;
        }
        manager.take_copies().unwrap();
        manager.advance(&[handle], &[count]).unwrap();
        manager.tick();
    }
}

/// Samples and computes `num_tokens` tokens of a request whose prompt was computed.
fn generate(manager: &mut BlockManager, handle: u64, num_tokens: i32) {
    for token in 0..num_tokens {
        manager.append_tokens(&[handle], &[token]).unwrap();
        assert_eq!(manager.allocate(&[handle], &[1], 0).unwrap(), 1);
        manager.take_copies().unwrap();
        manager.advance(&[handle], &[1]).unwrap();
        manager.check_integrity().unwrap();
    }
}

/// One turn of a conversation: a prompt, an answer of `num_tokens`. Returns what was hit, and all
/// tokens.
fn turn(manager: &mut BlockManager, tokens: &[i64], num_tokens: i32) -> (u32, Vec<i64>) {
    let handle = manager.add_prompt("turn", tokens, &[]).unwrap();
    let hit = manager.match_prefix(handle).unwrap().num_tokens;
    assert!(prefill(manager, handle));
    generate(manager, handle, num_tokens);
    manager.free(&[handle]).unwrap();
    manager.tick();
    (hit, [tokens, &(0..i64::from(num_tokens)).collect::<Vec<_>>()].concat())
}

fn num_states(manager: &BlockManager) -> usize {
    manager.store().prefix_index(PoolId(1)).len()
}

#[test]
fn requests_192_of_262144_tokens_with_2_speculative_tokens_never_starve_while_attention_is_free() {
    // 3 state slots a request: 192 requests need 576 slabs for states, the rest is attention's.
    let mut manager = hybrid(1 + 576 + 192, 3);
    assert!(manager.max_request_tokens() > 262_144);
    let handles = add_prompts(&mut manager, 0..192, 300);
    for &handle in &handles {
        assert!(prefill(&mut manager, handle), "a state slot was refused");
    }
    manager.check_integrity().unwrap();
    let states: usize = handles.iter().map(|&h| manager.blocks(h, STATE).unwrap().len()).sum();
    assert_eq!(states, 576);

    // When the short ones leave, their slabs serve a long one's attention.
    manager.free(&handles).unwrap();
    let long = manager.add_prompt("long", &prompt(999, 262_144), &[]).unwrap();
    assert!(prefill(&mut manager, long));
    manager.check_integrity().unwrap();
}

#[test]
fn a_client_has_a_number_below_the_most() {
    let mut manager = hybrid(9, 1);
    let handle = manager.add_prompt("r", &prompt(1, 64), &[]).unwrap();
    let most = BlockManager::MAX_CLIENTS;
    manager.set_client(handle, most - 1).unwrap();
    let refused = manager.set_client(handle, most).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
}

#[test]
fn a_permanent_state_is_never_released_by_skipping() {
    let groups = vec![
        GroupSpec { kind: GroupKind::sliding_window(64), block_size: 16, pool: PoolId(0) },
        GroupSpec { kind: GroupKind::State { slots: 3 }, block_size: 16, pool: PoolId(1) },
    ];
    let store = BlockStore::shared(40, &[8, 1]).unwrap();
    let mut manager = BlockManager::new(store, config(groups, 64)).unwrap();
    let handle = manager.add_prompt("r", &prompt(1, 2_000), &[]).unwrap();
    let mut states = Vec::new();
    for _ in 0..2_000 / 50 {
        assert_eq!(manager.allocate(&[handle], &[50], 0).unwrap(), 1);
        manager.advance(&[handle], &[50]).unwrap();
        let now = manager.blocks(handle, STATE).unwrap().to_vec();
        if states.is_empty() {
            states.clone_from(&now);
        }
        assert_eq!(now, states);
        manager.check_integrity().unwrap();
    }
    // What the last 50 tokens no longer look at goes with the next allocation.
    let window = manager.blocks(handle, ATTENTION).unwrap();
    let first_kept = (1_950 + 1 - 64) / 16;
    assert_eq!(window.iter().filter(|block| !block.is_null()).count(), 2_000 / 16 - first_kept);
}

#[test]
fn a_block_is_given_back_when_the_token_after_it_left_the_window_gets_room() {
    let groups = [GroupKind::sliding_window(70), GroupKind::Chunked { chunk: 40 }]
        .map(|kind| GroupSpec { kind, block_size: 16, pool: PoolId(0) });
    let store = BlockStore::shared(40, &[8]).unwrap();
    let mut manager = BlockManager::new(store, config(groups.to_vec(), 64)).unwrap();
    let handle = manager.add_prompt("r", &prompt(1, 400), &[]).unwrap();
    for computed in 0..400u32 {
        assert_eq!(manager.allocate(&[handle], &[1], 0).unwrap(), 1);
        manager.advance(&[handle], &[1]).unwrap();
        for (group, first) in [(0, (computed + 1).saturating_sub(70)), (1, computed / 40 * 40)] {
            let table = manager.blocks(handle, GroupId(group)).unwrap();
            let held = table.iter().filter(|block| !block.is_null()).count() as u32;
            assert_eq!(held, (computed + 1).div_ceil(16) - first / 16, "{computed} tokens");
        }
        manager.check_integrity().unwrap();
    }
}

#[test]
fn a_checkpoint_at_the_end_of_the_prompt_serves_the_next_turn() {
    let mut manager = hybrid(60, 1);
    let first = manager.add_prompt("turn 1", &prompt(1, 1_000), &[]).unwrap();
    assert_eq!(manager.chunk(first, 0, 1_000).unwrap(), 992);
    assert!(prefill(&mut manager, first));
    manager.free(&[first]).unwrap();

    let second = manager.add_prompt("turn 2", &prompt(1, 1_500), &[]).unwrap();
    let hit = manager.match_prefix(second).unwrap();
    assert_eq!((hit.num_tokens, hit.limit), (992, HitLimit::Unseen));
    assert_eq!(manager.allocate(&[second], &[8], 0).unwrap(), 1);
    let copies = manager.take_copies().unwrap();
    assert_eq!(copies.len(), 1, "the state is forked");
    assert_eq!(copies[0].dst, manager.blocks(second, STATE).unwrap()[0]);
    assert_ne!(copies[0].src, copies[0].dst);
    manager.check_integrity().unwrap();
}

#[test]
fn a_branch_point_is_learned_from_the_request_that_diverges() {
    let mut manager = hybrid(90, 1);
    let shared = prompt(1, 480);
    for number in 2..5 {
        let tokens = [shared.clone(), prompt(number, 200)].concat();
        let handle = manager.add_prompt(&format!("r{number}"), &tokens, &[]).unwrap();
        let hit = manager.match_prefix(handle).unwrap();
        match number {
            2 => assert_eq!((hit.num_tokens, hit.branch), (0, 0)),
            3 => {
                assert_eq!((hit.num_tokens, hit.branch), (0, 480));
                assert_eq!(hit.limit, HitLimit::NoCheckpoint);
                assert_eq!(manager.chunk(handle, 0, 680).unwrap(), 480);
            }
            _ => assert_eq!((hit.num_tokens, hit.branch), (480, 0)),
        }
        assert!(prefill(&mut manager, handle));
        manager.free(&[handle]).unwrap();
    }
}

#[test]
fn a_request_larger_than_the_arena_is_told_how_much_it_needs_and_what_would_fit() {
    let mut manager = hybrid(5, 2);
    let error = manager.add_prompt("r", &prompt(1, 10_000), &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "request of 10000 tokens needs 11 slabs of 4 in all; at most 2400 tokens fit"
    );
    assert_eq!(manager.num_requests(), 0);
    let handle = manager.add_prompt("r", &prompt(1, 2_400), &[]).unwrap();
    assert!(prefill(&mut manager, handle));
    assert!(matches!(
        manager.allocate(&[handle], &[1], 0),
        Err(Error::RequestTooLarge { num_tokens: 2_401, .. })
    ));
}

#[test]
fn one_slab_is_a_full_arena_and_serves_one_request_after_the_other() {
    let groups = vec![GroupSpec { kind: GroupKind::Full, block_size: 16, pool: PoolId(0) }];
    let store = BlockStore::shared(2, &[4]).unwrap();
    let mut manager = BlockManager::new(store, config(groups, 64)).unwrap();
    for number in 0..10 {
        let handle = manager.add_prompt("r", &prompt(number, 64), &[]).unwrap();
        assert!(prefill(&mut manager, handle));
        let other = manager.add_prompt("other", &prompt(99, 16), &[]).unwrap();
        assert!(!prefill(&mut manager, other), "the arena is full");
        manager.free(&[handle, other]).unwrap();
        manager.check_integrity().unwrap();
    }
}

#[test]
fn an_abort_in_the_middle_of_a_prefill_gives_everything_back() {
    let mut manager = hybrid(20, 2);
    let handle = manager.add_prompt("r", &prompt(1, 4_000), &[]).unwrap();
    assert_eq!(manager.allocate(&[handle], &[1_000], 0).unwrap(), 1);
    manager.free(&[handle]).unwrap();
    assert_eq!(manager.store().num_free_slabs(), 19);
    let handle = manager.add_prompt("r", &prompt(1, 4_000), &[]).unwrap();
    assert_eq!(manager.match_prefix(handle).unwrap().num_tokens, 0);
    manager.allocate(&[handle], &[1_000], 0).unwrap();
    manager.advance(&[handle], &[1_000]).unwrap();
    manager.free(&[handle]).unwrap();
    assert_eq!(manager.store().num_whole_slabs(), 19);
    manager.check_integrity().unwrap();
}

#[test]
fn storms_of_preemption_and_resumption_lose_nothing() {
    let mut manager = hybrid(40, 1);
    let handles = add_prompts(&mut manager, 0..8, 1_000);
    for round in 0..20 {
        for (i, &handle) in handles.iter().enumerate() {
            assert!(prefill(&mut manager, handle));
            if (i + round) % 3 == 0 {
                manager.preempt(&[handle]).unwrap();
                let hit = manager.match_prefix(handle).unwrap();
                assert_eq!(hit.num_tokens, 992, "the state was kept at the end of the prompt");
            }
        }
        manager.check_integrity().unwrap();
    }
    manager.free(&handles).unwrap();
    assert_eq!(manager.store().num_whole_slabs(), 39);
}

#[test]
fn memory_never_idles_on_one_side_while_the_other_waits() {
    let mut manager = hybrid(1 + 400, 1);
    // 8 requests of 20,000 tokens fill attention, then short ones need states.
    let long = add_prompts(&mut manager, 0..8, 20_000);
    for &handle in &long {
        assert!(prefill(&mut manager, handle));
    }
    let mut short = Vec::new();
    loop {
        let number = 100 + short.len() as u32;
        let tokens = prompt(i64::from(number), 300);
        let handle = manager.add_prompt(&format!("short{number}"), &tokens, &[]).unwrap();
        short.push(handle);
        if !prefill(&mut manager, handle) {
            break;
        }
    }
    // 8 · (1,250 blocks + 1 state) leave 400 - 134 - 8 slabs; 3 short ones share a slab of
    // attention and take a state each.
    assert_eq!(manager.store().num_whole_slabs(), 0, "a slab idles while a request waits");
    assert!(short.len() > 190, "only {} short requests ran", short.len());
    manager.check_integrity().unwrap();
}

#[test]
fn a_block_and_its_hash_can_change_groups_that_share_a_pool() {
    let groups = vec![
        GroupSpec { kind: GroupKind::Full, block_size: 16, pool: PoolId(0) },
        GroupSpec { kind: GroupKind::sliding_window(16), block_size: 16, pool: PoolId(0) },
    ];
    let store = BlockStore::shared(4, &[4]).unwrap();
    let mut manager = BlockManager::new(store, config(groups, 32)).unwrap();
    for number in 0..30 {
        let handle = manager.add_prompt("r", &prompt(number % 4, 64 + number % 3), &[]).unwrap();
        let hit = manager.match_prefix(handle).unwrap().num_tokens;
        assert!(prefill(&mut manager, handle), "after a hit of {hit}");
        manager.free(&[handle]).unwrap();
        manager.check_integrity().unwrap();
    }
}

#[test]
fn a_request_that_is_admitted_computes_its_whole_prompt() {
    let mut admitted = 0;
    for length in (100..12_000).step_by(700) {
        let mut manager = hybrid(1 + 20, 2);
        let other = manager.add_prompt("other", &prompt(1, 9_000), &[]).unwrap();
        assert!(prefill(&mut manager, other));
        let handle = manager.add_prompt("r", &prompt(2, length), &[]).unwrap();
        manager.match_prefix(handle).unwrap();
        let fits = manager.allocate(&[handle], &[16], 0).unwrap() == 1;
        if fits {
            manager.take_copies().unwrap();
            manager.advance(&[handle], &[16]).unwrap();
        }
        assert_eq!(fits, prefill(&mut manager, handle), "{length} tokens");
        admitted += u32::from(fits);
        manager.check_integrity().unwrap();
    }
    assert!((2..17).contains(&admitted), "{admitted}");
}

#[test]
fn a_full_arena_refuses_without_a_change_and_serves_again_when_room_is_made() {
    let mut manager = hybrid(1 + 8, 1);
    let mut handles = Vec::new();
    loop {
        let number = i64::try_from(handles.len()).unwrap();
        let handle = manager.add_prompt(&format!("r{number}"), &prompt(number, 300), &[]).unwrap();
        handles.push(handle);
        if !prefill(&mut manager, handle) {
            break;
        }
    }
    assert_eq!(handles.len(), 7, "6 states and 2 slabs of attention fill 8 slabs");
    let (refused, running) = handles.split_last().unwrap();
    let blocks = |manager: &BlockManager| {
        let table = |&handle| manager.blocks(handle, ATTENTION).unwrap().to_vec();
        handles.iter().map(table).collect::<Vec<_>>()
    };
    let before = blocks(&manager);
    for _ in 0..3 {
        assert_eq!(manager.allocate(&[*refused], &[288], 0).unwrap(), 0);
        manager.check_integrity().unwrap();
    }
    assert_eq!(blocks(&manager), before);
    manager.free(&running[..1]).unwrap();
    assert!(prefill(&mut manager, *refused));
    manager.check_integrity().unwrap();
}

/// A group that keeps every token and one that keeps 64, in one pool with 50 blocks left.
fn windowed() -> BlockManager {
    let groups = [GroupKind::Full, GroupKind::sliding_window(64)].map(|kind| GroupSpec {
        kind,
        block_size: 16,
        pool: PoolId(0),
    });
    let store = BlockStore::shared(1 + 90, &[1]).unwrap();
    let mut manager = BlockManager::new(store, config(groups.to_vec(), 16)).unwrap();
    let other = manager.add_prompt("other", &prompt(9, 560), &[]).unwrap();
    for _ in 0..560 / 16 {
        assert_eq!(manager.allocate(&[other], &[16], 0).unwrap(), 1);
        manager.advance(&[other], &[16]).unwrap();
    }
    assert_eq!(manager.store().num_whole_slabs(), 50);
    manager
}

#[test]
fn what_an_admitted_prompt_still_needs_is_not_promised_to_another() {
    let mut manager = windowed();
    let first = manager.add_prompt("first", &prompt(1, 320), &[]).unwrap();
    assert_eq!(manager.allocate(&[first], &[16], 0).unwrap(), 1);
    manager.advance(&[first], &[16]).unwrap();
    let second = manager.add_prompt("second", &prompt(2, 320), &[]).unwrap();
    assert_eq!(
        manager.allocate(&[second], &[16], 0).unwrap(),
        0,
        "24 of 48 blocks are promised, and it takes up to 26"
    );
    manager.preempt(&[first]).unwrap();
    assert_eq!(manager.allocate(&[second], &[16], 0).unwrap(), 1);
}

#[test]
fn content_that_is_computed_again_is_not_cached_twice() {
    let mut manager = hybrid(1 + 24, 1);
    let tokens = prompt(1, 75 * 16 * 4);
    let first = manager.add_prompt("first", &tokens, &[]).unwrap();
    assert!(prefill(&mut manager, first));
    manager.free(&[first]).unwrap();
    let cached = manager.store().prefix_index(PoolId(0)).len();
    // The same start and another end: no state was kept there, so the start is computed again.
    let mut other = tokens[..75 * 16 * 3].to_vec();
    other.extend(prompt(2, 160));
    let second = manager.add_prompt("second", &other, &[]).unwrap();
    let hit = manager.match_prefix(second).unwrap();
    assert_eq!((hit.num_tokens, hit.limit), (0, HitLimit::NoCheckpoint));
    assert!(prefill(&mut manager, second));
    manager.free(&[second]).unwrap();
    manager.check_integrity().unwrap();
    let (store, pool) = (manager.store(), PoolId(0));
    let available = store.free_order(pool);
    let kept = available.iter().filter(|&&block| store.pool(pool).is_hashed(block)).count();
    assert_eq!(kept, cached + 10, "every key has one block");
}

#[test]
fn the_next_turn_goes_on_from_the_end_of_the_answer() {
    let mut manager = hybrid(60, 1);
    let (hit, history) = turn(&mut manager, &prompt(1, 1_000), 300);
    assert_eq!(hit, 0);
    assert_eq!(num_states(&manager), 2, "one for the prompt, one that followed the answer");
    let next = [history, prompt(2, 50)].concat();
    let handle = manager.add_prompt("next", &next, &[]).unwrap();
    let hit = manager.match_prefix(handle).unwrap();
    assert_eq!((hit.num_tokens, hit.branch), (1_280, 1_296), "the border of 64 before 1,300");
    manager.check_integrity().unwrap();
}

#[test]
fn the_copy_that_follows_an_answer_takes_one_slot_at_a_time() {
    let mut manager = hybrid(8, 1);
    let handle = manager.add_prompt("r", &prompt(1, 1_000), &[]).unwrap();
    assert!(prefill(&mut manager, handle));
    for _ in 0..5 {
        generate(&mut manager, handle, 64);
        assert_eq!(num_states(&manager), 2);
    }
    assert_eq!(manager.stats().checkpoints, 6);
    // 1,328 tokens and a state of its own leave three slabs, whatever is cached.
    assert_eq!(manager.store().num_whole_slabs(), 7 - 2 - 1);
}

#[test]
fn a_turn_that_drops_the_end_of_the_prompt_finds_the_state_before_it() {
    let mut manager = hybrid_with(
        60,
        1,
        CheckpointPolicy {
            prompt_margins: Some(Lengths::from([128])),
            ..CheckpointPolicy::default()
        },
    );
    let tokens = prompt(1, 1_000);
    turn(&mut manager, &tokens, 100);
    let next = [&tokens[..990], &prompt(2, 300)].concat();
    let handle = manager.add_prompt("next", &next, &[]).unwrap();
    let hit = manager.match_prefix(handle).unwrap();
    assert_eq!((hit.num_tokens, hit.branch), (864, 0));
    assert_eq!(
        864 + manager.chunk(handle, 864, 10_000).unwrap(),
        (990 + 300 - 128) / 16 * 16,
        "112 tokens are no branch: they lie within the margin"
    );
}

#[test]
fn checkpoints_that_a_conversation_left_behind_go_first() {
    let mut manager = hybrid(1 + 12, 1);
    let (_, other) = turn(&mut manager, &prompt(9, 320), 64);
    let mut tokens = prompt(1, 320);
    for number in 0..8 {
        let (hit, history) = turn(&mut manager, &tokens, 64);
        assert_eq!(hit > 0, number > 0);
        tokens = [history, prompt(10 + number, 64)].concat();
        manager.check_integrity().unwrap();
    }
    // Eight turns left sixteen states, and there is room for ten.
    let handle = manager.add_prompt("other", &[other, prompt(2, 64)].concat(), &[]).unwrap();
    assert_eq!(manager.match_prefix(handle).unwrap().num_tokens, 384);
}

#[test]
fn a_shared_prefix_is_not_left_behind() {
    let mut manager = hybrid(1 + 12, 1);
    let shared = prompt(1, 480);
    for number in 2..20 {
        let (hit, _) = turn(&mut manager, &[shared.clone(), prompt(number, 200)].concat(), 20);
        assert_eq!(hit, if number < 4 { 0 } else { 480 });
    }
}

#[test]
fn what_a_window_leaves_behind_counts_as_used_then() {
    let groups = vec![
        GroupSpec { kind: GroupKind::Full, block_size: 16, pool: PoolId(0) },
        GroupSpec { kind: GroupKind::sliding_window(32), block_size: 16, pool: PoolId(0) },
    ];
    let config = config(groups, 8_192);
    let store = BlockStore::shared(40, &[4]).unwrap();
    let mut manager = BlockManager::new(store, config).unwrap();
    let window = GroupId(1);
    // The blocks in the window, chunk by chunk.
    let mut held = Vec::new();
    for (number, hit) in [(1, 0), (2, 0), (1, 64)] {
        let tokens = prompt(number, i64::from(hit) + 64);
        let handle = manager.add_prompt("turn", &tokens, &[]).unwrap();
        assert_eq!(manager.match_prefix(handle).unwrap().num_tokens, hit);
        for _ in 0..2 {
            manager.tick();
            assert_eq!(manager.allocate(&[handle], &[32], 0).unwrap(), 1);
            held.push(manager.blocks(handle, window).unwrap().to_vec());
            manager.advance(&[handle], &[32]).unwrap();
        }
        if hit == 0 {
            manager.free(&[handle]).unwrap();
        }
    }
    let priority = |&block| manager.store().priority(PoolId(0), block);
    let adopted = &held[4][2..4];
    assert_eq!(adopted, &held[1][2..4]);
    let other = held[3].last().unwrap();
    assert!(adopted.iter().all(|block| priority(block) > priority(other)), "{held:?}");
}
