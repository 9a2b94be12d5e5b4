//! Our own rules over slabs, case by case. Whole lives over the same rules are in `rust/ops`.

use hybrid_blocks::vllm::{
    AllocateArgs, GroupConfig, KvCacheManager, Lookup, LookupGroup, ManagerConfig, RequestProgress,
};
use hybrid_blocks::{
    BlockId, CheckpointPolicy, Digest, EvictionOrder, GroupId, GroupKind, HitLimit, PoolId,
    SlabStore, Slack, Store,
};

/// Tokens of a hash block and of an attention block.
const BLOCK: u32 = 2;

/// A recurrent state that stays in its block.
const STATE: GroupKind = GroupKind::MambaAligned {
    num_speculative: 0,
    checkpoint_alignment: None,
    has_checkpoint_blocks: false,
};

fn step_hash(hash: u64, token: u8) -> u64 {
    (hash ^ (u64::from(token) + 1)).wrapping_mul(0x0100_0000_01b3)
}

fn digests(tokens: &[u8]) -> Vec<Digest> {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut digests = Vec::new();
    for block in tokens.chunks_exact(BLOCK as usize) {
        hash = block.iter().fold(hash, |hash, &token| step_hash(hash, token));
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        digests.push(Digest::from(bytes));
    }
    digests
}

/// A manager of attention and states, `k` blocks of attention a slab, and its requests.
fn small(num_slabs: u32, max_len: u32) -> KvCacheManager<SlabStore> {
    small_with(num_slabs, max_len, CheckpointPolicy::default())
}

/// The same with a policy.
fn small_with(num_slabs: u32, max_len: u32, policy: CheckpointPolicy) -> KvCacheManager<SlabStore> {
    let store = SlabStore::new(num_slabs, &[4, 1]).unwrap();
    KvCacheManager::new(store, small_config(max_len, policy)).unwrap()
}

fn small_config(max_len: u32, policy: CheckpointPolicy) -> ManagerConfig {
    let groups = vec![
        GroupConfig::new(GroupKind::Full, 2),
        GroupConfig { pool: PoolId(1), ..GroupConfig::new(STATE, max_len) },
    ];
    let specs = [0, 1].map(|group| LookupGroup { groups: vec![GroupId(group)], use_eagle: false });
    let lookup = Lookup::Hybrid { specs: specs.to_vec(), fine_grained: true };
    ManagerConfig {
        checkpoints: Some(policy),
        ..ManagerConfig::new(groups, lookup, 2, max_len, max_len)
    }
}

/// Computes `tokens` of a request that has `num_computed` of them.
fn compute(
    manager: &mut KvCacheManager<SlabStore>,
    id: &str,
    tokens: &[u8],
    num_computed: u32,
) -> bool {
    let handle = manager.add(id);
    *manager.digests_mut(handle).unwrap() = digests(tokens);
    let num_tokens = tokens.len() as u32;
    let progress = RequestProgress {
        num_computed,
        num_tokens,
        num_prompt: num_tokens,
        is_waiting: num_computed == 0,
        ..RequestProgress::default()
    };
    let args = AllocateArgs { num_new: num_tokens - num_computed, ..AllocateArgs::default() };
    manager.start_step();
    let new = manager.allocate(handle, &progress, &args).unwrap();
    manager.take_disjoint_copies().unwrap();
    new.is_some()
}

/// A manager of 5 slabs, and 32 tokens of a request `long` that needs them all. It has 4 of its tokens,
/// and runs alone, as it could not grow when it was alone.
fn running_alone() -> (KvCacheManager<SlabStore>, Vec<u8>) {
    // 4 slabs for 32 tokens, and 1 for the state.
    let mut manager = small(6, 32);
    let long: Vec<u8> = (0..32).collect();
    assert!(compute(&mut manager, "long", &long[..4], 0));
    // Another one fills the first slab's other half, and a third slab with its state.
    assert!(compute(&mut manager, "other", &[60; 4], 0));
    assert!(!compute(&mut manager, "long", &long, 4), "it does not fit beside the other");
    assert!(compute(&mut manager, "late", &[70; 2], 0), "nobody runs alone yet");
    for id in ["other", "late"] {
        let handle = manager.find(id).unwrap();
        manager.free(handle).unwrap();
    }
    // Somebody else holds slabs of the store that the manager knows nothing of.
    let mut taken = Vec::new();
    manager.store_mut().allocate(PoolId(1), 1, &mut taken).unwrap();
    assert!(!compute(&mut manager, "long", &long, 4), "it cannot grow though it is alone");
    let handle = manager.find("long").unwrap();
    manager.free(handle).unwrap();
    manager.store_mut().free(PoolId(1), taken.into_iter()).unwrap();
    assert!(compute(&mut manager, "long", &long[..4], 0));
    (manager, long)
}

#[test]
fn who_cannot_grow_alone_runs_alone_when_it_is_admitted_anew() {
    let (mut manager, long) = running_alone();
    assert!(!compute(&mut manager, "late", &[70; 2], 0), "nobody is admitted beside it");
    assert!(compute(&mut manager, "long", &long, 4));
    let handle = manager.find("long").unwrap();
    manager.free(handle).unwrap();
    assert!(compute(&mut manager, "late", &[70; 2], 0));
}

#[test]
fn nobody_waits_for_who_waits_for_its_client() {
    let (mut manager, _) = running_alone();
    assert!(!compute(&mut manager, "late", &[70; 2], 0));
    let handle = manager.find("long").unwrap();
    manager.pause(handle);
    assert!(compute(&mut manager, "late", &[70; 2], 0));
}

