//! vLLM's rules over slabs: a hint for a session decides what is evicted next, of its own content
//! alone. Without a hint nothing changes, and in a fixed store nothing ever does.

use hybrid_blocks::placement::Lengths;
use hybrid_blocks::vllm::{
    AllocateArgs, GroupConfig, KvCacheManager, Lookup, LookupGroup, ManagerConfig, RequestProgress,
};
use hybrid_blocks::{
    CheckpointPolicy, Digest, EvictionOrder, FixedStore, GroupId, GroupKind, Hint, Key, PoolId,
    SlabStore, Store,
};
use proptest::prelude::*;

/// Tokens of an attention block.
const BLOCK: u32 = 4;
const MAX_LEN: u32 = 256;

/// Attention blocks of 4 tokens, 8 to a slab, and states of a whole slab.
fn manager(num_slabs: u32) -> KvCacheManager<SlabStore> {
    let state = GroupKind::MambaAligned {
        num_speculative: 0,
        checkpoint_alignment: None,
        has_checkpoint_blocks: false,
    };
    let groups = vec![
        GroupConfig::new(GroupKind::Full, BLOCK),
        GroupConfig { pool: PoolId(1), ..GroupConfig::new(state, MAX_LEN) },
    ];
    let specs = [0, 1].map(|group| LookupGroup { groups: vec![GroupId(group)], use_eagle: false });
    let lookup = Lookup::Hybrid { specs: specs.to_vec(), fine_grained: true };
    // A checkpoint at the end of each prompt, whatever was learned.
    let policy = CheckpointPolicy::default();
    let config = ManagerConfig {
        checkpoints: Some(CheckpointPolicy { prompt_margins: Some(Lengths::from([0])), ..policy }),
        ..ManagerConfig::new(groups, lookup, BLOCK, MAX_LEN, MAX_LEN)
    };
    KvCacheManager::new(SlabStore::new(num_slabs, &[8, 1]).unwrap(), config).unwrap()
}

fn digests(tokens: &[u32]) -> Vec<Digest> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let step =
        |hash: u64, token: &u32| (hash ^ (u64::from(*token) + 1)).wrapping_mul(0x1_0000_01b3);
    let blocks = tokens.chunks_exact(BLOCK as usize);
    let of = blocks.map(|block| {
        hash = block.iter().fold(hash, step);
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        Digest::from(bytes)
    });
    of.collect()
}

/// Tokens that only `number` has, behind `shared` ones that all have.
fn prompt(number: u32, shared: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| if at < shared { at } else { number * 1_000 + at }).collect()
}

/// A client's hint for a request: its session, and how that continues.
type Said<'a> = (Option<&'a str>, Hint);

const NOTHING: Said<'_> = (None, Hint::None);

/// A request from arrival to its end. Returns its hit, and the blocks that it held in the end.
fn serve<S: Store>(
    manager: &mut KvCacheManager<S>,
    id: &str,
    tokens: &[u32],
    (session, hint): Said<'_>,
) -> (u32, Vec<u32>) {
    let handle = start(manager, id, tokens, (session, hint));
    finish(manager, handle)
}

fn start<S: Store>(
    manager: &mut KvCacheManager<S>,
    id: &str,
    tokens: &[u32],
    (session, hint): Said<'_>,
) -> (u64, u32, RequestProgress) {
    let handle = manager.add(id);
    *manager.digests_mut(handle).unwrap() = digests(tokens);
    if session.is_some() || hint != Hint::None {
        manager.set_session(handle, session, hint).unwrap();
    }
    let num_tokens = tokens.len() as u32;
    let mut progress = RequestProgress {
        num_tokens,
        num_prompt: num_tokens,
        is_waiting: true,
        ..RequestProgress::default()
    };
    manager.start_step();
    let matched = if manager.store().is_slabbed() {
        manager.longest_usable_hit(handle, num_tokens - 1, &progress).unwrap()
    } else {
        manager.longest_hit(handle, num_tokens - 1)
    };
    let (mut at, mut computed) = (matched.num_tokens, Some(&matched.blocks[..]));
    while at < num_tokens {
        let end = manager.next_boundary(handle, &progress, at, num_tokens).unwrap();
        let args = AllocateArgs {
            num_new: end - at,
            num_new_computed: computed.map_or(0, |_| at),
            computed: computed.take(),
            ..AllocateArgs::default()
        };
        assert!(manager.allocate(handle, &progress, &args).unwrap().is_some(), "{id}: {at}");
        if manager.store().is_slabbed() {
            manager.take_disjoint_copies().unwrap();
        }
        manager.start_step();
        (progress.num_computed, progress.is_waiting) = (end, false);
        at = end;
    }
    (handle, matched.num_tokens, progress)
}

