//! Prompts, and what the rules make of them.

use super::*;
use crate::engine::outbox::Outbox;
use crate::group::GroupSpec;
use crate::ids::GroupId;
use crate::prefix_index::Key;
use crate::store::SlabStore;

const FULL: usize = 0;
const STATE: PoolId = PoolId(1);

/// 39 slabs: 4 blocks of 2 tokens each, or a state.
fn cache() -> Cache<SlabStore> {
    let state = GroupKind::MambaAligned {
        num_speculative: 0,
        checkpoint_alignment: None,
        has_checkpoint_blocks: false,
    };
    let groups = [
        GroupSpec { kind: GroupKind::Full, block_size: 2, pool: PoolId(0) },
        GroupSpec { kind: state, block_size: 64, pool: STATE },
    ];
    let store = SlabStore::new(40, &[4, 1]).unwrap();
    Cache::new(store, groups.into_iter(), 2, true, Outbox::default()).unwrap()
}

/// A block of attention holds the tokens of a digest.
fn hash(store: &mut SlabStore, block: BlockId, digest: Digest) {
    let key = Key { digest, group: GroupId(0) };
    store.insert_key(PoolId(0), block, &key, 2);
}

fn traffic() -> Traffic {
    Traffic::new(&cache(), 2)
}

#[test]
fn a_state_costs_as_much_as_the_attention_that_fits_beside_it() {
    let (state_tokens, capacity) = in_tokens(&cache());
    assert!((state_tokens - 8.0).abs() < 1e-9, "a slab holds 8 tokens' attention");
    assert!((capacity - 39.0 * 8.0).abs() < 1e-9);
}

#[test]
fn a_life_is_the_time_in_which_as_much_is_evicted_as_is_cached() {
    let (mut traffic, mut store) = (traffic(), cache().store);
    // All blocks are taken, so that what was cached is evicted; then 12 are left hashed, in 3 slabs of 39.
    let mut use_all = || {
        let mut blocks = Vec::new();
        store.allocate(PoolId(0), 39 * 4, &mut blocks).unwrap();
        for &block in &blocks[..12] {
            hash(&mut store, block, Digest::from([block.0 as u8; 32]));
        }
        store.free(PoolId(0), blocks.into_iter()).unwrap();
        traffic.measure(&store);
        traffic.pressure.now()
    };
    assert!(use_all().abs() < 1e-9, "nothing was evicted");
    assert!((use_all() - 1.0).abs() < 1e-9, "all that was cached was");
    assert!((use_all() - 2.0).abs() < 1e-9);
}

#[test]
fn no_time_passes_while_only_blocks_go_that_nobody_is_known_to_need() {
    let (mut traffic, mut store) = (traffic(), cache().store);
    store.order_by_priority().unwrap();
    store.set_default_priority(5);
    let mut use_all = |is_spent: bool| {
        let mut blocks = Vec::new();
        store.allocate(PoolId(0), 39 * 4, &mut blocks).unwrap();
        for &block in &blocks[..12] {
            hash(&mut store, block, Digest::from([block.0 as u8; 32]));
            if is_spent {
                store.spend(PoolId(0), block);
            }
        }
        store.free(PoolId(0), blocks.into_iter()).unwrap();
        traffic.measure(&store);
        traffic.pressure.now()
    };
    assert!(use_all(true).abs() < 1e-9, "nothing was evicted");
    assert!(use_all(false).abs() < 1e-9, "what was evicted was spent");
    assert!(use_all(true) > 0.0);
}

#[test]
fn a_prompt_begins_as_others_do_at_a_branch_or_behind_a_checkpoint_in_use() {
    let mut traffic = traffic();
    let checkpoint = BlockId(3);
    traffic.history.leave(checkpoint, false, 0.0);
    assert_eq!(traffic.beginning(0, None), Beginning::Fresh);
    assert_eq!(traffic.beginning(8, None), Beginning::Shared);
    assert_eq!(traffic.beginning(0, Some(checkpoint)), Beginning::Turn);
    traffic.on_used(checkpoint, 64, true);
    assert_eq!(traffic.beginning(0, Some(checkpoint)), Beginning::Shared);
}

#[test]
fn those_who_leave_a_prompt_at_one_place_are_counted() {
    let (mut traffic, block) = (traffic(), BlockId(5));
    let shared = |last| Shared { hit: 0, matched: 4, reached: 4, last: Some(last) };
    let plan = CheckpointPlan { prompt_tokens: 8, ..CheckpointPlan::default() };
    traffic.on_computed(FULL, &[block], &plan);
    assert_eq!(traffic.num_left(&shared(block)), 0);
    for num_left in 1..=2 {
        traffic.on_prompt((PromptClass::default(), 0), Some(shared(block)), None, 0);
        assert_eq!(traffic.num_left(&shared(block)), num_left);
    }
    assert_eq!(traffic.num_left(&Shared::default()), 0);
}