#[test]
fn a_hit_that_holds_too_many_slabs_is_shortened() {
    // 9 slabs; 32 tokens fill 4 of them, and the state 1.
    let mut manager = small(10, 32);
    let long: Vec<u8> = (0..32).collect();
    // Its blocks come to lie one in a slab, each beside three of others that stay.
    for end in (2..=16).step_by(2) {
        assert!(compute(&mut manager, "long", &long[..end], end as u32 - 2));
        manager.store_mut().allocate(PoolId(0), 3, &mut Vec::new()).unwrap();
    }
    let handle = manager.find("long").unwrap();
    let blocks = manager.blocks(handle, GroupId(0)).to_vec();
    let slabs: std::collections::HashSet<u32> = blocks.iter().map(|block| block.0 / 4).collect();
    assert_eq!(slabs.len(), 8, "{blocks:?}");
    let progress = RequestProgress {
        num_computed: 16,
        num_tokens: 17,
        num_prompt: 16,
        ..RequestProgress::default()
    };
    manager.settle(handle, &progress).unwrap();
    manager.free(handle).unwrap();
    let handle = manager.add("again");
    *manager.digests_mut(handle).unwrap() = digests(&long);
    assert_eq!(manager.longest_hit(handle, 31).num_tokens, 16);
    // 8 slabs of attention and 1 of the state are all there are; the fork's source needs one more.
    let waiting = RequestProgress { num_tokens: 32, num_prompt: 32, ..RequestProgress::default() };
    let usable = manager.longest_usable_hit(handle, 31, &waiting).unwrap();
    assert_eq!(usable.num_tokens, 0, "no shorter one has a state");
    assert_eq!(manager.stats().shortened, 1);
}

/// One life of a prompt: looked up, computed chunk by chunk as the rules ask, and freed. Returns the
/// tokens of its hit, what ended its chunks, and where attention goes on to without states.
fn visit(manager: &mut KvCacheManager<SlabStore>, id: &str, tokens: &[u8]) -> (u32, Vec<u32>, u32) {
    let handle = manager.add(id);
    *manager.digests_mut(handle).unwrap() = digests(tokens);
    let num_tokens = tokens.len() as u32;
    let mut progress = RequestProgress {
        num_tokens,
        num_prompt: num_tokens,
        is_waiting: true,
        ..RequestProgress::default()
    };
    manager.start_step();
    let hit = manager.longest_usable_hit(handle, num_tokens - 1, &progress).unwrap();
    let (mut start, mut ends) = (hit.num_tokens, Vec::new());
    let mut computed = Some(&hit.blocks[..]);
    while start < num_tokens {
        let end = manager.next_boundary(handle, &progress, start, num_tokens).unwrap();
        let args = AllocateArgs {
            num_new: end - start,
            num_new_computed: computed.map_or(0, |_| start),
            computed: computed.take(),
            ..AllocateArgs::default()
        };
        assert!(manager.allocate(handle, &progress, &args).unwrap().is_some());
        manager.take_disjoint_copies().unwrap();
        manager.start_step();
        (progress.num_computed, progress.is_waiting) = (end, false);
        start = end;
        ends.push(end);
    }
    manager.finish(handle).unwrap();
    (hit.num_tokens, ends, hit.num_uncached)
}

/// A document of `num_tokens` tokens that starts with its number, and a question of 40.
fn question(document: u8, num_tokens: usize, question: u8) -> Vec<u8> {
    let text = (0..num_tokens).map(|at| if at < 8 { document } else { (at % 251) as u8 });
    text.chain((0..40).map(|at| question.wrapping_add(at))).collect()
}

#[test]
fn places_are_learned_from_where_prompts_leave_earlier_ones() {
    let mut manager = small(4_000, 1_024);
    for document in 0..60 {
        visit(&mut manager, "a", &question(document, 800, 3));
        visit(&mut manager, "b", &question(document, 800, 90));
    }
    let (_, ends, _) = visit(&mut manager, "a", &question(200, 800, 3));
    // Everybody leaves the first question 40 tokens before its end.
    let place = ends.iter().rev().find(|&&end| end <= 800).unwrap();
    assert!(*place >= 790, "checkpoints at {ends:?}");
    let (hit, ..) = visit(&mut manager, "b", &question(200, 800, 90));
    assert!(hit >= 790, "{hit} tokens of 800");
}

#[test]
fn places_that_are_given_are_kept_to() {
    let margins = hybrid_blocks::placement::Lengths::from([100, 300]);
    let policy = CheckpointPolicy { prompt_margins: Some(margins), ..CheckpointPolicy::default() };
    let mut manager = small_with(4_000, 1_024, policy);
    for document in 0..20 {
        let (_, ends, _) = visit(&mut manager, "a", &question(document, 960, 3));
        assert_eq!(ends, [700, 900, 1_000]);
        visit(&mut manager, "b", &question(document, 960, 90));
    }
}

#[test]
fn no_request_leaves_more_checkpoints_than_allowed() {
    let policy =
        CheckpointPolicy { every: Some(100), max_per_request: 3, ..CheckpointPolicy::default() };
    let mut manager = small_with(4_000, 1_024, policy);
    let (_, ends, _) = visit(&mut manager, "a", &question(0, 960, 3));
    assert_eq!(ends.len(), 4, "three checkpoints and the end: {ends:?}");
    assert_eq!(manager.stats().prompt, 3);
}