fn finish<S: Store>(
    manager: &mut KvCacheManager<S>,
    (handle, hit, progress): (u64, u32, RequestProgress),
) -> (u32, Vec<u32>) {
    let blocks = manager.blocks(handle, GroupId(0)).iter().map(|block| block.0).collect();
    manager.settle(handle, &progress).unwrap();
    manager.finish(handle).unwrap();
    manager.check_integrity().unwrap();
    (hit, blocks)
}

/// Tokens that the next turn of a session would find, which continues these.
fn hit(manager: &mut KvCacheManager<SlabStore>, tokens: &[u32]) -> u32 {
    let handle = manager.add("probe");
    *manager.digests_mut(handle).unwrap() = digests(tokens);
    let found = manager.longest_hit(handle, tokens.len() as u32).num_tokens;
    manager.free(handle).unwrap();
    found
}

/// Requests without a hint come and go.
fn others(manager: &mut KvCacheManager<SlabStore>, numbers: std::ops::Range<u32>) {
    for number in numbers {
        serve(manager, "other", &prompt(number, 0, 96), NOTHING);
    }
}

/// Two sessions of 96 tokens in a memory that is full, the first older than the second.
fn two_sessions(hints: [Hint; 2]) -> (KvCacheManager<SlabStore>, [Vec<u32>; 2]) {
    let mut manager = manager(60);
    others(&mut manager, 10..40);
    let prompts = [1, 2].map(|number| prompt(number, 0, 96));
    for ((session, tokens), hint) in ["first", "second"].into_iter().zip(&prompts).zip(hints) {
        serve(&mut manager, session, tokens, (Some(session), hint));
    }
    (manager, prompts)
}

/// Which of two sessions is left when others have taken the place of one.
fn left(manager: &mut KvCacheManager<SlabStore>, prompts: &[Vec<u32>; 2]) -> &'static str {
    for number in 100..200 {
        match prompts.each_ref().map(|tokens| hit(manager, tokens) > 0) {
            [true, true] => others(manager, number..number + 1),
            [true, false] => return "first",
            [false, true] => return "second",
            [false, false] => return "none",
        }
    }
    "both"
}

#[test]
fn a_session_that_is_over_goes_before_one_that_ended_earlier() {
    let (mut plain, prompts) = two_sessions([Hint::None; 2]);
    assert_eq!(left(&mut plain, &prompts), "second");
    for over in [Hint::Done, Hint::Compacted] {
        let (mut manager, prompts) = two_sessions([Hint::None, over]);
        assert_eq!(left(&mut manager, &prompts), "first", "{over:?}");
        let (mut manager, prompts) = two_sessions([Hint::None; 2]);
        assert!(manager.set_session_hint("second", over));
        manager.check_integrity().unwrap();
        assert_eq!(left(&mut manager, &prompts), "first", "{over:?}, said later");
    }
}

#[test]
fn a_request_that_never_runs_says_something_of_its_session() {
    let (mut manager, prompts) = two_sessions([Hint::None; 2]);
    let handle = manager.add("word");
    manager.set_session(handle, Some("second"), Hint::Done).unwrap();
    manager.finish(handle).unwrap();
    assert_eq!(manager.find("word"), None);
    assert_eq!(left(&mut manager, &prompts), "first");
}

#[test]
fn what_was_said_last_counts() {
    let (mut manager, prompts) = two_sessions([Hint::None, Hint::Done]);
    assert!(manager.set_session_hint("second", Hint::GoingOn));
    assert!(manager.set_session_hint("first", Hint::Done));
    manager.check_integrity().unwrap();
    assert_eq!(left(&mut manager, &prompts), "second");
    assert!(!manager.set_session_hint("nobody", Hint::Done));
}

