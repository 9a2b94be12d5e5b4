//! A hint for a session counts whenever it comes, and for no other session.

use hybrid_blocks::{
    BlockId, BlockManager, BlockStore, Config, EvictionOrder, GroupId, GroupKind, GroupSpec, Hint,
    PoolId, Store,
};

const ATTENTION: PoolId = PoolId(0);
const STATES: PoolId = PoolId(1);

/// Attention blocks of 16 tokens, 4 to a slab, and states of a whole slab.
fn manager(num_slabs: u32) -> BlockManager {
    let groups = vec![
        GroupSpec { kind: GroupKind::Full, block_size: 16, pool: ATTENTION },
        GroupSpec { kind: GroupKind::State { slots: 1 }, block_size: 16, pool: STATES },
    ];
    let store = BlockStore::shared(num_slabs, &[4, 1]).unwrap();
    BlockManager::new(store, Config::new(groups, 16)).unwrap()
}

/// Tokens that only `number` has, behind `shared` ones that all have.
fn prompt(number: i64, shared: i64, len: i64) -> Vec<i64> {
    (0..len).map(|at| if at < shared { at } else { number * 1_000_000 + at }).collect()
}

fn start(manager: &mut BlockManager, session: &str, tokens: &[i64]) -> u64 {
    let handle = manager.add_prompt(session, tokens, &[]).unwrap();
    manager.set_session(handle, Some(session), Hint::None).unwrap();
    let mut at = manager.match_prefix(handle).unwrap().num_tokens;
    while at < tokens.len() as u32 {
        let count = manager.chunk(handle, at, tokens.len() as u32 - at).unwrap();
        assert_eq!(manager.allocate(&[handle], &[count], 0).unwrap(), 1);
        manager.take_copies().unwrap();
        manager.advance(&[handle], &[count]).unwrap();
        manager.tick();
        at += count;
    }
    handle
}

/// A request of a session from arrival to end.
fn serve(manager: &mut BlockManager, session: &str, tokens: &[i64]) {
    let handle = start(manager, session, tokens);
    manager.free(&[handle]).unwrap();
    manager.tick();
}

fn hit(manager: &mut BlockManager, tokens: &[i64]) -> u32 {
    let handle = manager.add_prompt("probe", tokens, &[]).unwrap();
    let hit = manager.match_prefix(handle).unwrap().num_tokens;
    manager.free(&[handle]).unwrap();
    hit
}

fn priorities(manager: &BlockManager) -> Vec<u64> {
    let store = manager.store();
    let of = |pool| {
        (0..store.pool(pool).num_ids()).map(move |block| store.priority(pool, BlockId(block)))
    };
    of(ATTENTION).chain(of(STATES)).collect()
}

#[test]
fn a_session_said_to_be_over_goes_before_one_that_ended_earlier_and_goes_on() {
    for late in [false, true] {
        let mut manager = manager(28);
        let prompts = [1, 2].map(|number| prompt(number, 0, 512));
        for (session, tokens) in ["first", "second"].into_iter().zip(&prompts) {
            serve(&mut manager, session, tokens);
        }
        if late {
            assert!(manager.set_session_hint("first", Hint::GoingOn));
            assert!(manager.set_session_hint("second", Hint::Done));
            manager.check_integrity().unwrap();
        }
        serve(&mut manager, "third", &prompt(3, 0, 512));
        let hits = prompts.each_ref().map(|tokens| hit(&mut manager, tokens));
        let [kept, lost] = if late { hits } else { [hits[1], hits[0]] };
        assert!(kept > 300 && lost < 100, "{late}: {hits:?}");
    }
}