#[test]
fn a_conversation_is_left_where_it_was_though_its_end_was_evicted() {
    let (traffic, mut cache) = (traffic(), cache());
    let digests: Vec<_> = (0..8).map(|byte| Digest::from([byte + 1; 32])).collect();
    let mut blocks = Vec::new();
    cache.store.allocate(PoolId(0), 39 * 4, &mut blocks).unwrap();
    for (&block, &digest) in blocks[..6].iter().zip(&digests) {
        hash(&mut cache.store, block, digest);
    }
    cache.store.free(PoolId(0), blocks[..6].iter().rev().copied()).unwrap();
    for there in [10, 8, 6] {
        cache.store.allocate(PoolId(0), 1, &mut Vec::new()).unwrap();
        let shared = traffic.shared(&cache, &digests, there, there);
        assert_eq!((shared.reached, shared.last), (there, Some(blocks[there as usize / 2 - 1])));
        let reached = |limit, beginning| {
            let departure = traffic.departure(&cache, &digests, shared, limit, beginning);
            departure.map(|departure| departure.reached)
        };
        let evicted = |beginning| reached(HitLimit::AttentionEvicted, beginning);
        assert_eq!(evicted(Beginning::Turn), Some(12), "{there} tokens are there");
        assert_eq!([Beginning::Fresh, Beginning::Shared].map(evicted), [None; 2]);
        assert_eq!(reached(HitLimit::Unseen, Beginning::Fresh), Some(there));
        assert_eq!(reached(HitLimit::WindowEvicted, Beginning::Turn), None);
    }
}

#[test]
fn a_place_that_is_gone_is_not_counted_as_left() {
    let mut traffic = traffic();
    let block = BlockId(5);
    let plan = CheckpointPlan { prompt_tokens: 8, ..CheckpointPlan::default() };
    traffic.on_computed(FULL, &[block], &plan);
    let shared = Shared { hit: 4, matched: 4, reached: 6, last: Some(block) };
    traffic.on_prompt((PromptClass::default(), 0), Some(shared), None, 0);
    assert_eq!(traffic.num_left(&shared), 0);
}

#[test]
fn what_an_earlier_request_shares_beyond_what_is_found_makes_its_end_worth_more() {
    let class = PromptClass::default();
    let plan = CheckpointPlan { prompt_tokens: 6_000, class, ..CheckpointPlan::default() };
    let author = Author { num_tokens: 6_000, class, ..Author::default() };
    let worth = |earlier: Option<(Author, u32)>, found: f64| {
        let (mut traffic, block) = (traffic(), BlockId(5));
        let shared = Shared { hit: 4_000, matched: 4_000, reached: 4_000, last: Some(block) };
        for _ in 0..64 {
            traffic.on_computed(FULL, &[block], &plan);
            (traffic.savings.found, traffic.savings.missed) = (found, 1_000.0);
            traffic.on_prompt((class, 0), Some(shared), earlier, 4_000);
        }
        // The left content saves so much that each of the two lasts a life only if it saves most.
        traffic.savings.saved = 1e6 * traffic.state_tokens;
        let worth = traffic.worth(&plan, &[4_000, 6_000], |_| None);
        worth[1] / worth[0].max(1e-9)
    };
    let unknown = worth(None, 9_000.0);
    assert!(unknown < 1.0, "{unknown}: prompts leave 2,000 tokens before the end");
    let shared = |length, found| worth(Some((author, length)), found);
    let (shorter, longer) = (shared(3_000, 9_000.0), shared(6_000, 9_000.0));
    assert!((shorter - unknown).abs() < 1e-9, "more is found than is known to be shared");
    assert!(longer > 10.0, "{longer}: they share the whole prompt, and its end was evicted");
    let lost = shared(6_000, 900.0);
    assert!((lost - unknown).abs() < 1e-9, "{lost}: ends do not last where most is missed");
}