#[test]
fn what_is_older_goes_first_whichever_pool_it_is_in() {
    // 8 slabs, of which attention fills 4 before states come.
    let mut manager = small(9, 32);
    let store = manager.store_mut();
    let mut blocks = Vec::new();
    store.allocate(PoolId(0), 16, &mut blocks).unwrap();
    let key = |at: u8| hybrid_blocks::Key { digest: digests(&[at, at])[0], group: GroupId(0) };
    for (at, &block) in blocks.iter().enumerate() {
        store.insert_key(PoolId(0), block, &key(at as u8), 2);
    }
    store.free(PoolId(0), blocks.into_iter()).unwrap();
    for at in 100..110u8 {
        manager.start_step();
        let store = manager.store_mut();
        let mut states = Vec::new();
        store.allocate(PoolId(1), 1, &mut states).unwrap();
        let state = hybrid_blocks::Key { digest: digests(&[at, at])[0], group: GroupId(1) };
        store.insert_key(PoolId(1), states[0], &state, 2);
        store.free(PoolId(1), states.into_iter()).unwrap();
    }
    let states = manager.store().pool(PoolId(1)).num_cached();
    assert_eq!(states, 8, "attention that is older than all states gave its slabs away");
    assert_eq!(manager.store().num_steals(), 4);
}

#[test]
fn attention_that_no_checkpoint_needs_goes_before_what_older_ones_need() {
    let margins = hybrid_blocks::placement::Lengths::from([100]);
    let policy = CheckpointPolicy { prompt_margins: Some(margins), ..CheckpointPolicy::default() };
    let mut manager = small_with(220, 1_024, policy);
    let prompt = |number: u8, end: u8| -> Vec<u8> {
        let start = (0..700u32).map(|at| if at < 8 { number } else { (at % 251) as u8 });
        start.chain((0..100).map(|at| end.wrapping_add(at))).collect()
    };
    // All are left where their checkpoint is.
    for number in 0..40 {
        visit(&mut manager, "a", &prompt(number, 1));
        visit(&mut manager, "b", &prompt(number, 101));
    }
    // 100 slabs of attention each, 12 of them behind the checkpoint.
    for number in [101, 102] {
        let (hit, ..) = visit(&mut manager, "a", &prompt(number, 1));
        assert_eq!(hit, 0);
    }
    // It takes what both have behind their checkpoints, though all of the first is older than the second.
    visit(&mut manager, "c", &[7; 112]);
    let (hit, ..) = visit(&mut manager, "b", &prompt(101, 101));
    assert_eq!(hit, 700);
}

#[test]
fn a_checkpoint_whose_place_is_needed_is_counted_as_evicted() {
    let margins = hybrid_blocks::placement::Lengths::from([0]);
    let policy = CheckpointPolicy { prompt_margins: Some(margins), ..CheckpointPolicy::default() };
    // 12 slabs of 8 tokens, or of a state. Each prompt of 30 tokens leaves 4 and a checkpoint.
    let mut manager = small_with(13, 32, policy);
    let mut written = 0;
    for number in 0..20u8 {
        visit(&mut manager, "a", &[number; 30]);
        let stats = manager.stats();
        written += 1;
        assert_eq!((stats.prompt, stats.superseded, stats.no_room), (written, 0, 0));
        assert!(stats.evicted < written);
        if number == 0 {
            assert_eq!(stats.evicted, 0);
        }
    }
    let states = manager.store().pool(PoolId(1)).num_cached();
    assert_eq!(manager.stats().evicted + u64::from(states), written);
}

#[test]
fn a_hit_that_a_window_ends_lacks_no_checkpoint() {
    // Windows that are gone end the hit of `b`, although its state is there; `c` lacks the state.
    let groups = vec![
        GroupConfig::new(GroupKind::Full, BLOCK),
        GroupConfig::new(GroupKind::sliding_window(5), BLOCK),
        GroupConfig { pool: PoolId(1), ..GroupConfig::new(STATE, 64) },
    ];
    let specs = [0, 1, 2].map(|at| LookupGroup { groups: vec![GroupId(at)], use_eagle: false });
    let lookup = Lookup::Hybrid { specs: specs.to_vec(), fine_grained: true };
    let margins = hybrid_blocks::placement::Lengths::from([0]);
    let policy = CheckpointPolicy { prompt_margins: Some(margins), ..CheckpointPolicy::default() };
    let config = ManagerConfig {
        checkpoints: Some(policy),
        ..ManagerConfig::new(groups, lookup, BLOCK, 64, 64)
    };
    let store = SlabStore::new(60, &[4, 1]).unwrap();
    let mut manager = KvCacheManager::new(store, config).unwrap();
    let tokens: Vec<u8> = (0..31).collect();
    visit(&mut manager, "a", &tokens);
    let digests = digests(&tokens);
    let limits = |manager: &KvCacheManager<SlabStore>, limit: HitLimit| {
        let at = HitLimit::ALL.iter().position(|&other| other == limit).unwrap();
        manager.stats().limits[at]
    };
    for digest in &digests {
        let key = hybrid_blocks::Key { digest: *digest, group: GroupId(1) };
        if let Some(block) = manager.store().get(PoolId(0), &key) {
            manager.store_mut().drop_keys(PoolId(0), block);
        }
    }
    let (hit, ..) = visit(&mut manager, "b", &tokens);
    assert_eq!(hit, 0);
    assert_eq!(limits(&manager, HitLimit::WindowEvicted), 1);
    assert_eq!(limits(&manager, HitLimit::NoCheckpoint), 0);
    let states = manager.store().get(
        PoolId(1),
        &hybrid_blocks::Key { digest: *digests.last().unwrap(), group: GroupId(2) },
    );
    manager.store_mut().drop_keys(PoolId(1), states.unwrap());
    visit(&mut manager, "c", &tokens);
    assert_eq!(limits(&manager, HitLimit::NoCheckpoint), 1);
}