#[test]
fn a_prefix_that_others_went_on_from_keeps_its_place() {
    // The other comes before it, while it runs, or after its end.
    let served = |before: bool, after: bool, hint: Hint| {
        let mut manager = manager(40);
        if before {
            serve(&mut manager, "other", &prompt(7, 32, 64), NOTHING);
        }
        let handle = start(&mut manager, "a", &prompt(1, 32, 96), (Some("a"), hint));
        if !before && !after {
            let late = start(&mut manager, "late", &prompt(8, 32, 64), (Some("late"), Hint::None));
            finish(&mut manager, late);
        }
        finish(&mut manager, handle);
        if after {
            // It computes the prefix again, or goes on from a checkpoint there.
            serve(&mut manager, "other", &prompt(7, 32, 64), NOTHING);
            serve(&mut manager, "other", &prompt(9, 32, 64), NOTHING);
        }
        assert!(manager.set_session_hint("a", Hint::Done));
        let store = manager.store();
        // Where two requests computed the same, the one that is kept longer counts.
        let priority = |digest: Digest| {
            let copies = store.prefix_index(PoolId(0)).blocks(&Key { digest, group: GroupId(0) });
            copies.map(|block| store.priority(PoolId(0), block)).max().unwrap()
        };
        digests(&prompt(1, 32, 96)).into_iter().map(priority).collect::<Vec<u64>>()
    };
    for (before, after) in [(true, false), (false, false), (false, true)] {
        for hint in [Hint::None, Hint::Paused] {
            let priorities = served(before, after, hint);
            // Blocks 8 and on are its own.
            let (shared, own) = priorities.split_at(8);
            assert!(
                own.iter().max() < shared.iter().min(),
                "{before} {after} {hint:?}: {priorities:?}"
            );
        }
    }
}

#[test]
fn of_a_session_that_is_over_the_last_block_goes_first() {
    let mut manager = manager(12);
    let tokens = prompt(1, 0, 96);
    serve(&mut manager, "a", &tokens, (Some("a"), Hint::None));
    assert!(manager.set_session_hint("a", Hint::Done));
    let keys = digests(&tokens).into_iter().map(|digest| Key { digest, group: GroupId(0) });
    let keys: Vec<_> = keys.collect();
    let (mut taken, mut lengths) = (Vec::new(), Vec::new());
    while lengths.last() != Some(&0) {
        manager.store_mut().allocate(PoolId(0), 1, &mut taken).unwrap();
        let is_left = |key: &&Key| manager.store().get(PoolId(0), key).is_some();
        lengths.push(keys.iter().take_while(is_left).count());
        assert_eq!(lengths.last(), Some(&keys.iter().filter(is_left).count()));
    }
    lengths.dedup();
    assert!(lengths.len() > 8, "{lengths:?}");
}

#[test]
fn a_request_that_is_preempted_is_not_over_whatever_is_said_of_it() {
    let left = |hint| {
        let mut manager = manager(60);
        others(&mut manager, 10..40);
        let tokens = prompt(1, 0, 96);
        let (handle, _, progress) = start(&mut manager, "a", &tokens, (Some("a"), hint));
        manager.settle(handle, &progress).unwrap();
        manager.free(handle).unwrap();
        let mut num_others = 0;
        while hit(&mut manager, &tokens) > 0 {
            others(&mut manager, 100 + num_others..101 + num_others);
            num_others += 1;
        }
        num_others
    };
    assert_eq!(left(Hint::Done), left(Hint::None));
}

#[test]
fn a_session_that_goes_on_outlives_others_as_often_as_it_is_likelier_to() {
    let lives = |hint| {
        let mut manager = manager(120);
        let tokens = prompt(1, 0, 96);
        others(&mut manager, 10..60);
        serve(&mut manager, "session", &tokens, (Some("session"), hint));
        let mut num_others = 0;
        while hit(&mut manager, &tokens) > 0 {
            others(&mut manager, 100 + num_others..101 + num_others);
            num_others += 1;
            assert!(num_others < 300, "it is kept for ever");
        }
        num_others
    };
    let plain = lives(Hint::None);
    assert!(plain > 4, "{plain}");
    for hint in [Hint::GoingOn, Hint::Paused] {
        let kept = lives(hint);
        assert!(kept > 2 * plain && kept < 5 * plain, "{hint:?}: {kept} and {plain}");
    }
}