#[test]
fn a_plan_says_which_of_its_places_is_a_branch() {
    let traffic = traffic();
    let prompt = Prompt { num_tokens: 600, branch: 300, num_left: 2, ..Prompt::default() };
    let plan = traffic.plan(&CheckpointPolicy::default(), prompt);
    assert_eq!(plan.branch, 300);
    assert!(plan.lengths.as_slice().contains(&300));
    assert_eq!(plan.lengths.as_slice().last(), Some(&598), "bytes cost nothing");
    let without = CheckpointPolicy { branch: false, ..CheckpointPolicy::default() };
    let plan = traffic.plan(&without, prompt);
    assert_eq!(plan.branch, 0);
    assert!(!plan.lengths.as_slice().contains(&300));
}

#[test]
fn where_requests_outlive_what_is_cached_few_checkpoints_are_left() {
    let mut traffic = traffic();
    let policy = CheckpointPolicy::default();
    let prompt = Prompt { num_tokens: 16_000, ..Prompt::default() };
    // A request ends that many lives after it began.
    let mut serve = |num_requests: u32, lives: f64| {
        for _ in 0..num_requests {
            let plan = traffic.plan(&policy, prompt);
            traffic.savings.found += 16.0;
            traffic.pressure.on_evicted(lives * 0.25, 0.25);
            traffic.on_end(&plan, 0, 640, plan.lengths.as_slice());
        }
        traffic.plan(&policy, prompt).lengths.as_slice().len()
    };
    assert_eq!(serve(64, 0.5), 6);
    let few = serve(64, 2.0);
    assert!(few < 3, "{few}");
    assert_eq!(serve(256, 0.5), 6, "once they last again");
}

#[test]
fn that_one_request_outlives_its_checkpoints_says_little() {
    let mut traffic = traffic();
    let plan = traffic.plan(&CheckpointPolicy::default(), Prompt::default());
    traffic.pressure.on_evicted(0.5, 0.25);
    traffic.on_end(&plan, 0, 640, &[]);
    assert!((traffic.survival - 31.0 / 32.0).abs() < 1e-9);
}

#[test]
fn what_a_next_turn_needs_is_known_once_content_goes() {
    let mut traffic = traffic();
    assert_eq!(traffic.cached_tokens(), 0);
    assert!(traffic.left_by(640, &[128, 512]).is_none(), "nothing is evicted");
    traffic.pressure.on_evicted(0.1, 0.25);
    assert_eq!(traffic.cached_tokens(), 39 * 8 / 4);
    let left = |lengths| traffic.left_by(640, lengths).map(|it| (it.bytes, it.num_tokens));
    assert_eq!(left(&[128, 512]), Some((648, 512)), "attention and one state");
    assert_eq!(left(&[]), Some((640, 640)));
}

#[test]
fn a_checkpoint_saves_what_lies_between_it_and_where_its_request_began() {
    let traffic = traffic();
    let plan = CheckpointPlan { prompt_tokens: 6_000, ..CheckpointPlan::default() };
    let from = |start| traffic.saved_by_one(&plan, start, 6_100);
    assert!(from(0) > 1_000.0, "{}", from(0));
    assert!(from(5_900) < 0.1 * from(0), "{}", from(5_900));
}

/// Lets many prompts of 600 tokens find `start` of them.
fn serve(traffic: &mut Traffic, start: u32) {
    for _ in 0..2_000 {
        let class = PromptClass::default();
        traffic.on_prompt((class, 0), None, None, start);
        let prompt = Prompt { start, num_tokens: 600, class, ..Prompt::default() };
        let plan = traffic.plan(&CheckpointPolicy::default(), prompt);
        traffic.on_end(&plan, start, 602, &[]);
    }
}

#[test]
fn requests_leave_each_other_room_once_checkpoints_were_seen_to_save() {
    let mut traffic = traffic();
    let mut leaves_room = |start| {
        serve(&mut traffic, start);
        traffic.leaves_room(4)
    };
    assert!(!leaves_room(0), "each prompt is the only one of its kind");
    assert!(leaves_room(400), "most of a prompt is found");
    assert!(!leaves_room(0));
    assert!(!Traffic::new(&cache(), 2).leaves_room(4), "nothing is known");
}

#[test]
fn a_cache_much_larger_than_the_room_finds_as_much_without_it() {
    let mut traffic = traffic();
    serve(&mut traffic, 400);
    traffic.pressure.on_evicted(0.01, 0.5);
    let cached = traffic.pressure.cached_tokens();
    let room = |num: u16| f64::from(num) * traffic.state_tokens;
    let fits = |times: f64| (1..=u16::MAX).take_while(|&num| times * room(num) <= cached).count();
    let (many, few) = (fits(3.0), fits(5.0));
    assert!(few > 0 && traffic.leaves_room(many), "{many} of {cached} tokens");
    assert!(!traffic.leaves_room(few), "{few} of {cached} tokens");
}