/// A prompt that waits: its handle, and its progress.
fn arrive(
    manager: &mut KvCacheManager<SlabStore>,
    id: &str,
    tokens: &[u8],
) -> (u64, RequestProgress) {
    let handle = manager.add(id);
    *manager.digests_mut(handle).unwrap() = digests(tokens);
    let num_tokens = tokens.len() as u32;
    let progress = RequestProgress {
        num_tokens,
        num_prompt: num_tokens,
        is_waiting: true,
        ..RequestProgress::default()
    };
    (handle, progress)
}

/// Schedules the next chunk of a prompt, whose hit is `computed`; returns where it ends.
fn schedule_chunk(
    manager: &mut KvCacheManager<SlabStore>,
    (handle, progress): (u64, RequestProgress),
    computed: Option<&hybrid_blocks::vllm::ComputedBlocks>,
) -> u32 {
    let start = progress.num_computed + computed.map_or(0, |hit| hit.num_tokens);
    let end = manager.next_boundary(handle, &progress, start, progress.num_prompt).unwrap();
    let args = AllocateArgs {
        num_new: end - start,
        num_new_computed: start - progress.num_computed,
        computed: computed.map(|hit| &hit.blocks[..]),
        ..AllocateArgs::default()
    };
    assert!(manager.allocate(handle, &progress, &args).unwrap().is_some());
    manager.take_disjoint_copies().unwrap();
    end
}

#[test]
fn a_request_that_is_looked_up_in_many_steps_counts_once() {
    let mut manager = small(40, 64);
    let prompt: Vec<u8> = (0..48).collect();
    let (handle, progress) = arrive(&mut manager, "waiting", &prompt);
    manager.start_step();
    for _ in 0..3 {
        manager.longest_usable_hit(handle, 47, &progress).unwrap();
    }
    let counted = |manager: &KvCacheManager<SlabStore>| manager.stats().limits.iter().sum::<u64>();
    assert_eq!(counted(&manager), 0, "it waits");
    let hit = manager.longest_usable_hit(handle, 47, &progress).unwrap();
    schedule_chunk(&mut manager, (handle, progress), Some(&hit));
    assert_eq!(counted(&manager), 1);
}

#[test]
fn what_a_step_entered_that_its_request_was_taken_out_of_is_found_no_more() {
    let mut manager = small(40, 64);
    let prompt: Vec<u8> = (0..48).collect();
    let (handle, mut progress) = arrive(&mut manager, "victim", &prompt);
    manager.start_step();
    let end = schedule_chunk(&mut manager, (handle, progress), None);
    assert!(end < 48, "a checkpoint stands before the prompt's end");
    // The second chunk is scheduled, and its request preempted, in one step.
    (progress.num_computed, progress.is_waiting) = (end, false);
    manager.start_step();
    schedule_chunk(&mut manager, (handle, progress), None);
    manager.settle(handle, &progress).unwrap();
    manager.free(handle).unwrap();
    let digests = digests(&prompt);
    let key = |num_tokens: usize| hybrid_blocks::Key {
        digest: digests[num_tokens / 2 - 1],
        group: GroupId(0),
    };
    assert!(manager.store().get(PoolId(0), &key(end as usize)).is_some());
    for num_tokens in (end as usize + 2..=48).step_by(2) {
        assert_eq!(manager.store().get(PoolId(0), &key(num_tokens)), None, "{num_tokens} tokens");
    }
    manager.check_integrity().unwrap();
}

#[test]
fn only_who_is_scheduled_lets_others_wait() {
    let mut manager = small(40, 64);
    let prompt: Vec<u8> = (0..48).collect();
    let first = arrive(&mut manager, "first", &prompt);
    let second = arrive(&mut manager, "second", &prompt);
    manager.start_step();
    manager.next_boundary(first.0, &first.1, 0, 48).unwrap();
    assert!(!manager.hits_more_later(second.0, &second.1), "the first got no room yet");
    schedule_chunk(&mut manager, first, None);
    assert!(manager.hits_more_later(second.0, &second.1));
    assert!(!manager.hits_more_later(first.0, &first.1), "it computes itself");
    manager.start_step();
    assert!(!manager.hits_more_later(second.0, &second.1), "nobody computes the prompt any more");
}

#[test]
fn a_request_waits_for_what_saves_more_than_a_step() {
    let prompt: Vec<u8> = (0..48).collect();
    for (step_tokens, waits) in [(None, true), (Some(45), true), (Some(46), false)] {
        let policy = CheckpointPolicy {
            step_tokens,
            prompt_margins: Some([0].into()),
            ..CheckpointPolicy::default()
        };
        let mut manager = small_with(60, 64, policy);
        let [first, other] = ["first", "other"].map(|id| arrive(&mut manager, id, &prompt));
        manager.start_step();
        assert_eq!(schedule_chunk(&mut manager, first, None), 46);
        assert_eq!(manager.hits_more_later(other.0, &other.1), waits, "{step_tokens:?}");
    }
}