#[test]
fn a_hint_after_the_end_gives_the_priorities_that_it_would_have_given_before() {
    let hints = [Hint::Paused, Hint::Done, Hint::GoingOn, Hint::Compacted, Hint::None];
    let served = |late: bool| {
        let mut manager = manager(400);
        for turn in 0..3 {
            for (number, &hint) in (0i64..).zip(&hints) {
                let session = format!("session {number}");
                let tokens = prompt(number, 0, 200 + 100 * turn);
                let handle = start(&mut manager, &session, &tokens);
                if !late {
                    manager.set_hint(handle, hint).unwrap();
                }
                manager.free(&[handle]).unwrap();
                if late {
                    // What was said before does not count.
                    assert!(manager.set_session_hint(&session, Hint::GoingOn));
                    assert!(manager.set_session_hint(&session, hint));
                }
                manager.tick();
                manager.check_integrity().unwrap();
            }
        }
        priorities(&manager)
    };
    assert_eq!(served(true), served(false));
}

#[test]
fn a_hint_counts_for_the_running_request_of_a_session_first() {
    let [mut by_handle, mut by_session] = [manager(60), manager(60)];
    for manager in [&mut by_handle, &mut by_session] {
        serve(manager, "session", &prompt(1, 0, 100));
        let before = priorities(manager);
        assert!(manager.set_session_hint("session", Hint::None));
        assert_eq!(priorities(manager), before, "nothing new was said");
    }
    let tokens = prompt(1, 0, 300);
    let handle = start(&mut by_handle, "session", &tokens);
    by_handle.set_hint(handle, Hint::Paused).unwrap();
    let other = start(&mut by_session, "session", &tokens);
    assert!(by_session.set_session_hint("session", Hint::Paused));
    by_handle.free(&[handle]).unwrap();
    by_session.free(&[other]).unwrap();
    assert_eq!(priorities(&by_handle), priorities(&by_session));
}

#[test]
fn what_another_session_shares_keeps_its_priority() {
    let mut manager = manager(100);
    serve(&mut manager, "first", &prompt(1, 160, 320));
    serve(&mut manager, "second", &prompt(2, 160, 320));
    let blocks = |manager: &mut BlockManager, session: &str, tokens: &[i64]| {
        let handle = start(manager, session, tokens);
        let blocks = manager.blocks(handle, GroupId(0)).unwrap().to_vec();
        manager.free(&[handle]).unwrap();
        blocks
    };
    let shared = blocks(&mut manager, "third", &prompt(3, 160, 320));
    let priority =
        |manager: &BlockManager, at: usize| manager.store().priority(ATTENTION, shared[at]);
    let before = [0, 12].map(|at| priority(&manager, at));
    assert!(manager.set_session_hint("third", Hint::Done));
    let after = [0, 12].map(|at| priority(&manager, at));
    assert!(after[0] >= before[0].min(before[1]) && after[1] < before[1], "{before:?} {after:?}");
    let kept = priority(&manager, 0);
    for session in ["first", "second"] {
        assert!(manager.set_session_hint(session, Hint::Compacted));
        assert_eq!(priority(&manager, 0), kept, "{session}");
    }
}

#[test]
fn a_session_that_is_not_known_and_a_policy_that_does_not_listen_change_nothing() {
    let mut manager = manager(60);
    assert!(!manager.set_session_hint("nobody", Hint::Done));
    serve(&mut manager, "session", &prompt(1, 0, 100));
    manager.reset().unwrap();
    assert!(!manager.set_session_hint("session", Hint::Done), "its content is gone");

    let groups = vec![GroupSpec { kind: GroupKind::Full, block_size: 16, pool: ATTENTION }];
    let store = BlockStore::fixed(64).unwrap();
    let mut by_age = BlockManager::new(store, Config::new(groups, 16)).unwrap();
    let handle = start(&mut by_age, "session", &prompt(1, 0, 100));
    assert!(by_age.set_session_hint("session", Hint::Done), "it runs");
    by_age.free(&[handle]).unwrap();
    assert!(!by_age.set_session_hint("session", Hint::Done));
    assert_eq!(hit(&mut by_age, &prompt(1, 0, 100)), 96);
}