#[test]
fn where_little_is_found_an_earlier_request_teaches_though_all_of_it_is_gone() {
    let class = PromptClass::default();
    let author = Author { num_tokens: 6_000, class, ..Author::default() };
    // Prompts that come back after 6,000 tokens, where others found a share of theirs.
    let places = |mut traffic: Traffic, found: u32| {
        let policy = CheckpointPolicy::default();
        for _ in 0..64 {
            traffic.on_prompt((class, 0), None, Some((author, 6_000)), found);
            let prompt = Prompt { num_tokens: 6_000, class, ..Prompt::default() };
            let plan = traffic.plan(&policy, prompt);
            traffic.pressure.on_evicted(0.5, 0.25);
            traffic.on_end(&plan, found, 6_000, plan.lengths.as_slice());
        }
        let prompt = Prompt { num_tokens: 6_000, class, ..Prompt::default() };
        let plan = traffic.plan(&policy, prompt);
        plan.lengths.as_slice().to_vec()
    };
    assert!(places(traffic(), 0).contains(&6_000));
    assert!(!places(traffic(), 1_000).contains(&6_000));
}

#[test]
fn bytes_are_as_dear_as_the_share_of_earlier_turns_that_is_not_found() {
    let class = PromptClass::default();
    let author = Author { num_tokens: 6_000, class, ..Author::default() };
    // All that is left behind lasts longer than its request, and nothing is hit late.
    let price = |comes_back: bool, found: u32| {
        let mut traffic = traffic();
        for _ in 0..64 {
            let earlier = comes_back.then_some((author, 6_000));
            traffic.on_prompt((class, 0), None, earlier, found);
            let prompt = Prompt { num_tokens: 6_000, start: found, class, ..Prompt::default() };
            let plan = traffic.plan(&CheckpointPolicy::default(), prompt);
            traffic.pressure.on_evicted(0.01, 0.25);
            traffic.on_end(&plan, found, 6_000, plan.lengths.as_slice());
        }
        traffic.price()
    };
    assert!(price(true, 0) > price(true, 1_000));
    assert!(price(true, 1_000) > price(true, 5_000));
    assert!(price(true, 6_000) <= 0.0, "all is found");
    assert!(price(false, 0) > 0.0, "what new prompts leave is never found");
}

/// Attention beside windows of 4 tokens, in 39 slabs of 2 blocks of 2 tokens each.
fn traffic_of_windows() -> Traffic {
    let window = GroupKind::sliding_window(4);
    let groups = [
        GroupSpec { kind: GroupKind::Full, block_size: 2, pool: PoolId(0) },
        GroupSpec { kind: window, block_size: 2, pool: PoolId(1) },
    ];
    let store = SlabStore::new(40, &[2, 2]).unwrap();
    let mut cache = Cache::new(store, groups.into_iter(), 2, true, Outbox::default()).unwrap();
    cache.groups[1].is_placed = true;
    Traffic::new(&cache, 2)
}

#[test]
fn where_most_is_found_a_window_counts_as_used_only_by_those_who_leave_there() {
    let class = PromptClass::default();
    let num_uses = |found: u32, leaves: bool| {
        let (mut traffic, window) = (traffic_of_windows(), BlockId(3));
        let author = Author { num_tokens: 100, class, ..Author::default() };
        traffic.on_prompt((class, 0), None, Some((author, 100)), found);
        let plan = CheckpointPlan { prompt_tokens: 100, ..CheckpointPlan::default() };
        traffic.on_end(&plan, found, 102, &[]);
        traffic.on_used(window, 40, leaves);
        traffic.history.num_uses(window)
    };
    assert_eq!(num_uses(80, true), 1);
    assert_eq!(num_uses(80, false), 0, "80 are found, 20 are missed");
    assert_eq!(num_uses(70, false), 1, "70 are found, 30 are missed");
}

#[test]
fn a_window_is_worth_no_more_than_its_share_of_what_the_best_one_saves() {
    let lengths = [100, 200];
    let plan = CheckpointPlan { prompt_tokens: 200, ..CheckpointPlan::default() };
    let windows = traffic_of_windows().worth(&plan, &lengths, |_| None);
    let best = windows.iter().copied().fold(0.0, f64::max);
    assert!((best - 1.0).abs() < 1e-9, "{windows:?}");
    assert!(windows.iter().any(|&worth| 0.0 < worth && worth < 0.5), "{windows:?}");
    let states = traffic().worth(&plan, &lengths, |_| None);
    assert!(states.iter().all(|&worth| (worth - 1.0).abs() < 1e-9), "{states:?}");
}