#[test]
fn nobody_waits_for_who_has_more_to_compute() {
    let mut manager = small(60, 64);
    let prompt: Vec<u8> = (0..60).collect();
    visit(&mut manager, "earlier", &prompt[..40]);
    // One computes the whole prompt, as it wants to know all log probabilities.
    let unread = arrive(&mut manager, "unread", &prompt);
    manager.start_step();
    let end = schedule_chunk(&mut manager, unread, None);
    let other = arrive(&mut manager, "other", &prompt);
    let hit = manager.longest_usable_hit(other.0, 59, &other.1).unwrap();
    assert!(0 < hit.num_tokens && hit.num_tokens < end, "{} of {end} tokens", hit.num_tokens);
    assert!(!manager.hits_more_later(other.0, &other.1), "it has fewer tokens to compute");
}

#[test]
fn with_a_drafter_prompts_must_be_alike_for_a_block_more() {
    let mut config = small_config(64, CheckpointPolicy::default());
    config.drops_eagle_checkpoint = true;
    let mut manager = KvCacheManager::new(SlabStore::new(60, &[4, 1]).unwrap(), config).unwrap();
    let prompt: Vec<u8> = (0..48).collect();
    let first = arrive(&mut manager, "first", &prompt);
    manager.start_step();
    let end = schedule_chunk(&mut manager, first, None) as usize;
    assert!(end + 2 <= 48, "a checkpoint stands before the prompt's last block");
    for (alike, waits) in [(end, false), (end + 1, false), (end + 2, true)] {
        let mut tokens = prompt.clone();
        tokens[alike..].fill(99);
        let other = arrive(&mut manager, "other", &tokens);
        assert_eq!(manager.hits_more_later(other.0, &other.1), waits, "{alike} tokens are alike");
    }
}

#[test]
fn while_memory_is_short_what_is_cached_beside_live_blocks_goes_first() {
    for is_short in [false, true] {
        // An idle slab with old content, one with a live block beside younger content, and a state.
        let mut store = SlabStore::new(4, &[4, 1]).unwrap();
        let mut fill = |number: u8, num_freed: usize| {
            let mut blocks = Vec::new();
            store.allocate(PoolId(0), 4, &mut blocks).unwrap();
            for (at, &block) in blocks.iter().enumerate() {
                let digest = digests(&[number, at as u8])[0];
                let key = hybrid_blocks::Key { digest, group: GroupId(0) };
                store.insert_key(PoolId(0), block, &key, 2);
            }
            store.free(PoolId(0), blocks[..num_freed].iter().copied()).unwrap();
            store.tick();
            blocks[0].0 / 4
        };
        let (old, young) = (fill(1, 4), fill(2, 3));
        store.allocate(PoolId(1), 1, &mut Vec::new()).unwrap();
        store.spend_slack(if is_short { Slack::First } else { Slack::ByOrder });
        let mut taken = Vec::new();
        store.allocate(PoolId(0), 5, &mut taken).unwrap();
        let slabs: Vec<u32> = taken.iter().map(|block| block.0 / 4).collect();
        let expected =
            if is_short { [young, young, young, old, old] } else { [old, old, old, old, young] };
        assert_eq!(slabs, expected);
        store.check_integrity().unwrap();
    }
}

fn free(manager: &mut KvCacheManager<SlabStore>, id: &str) {
    let handle = manager.find(id).unwrap();
    manager.free(handle).unwrap();
}

#[test]
fn memory_is_short_in_the_step_after_a_request_was_refused() {
    for is_refused in [false, true] {
        let mut manager = small(7, 32);
        assert!(compute(&mut manager, "old", &[1; 8], 0));
        free(&mut manager, "old");
        assert!(compute(&mut manager, "live", &[2; 2], 0));
        assert!(compute(&mut manager, "young", &[3; 6], 0));
        free(&mut manager, "young");
        let slab_of = |block: BlockId| block.0 / 4;
        let handle = manager.find("live").unwrap();
        let own = slab_of(manager.blocks(handle, GroupId(0))[0]);
        // The slab of old content is left, and three cached blocks beside the live one.
        manager.store_mut().allocate(PoolId(1), 3, &mut Vec::new()).unwrap();
        if is_refused {
            assert!(!compute(&mut manager, "late", &[4; 16], 0));
        }
        assert!(compute(&mut manager, "live", &[2; 4], 2));
        let grown = slab_of(manager.blocks(handle, GroupId(0))[1]);
        assert_eq!(grown == own, is_refused);
    }
}

#[test]
fn memory_is_short_while_slabs_with_live_blocks_have_more_room_than_the_others() {
    for is_scattered in [false, true] {
        let mut manager = small(7, 32);
        assert!(compute(&mut manager, "old", &[1; 8], 0));
        free(&mut manager, "old");
        for (at, start) in [2, 4].into_iter().enumerate() {
            assert!(compute(&mut manager, &format!("live {at}"), &[start; 2], 0));
            assert!(compute(&mut manager, "young", &[start + 1; 6], 0));
            free(&mut manager, "young");
        }
        if !is_scattered {
            free(&mut manager, "live 0");
        }
        // The slab of old content is left, and three cached blocks beside each live one.
        let num_left = manager.store().num_whole_slabs() - if is_scattered { 1 } else { 2 };
        manager.store_mut().allocate(PoolId(1), num_left, &mut Vec::new()).unwrap();
        assert_eq!(manager.store().is_scattered(), is_scattered);
        let num_whole = manager.store().num_whole_slabs();
        assert!(compute(&mut manager, "live 1", &[4; 4], 2));
        let num_started = num_whole - manager.store().num_whole_slabs();
        assert_eq!(num_started, u64::from(!is_scattered));
    }
}