/// Tokens found by 600 turns of conversations; half have another turn, after some others. A hint
/// tells of each turn whether there is one, wrongly in one of `wrong` cases.
fn tokens_found(num_slabs: u32, is_told: bool, wrong: u32) -> u32 {
    let mut manager = manager(num_slabs);
    let (mut random, mut coming) = (7_u32, Vec::<(u32, u32, u32)>::new());
    let mut draw = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % below
    };
    let mut found = 0;
    for number in 1..600 {
        let due = coming.iter().position(|&(at, ..)| at <= number);
        let (_, session, turn) = due.map_or((0, number, 0), |at| coming.swap_remove(at));
        let goes_on = draw(2) == 0 && turn < 4;
        let hint = if goes_on == (draw(wrong) > 0) { Hint::GoingOn } else { Hint::Done };
        if goes_on {
            coming.push((number + 8 + draw(16), session, turn + 1));
        }
        let tokens = prompt(session, 16, 64 + 32 * turn);
        let name = session.to_string();
        let said = if is_told { (Some(&*name), hint) } else { NOTHING };
        found += serve(&mut manager, "turn", &tokens, said).0;
    }
    found
}

#[test]
fn hints_that_are_right_in_four_of_five_cases_save_tokens() {
    let [plain, told, lied] =
        [(false, 5), (true, 5), (true, 1)].map(|(is_told, wrong)| tokens_found(60, is_told, wrong));
    assert!(told > plain * 13 / 10, "{told} and {plain}");
    assert!(lied > plain * 9 / 10, "{lied} and {plain}: wrong hints are believed no more");
}

#[test]
fn a_hint_that_turns_out_wrong_is_believed_no_more() {
    let mut manager = manager(400);
    let tokens = |number: u32, turn: u32| prompt(number, 0, 24 + 8 * turn);
    for number in 0..60 {
        for turn in 0..3 {
            let session = number.to_string();
            serve(&mut manager, "turn", &tokens(number, turn), (Some(&session), Hint::Done));
        }
        others(&mut manager, 1_000 + number..1_001 + number);
    }
    let (_, blocks) = serve(&mut manager, "last", &tokens(70, 1), (Some("70"), Hint::Done));
    let order = manager.store().free_order(PoolId(0));
    let place = order.iter().position(|block| block.0 == blocks[0]).unwrap();
    assert!(place > order.len() / 2, "{place} of {}", order.len());
}

/// An event: a turn of one of some sessions, with a hint or without.
fn turns() -> impl Strategy<Value = Vec<(u32, u32, usize)>> {
    prop::collection::vec((0u32..6, 3u32..30, 0usize..5), 1..60)
}

/// Serves turns. Returns their hits and blocks.
fn life<S: Store>(
    manager: &mut KvCacheManager<S>,
    turns: &[(u32, u32, usize)],
    said: impl Fn(&str, Hint) -> (Option<String>, Hint),
) -> Vec<(u32, Vec<u32>)> {
    let turn = |&(session, num_blocks, hint): &(u32, u32, usize)| {
        let tokens = prompt(session, 16, num_blocks * BLOCK);
        let (session, hint) = said(&session.to_string(), Hint::ALL[hint]);
        serve(manager, "turn", &tokens, (session.as_deref(), hint))
    };
    turns.iter().map(turn).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn without_a_hint_nothing_changes(turns in turns()) {
        let plain = life(&mut manager(24), &turns, |_, _| (None, Hint::None));
        let named = life(&mut manager(24), &turns, |name, _| (Some(name.to_owned()), Hint::None));
        prop_assert_eq!(plain, named);
    }

    #[test]
    fn in_a_fixed_store_no_hint_changes_anything(turns in turns()) {
        let fixed = || {
            let groups = vec![GroupConfig::new(GroupKind::Full, BLOCK)];
            let lookup = Lookup::Unitary { use_eagle: false };
            let config = ManagerConfig::new(groups, lookup, BLOCK, BLOCK, MAX_LEN);
            KvCacheManager::new(FixedStore::new(40).unwrap(), config).unwrap()
        };
        let plain = life(&mut fixed(), &turns, |_, _| (None, Hint::None));
        let mut heard = fixed();
        let told = life(&mut heard, &turns, |name, hint| (Some(name.to_owned()), hint));
        prop_assert_eq!(plain, told);
        prop_assert!(!heard.has_sessions());
    }

    #[test]
    fn whatever_is_said_the_books_are_right(turns in turns()) {
        let mut manager = manager(24);
        life(&mut manager, &turns, |name, hint| (Some(name.to_owned()), hint));
        for (session, _, hint) in turns {
            manager.set_session_hint(&session.to_string(), Hint::ALL[hint]);
            manager.check_integrity().unwrap();
        }
    }
}