/// Two prompts of 32 tokens, each at its checkpoint, with one slab left: the first keeps its state there.
/// Returns what both are.
fn fill_all_but_a_copy(manager: &mut KvCacheManager<SlabStore>) -> [(u64, RequestProgress); 2] {
    let mut running = [1, 2].map(|start| {
        let prompt: Vec<u8> = (0..32).map(|at| start * 40 + at).collect();
        arrive(manager, &start.to_string(), &prompt)
    });
    manager.start_step();
    for (handle, progress) in &mut running {
        progress.num_computed = schedule_chunk(manager, (*handle, *progress), None);
        progress.is_waiting = false;
    }
    manager.start_step();
    let num_whole = manager.store().num_whole_slabs();
    manager.store_mut().allocate(PoolId(1), num_whole - 1, &mut Vec::new()).unwrap();
    assert!(grow(manager, running[0], 2));
    running
}

fn with_a_copy_in_the_last_slab() -> (KvCacheManager<SlabStore>, [(u64, RequestProgress); 2]) {
    let mut manager = small(20, 64);
    let running = fill_all_but_a_copy(&mut manager);
    (manager, running)
}

/// Gives a running request room for more tokens, in the step that is under way.
fn grow(
    manager: &mut KvCacheManager<SlabStore>,
    (handle, progress): (u64, RequestProgress),
    num_new: u32,
) -> bool {
    let args = AllocateArgs { num_new, ..AllocateArgs::default() };
    manager.allocate(handle, &progress, &args).unwrap().is_some()
}

/// The state after a request's computed tokens, if others can resume from it.
fn checkpoint_of(
    manager: &KvCacheManager<SlabStore>,
    (handle, progress): (u64, RequestProgress),
) -> Option<BlockId> {
    let digest = manager.digests(handle)[(progress.num_computed / 2) as usize - 1];
    manager.store().get(PoolId(1), &hybrid_blocks::Key { digest, group: GroupId(1) })
}

#[test]
fn a_running_request_takes_the_room_of_a_copy_that_is_not_made_yet() {
    let (mut manager, running) = with_a_copy_in_the_last_slab();
    assert!(checkpoint_of(&manager, running[0]).is_some());
    assert!(grow(&mut manager, running[1], 10), "a slab of attention is needed");
    assert_eq!(checkpoint_of(&manager, running[0]), None);
    assert_eq!(manager.take_disjoint_copies().unwrap(), [], "nothing is left to copy");
    manager.start_step();
    for (handle, mut progress) in running {
        progress.num_computed += 2;
        manager.settle(handle, &progress).unwrap();
        manager.free(handle).unwrap();
    }
    manager.store().check_integrity().unwrap();
}

#[test]
fn copies_stay_where_their_room_would_not_do() {
    let (mut manager, running) = with_a_copy_in_the_last_slab();
    for _ in 0..3 {
        assert!(!grow(&mut manager, running[1], 30));
    }
    assert!(checkpoint_of(&manager, running[0]).is_some());
    assert_eq!(manager.stats().no_room, 0, "whether its own copy has room is not known yet");
    assert!(grow(&mut manager, running[1], 10));
    assert_eq!(manager.stats().no_room, 1);
}

#[test]
fn copies_stay_where_they_would_not_leave_to_others_what_is_kept_for_them() {
    let (mut manager, running) = with_a_copy_in_the_last_slab();
    let (handle, progress) = running[1];
    let asks = |num_new, withheld_blocks| AllocateArgs {
        num_new,
        withheld_blocks,
        ..AllocateArgs::default()
    };
    // There is room for the tokens, but not for more whole slabs beside them.
    assert_eq!(manager.allocate(handle, &progress, &asks(2, 4)).unwrap(), None);
    assert!(checkpoint_of(&manager, running[0]).is_some());
    assert!(manager.allocate(handle, &progress, &asks(2, 1)).unwrap().is_some());
    assert_eq!(checkpoint_of(&manager, running[0]), None);
}

#[test]
fn a_copy_that_is_given_up_counts_as_such_and_not_as_evicted() {
    let (mut manager, running) = with_a_copy_in_the_last_slab();
    assert!(grow(&mut manager, running[1], 10));
    manager.start_step();
    let stats = manager.stats();
    assert_eq!((stats.given_up, stats.evicted, stats.superseded), (1, 0, 0));
}

#[test]
fn a_copy_that_is_given_up_changes_no_other_step() {
    let mut manager = small(24, 64);
    let tokens: Vec<u8> = (200..218).collect();
    let (handle, mut progress) = arrive(&mut manager, "decodes", &tokens);
    progress.num_prompt = 16;
    manager.start_step();
    assert!(grow(&mut manager, (handle, progress), 16));
    (progress.num_computed, progress.num_tokens, progress.is_waiting) = (16, 17, false);
    manager.start_step();
    assert!(grow(&mut manager, (handle, progress), 1));
    let running = fill_all_but_a_copy(&mut manager);
    assert!(manager.is_noop(handle, &progress, 1, 0));
    let mut num_new = 0;
    while checkpoint_of(&manager, running[0]).is_some() {
        num_new += 2;
        assert!(grow(&mut manager, running[1], num_new));
    }
    assert!(manager.is_noop(handle, &progress, 1, 0));
}

#[test]
fn a_request_waits_for_one_other_only() {
    let mut manager = small(60, 64);
    let prompt: Vec<u8> = (0..48).collect();
    let late = arrive(&mut manager, "late", &prompt);
    let first = arrive(&mut manager, "first", &prompt);
    manager.start_step();
    schedule_chunk(&mut manager, first, None);
    assert!(manager.hits_more_later(late.0, &late.1));
    assert!(manager.hits_more_later(late.0, &late.1), "it is asked about again");
    manager.free(first.0).unwrap();
    let next = arrive(&mut manager, "next", &prompt);
    manager.start_step();
    schedule_chunk(&mut manager, next, None);
    assert!(!manager.hits_more_later(late.0, &late.1), "others may come for ever");
}

#[test]
fn a_session_that_cannot_grow_alone_is_told() {
    let groups = [0, 1]
        .map(|pool| GroupConfig { pool: PoolId(pool), ..GroupConfig::new(GroupKind::Full, 2) });
    let specs = vec![LookupGroup { groups: vec![GroupId(0), GroupId(1)], use_eagle: false }];
    let lookup = Lookup::Hybrid { specs, fine_grained: true };
    let config = ManagerConfig::new(groups.to_vec(), lookup, 2, 32, 32);
    // The longest request fills 4 slabs of the first pool and 8 of the second.
    let mut manager = KvCacheManager::new(SlabStore::new(13, &[4, 2]).unwrap(), config).unwrap();
    let session: Vec<u8> = (0..32).collect();
    let mut others = Vec::new();
    for end in (2..=16).step_by(2) {
        assert!(compute(&mut manager, "session", &session[..end], end as u32 - 2));
        manager.store_mut().allocate(PoolId(0), 3, &mut others).unwrap();
    }
    manager.store_mut().free(PoolId(0), others.into_iter()).unwrap();
    let handle = manager.find("session").unwrap();
    manager.pause(handle);
    assert!(!manager.is_stuck(handle), "it did not try");
    assert!(!compute(&mut manager, "session", &session, 16), "its blocks lie one in a slab");
    assert!(manager.is_stuck(handle));
    manager.free(handle).unwrap();
    assert!(!manager.is_stuck(handle));
    assert!(compute(&mut manager, "session", &session, 0));
    manager.check_integrity().unwrap();
}

#[test]
fn who_is_admitted_leaves_copies_that_are_not_made_yet() {
    let (mut manager, running) = with_a_copy_in_the_last_slab();
    let late = arrive(&mut manager, "late", &[7; 16]);
    assert!(!grow(&mut manager, late, 16));
    assert!(checkpoint_of(&manager, running[0]).is_some());
    assert_eq!(manager.take_disjoint_copies().unwrap().len(), 1);
}

#[test]
fn a_copy_that_another_request_goes_on_from_is_made() {
    let (mut manager, running) = with_a_copy_in_the_last_slab();
    let copy = checkpoint_of(&manager, running[0]).unwrap();
    manager.store_mut().touch(PoolId(1), copy).unwrap();
    assert!(!grow(&mut manager, running[1], 10));
    assert_eq!(checkpoint_of(&manager, running[0]), Some(copy));
    assert_eq!(manager.take_disjoint_copies().unwrap().len(), 1);
}

#[test]
fn a_block_that_no_table_names_is_told() {
    let mut manager = small(20, 64);
    assert!(compute(&mut manager, "a", &[1; 10], 0));
    manager.check_integrity().unwrap();
    manager.store_mut().allocate(PoolId(1), 1, &mut Vec::new()).unwrap();
    let told = manager.check_integrity().unwrap_err();
    assert!(told.contains("of pool 1 is in 0 tables and copies but has 1 owners"), "{told}");
}

#[test]
fn slabs_that_attention_starts_on_are_named_by_slab_or_by_block() {
    for by_block in [false, true] {
        let store = SlabStore::new(20, &[4, 1]).unwrap();
        let mut config = small_config(64, CheckpointPolicy::default());
        config.groups[0].zeroes_new_blocks = true;
        let mut manager = KvCacheManager::new(store, config).unwrap();
        assert!(compute(&mut manager, "a", &[1; 10], 0));
        let handle = manager.find("a").unwrap();
        let blocks = manager.blocks(handle, GroupId(0)).to_vec();
        assert_eq!(blocks.len(), 5);
        let mut slabs: Vec<u32> = blocks.iter().map(|block| block.0 / 4).collect();
        slabs.sort_unstable();
        slabs.dedup();
        let ids = |slab: u32| if by_block { slab * 4..(slab + 1) * 4 } else { slab..slab + 1 };
        let expected: Vec<u32> = slabs.into_iter().flat_map(ids).collect();
        assert_eq!(manager.take_started_slabs(by_block), expected, "states are not zeroed");
        assert!(manager.take_started_slabs(by_block).is_empty());
    }
}

#[test]
fn what_was_entered_behind_the_first_token_alone_is_found_no_more() {
    let mut manager = small(40, 64);
    let prompt: Vec<u8> = (0..48).collect();
    let (handle, mut progress) = arrive(&mut manager, "victim", &prompt);
    manager.start_step();
    assert!(grow(&mut manager, (handle, progress), 1));
    (progress.num_computed, progress.is_waiting) = (1, false);
    manager.start_step();
    assert!(grow(&mut manager, (handle, progress), 40));
    let key = hybrid_blocks::Key { digest: digests(&prompt)[0], group: GroupId(0) };
    assert!(manager.store().get(PoolId(0), &key).is_some());
    manager.settle(handle, &progress).unwrap();
    assert_eq!(manager.store().get(PoolId(0), &key), None);
}

/// A request of 48 tokens that ends with `num_computed` of them computed, and whether it is running then.
/// Returns whether its state can be gone on from.
fn keeps_its_state(num_computed: u32, num_tokens: u32, is_running: bool) -> bool {
    let mut manager = small(40, 64);
    let tokens: Vec<u8> = (0..48).collect();
    let (handle, mut progress) = arrive(&mut manager, "a", &tokens);
    manager.start_step();
    if is_running {
        assert!(grow(&mut manager, (handle, progress), 48));
        manager.start_step();
    }
    progress.num_computed = num_computed;
    progress.num_tokens = num_tokens;
    manager.settle(handle, &progress).unwrap();
    manager.free(handle).unwrap();
    manager.check_integrity().unwrap();
    let digest = digests(&tokens)[(num_computed / 2) as usize - 1];
    let key = hybrid_blocks::Key { digest, group: GroupId(1) };
    assert_eq!(manager.stats().kept, u64::from(manager.store().get(PoolId(1), &key).is_some()));
    manager.stats().kept > 0
}

#[test]
fn a_state_is_kept_where_its_tokens_are_those_of_its_request() {
    assert!(keeps_its_state(48, 48, true), "all tokens are computed");
    assert!(keeps_its_state(48, 50, true), "the last token is not");
    assert!(!keeps_its_state(48, 47, true), "it took in a token that was dropped");
    assert!(!keeps_its_state(47, 48, true), "it stands inside a block");
    assert!(!keeps_its_state(48, 48, false), "it has no state");
}

#[test]
fn a_request_keeps_the_state_that_was_loaded_once_its_load_has_ended() {
    for has_ended in [false, true] {
        let mut manager = small(40, 64);
        let tokens: Vec<u8> = (0..50).collect();
        let (handle, mut progress) = arrive(&mut manager, "a", &tokens);
        manager.start_step();
        let args = AllocateArgs { num_external: 48, delay_commit: true, ..AllocateArgs::default() };
        assert!(manager.allocate(handle, &progress, &args).unwrap().is_some());
        progress.num_computed = 48;
        if has_ended {
            manager.commit(handle, &progress, 48).unwrap();
        }
        manager.settle(handle, &progress).unwrap();
        manager.free(handle).unwrap();
        let digest = digests(&tokens)[23];
        let is_found = [0, 1].map(|group| {
            let key = hybrid_blocks::Key { digest, group: GroupId(group) };
            manager.store().get(PoolId(group), &key).is_some()
        });
        assert_eq!(is_found, [has_ended; 2]);
    }
}

#[test]
fn where_prompts_end_they_leave_checkpoints_only_if_asked_to() {
    for prompt_end in [false, true] {
        let policy = CheckpointPolicy { prompt_end, ..CheckpointPolicy::default() };
        let mut manager = small_with(200, 1024, policy);
        let prompt: Vec<u8> = (0..1000).map(|at: u32| (at * at / 7) as u8).collect();
        visit(&mut manager, "a", &prompt);
        assert_eq!(manager.stats().prompt > 0, prompt_end);
    }
}

#[test]
fn what_serves_only_the_same_prompt_goes_first() {
    let mut manager = small(200, 1024);
    let prompt: Vec<u8> = (0..1000).map(|at: u32| (at * at / 7) as u8).collect();
    let (_, ends, _) = visit(&mut manager, "a", &prompt);
    let key = |num_tokens: u32| hybrid_blocks::Key {
        digest: digests(&prompt)[(num_tokens / 2) as usize - 1],
        group: GroupId(1),
    };
    let left = |manager: &KvCacheManager<SlabStore>| -> Vec<u32> {
        let ends = ends.iter().copied();
        ends.filter(|&end| manager.store().get(PoolId(1), &key(end)).is_some()).collect()
    };
    let all = left(&manager);
    assert!(all.len() > 1, "{all:?}");
    let mut taken = Vec::new();
    while left(&manager) == all {
        manager.store_mut().allocate(PoolId(1), 1, &mut taken).unwrap();
    }
    assert_eq!(left(&manager), all[..all.len() - 1], "the last one went");
}

#[test]
fn one_copy_follows_a_generation_and_one_that_somebody_goes_on_from_stays() {
    for is_used in [false, true] {
        let policy = CheckpointPolicy { follow_every: 4, ..CheckpointPolicy::default() };
        let mut manager = small_with(60, 64, policy);
        let tokens: Vec<u8> = (0..32).collect();
        let (handle, mut progress) = arrive(&mut manager, "a", &tokens);
        progress.num_prompt = 16;
        manager.start_step();
        assert!(grow(&mut manager, (handle, progress), 16));
        let mut kept = Vec::new();
        for at in 16..32 {
            (progress.num_computed, progress.is_waiting) = (at, false);
            manager.start_step();
            assert!(grow(&mut manager, (handle, progress), 1));
            manager.take_disjoint_copies().unwrap();
            let copy = checkpoint_of(&manager, (handle, progress));
            if let Some(copy) = copy.filter(|_| at > 16 && at % 4 == 0) {
                kept.push(progress);
                if is_used && kept.len() == 1 {
                    manager.store_mut().touch(PoolId(1), copy).unwrap();
                }
            }
        }
        let at: Vec<u32> = kept.iter().map(|it| it.num_computed).collect();
        assert_eq!(at, [20, 24, 28]);
        let mut there = kept.iter().map(|&it| checkpoint_of(&manager, (handle, it)).is_some());
        assert_eq!([(); 3].map(|()| there.next()), [Some(is_used), Some(false), Some(true)]);
        assert_eq!(manager.stats().followed, 3);
        assert_eq!(manager.stats().superseded, 2 - u64::from(is_used));
        manager.store().check_integrity().unwrap();
    }
}
