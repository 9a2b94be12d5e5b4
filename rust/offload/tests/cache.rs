//! `HostCache`: chunks that requests store a few at a time end up in the right units.

use std::collections::HashMap;

use hybrid_blocks::{BlockId, Digest, GroupId, GroupKind, Key};
use hybrid_blocks_offload::host::{HostCache, Presence, RequestId};
use hybrid_blocks_offload::plan::{Load, OffloadGroup, Previous, Tier};
use proptest::prelude::*;

const ATTENTION: u32 = 0;
const STATE: u32 = 1;
const WINDOW: u32 = 2;
const CHUNK: u32 = 16;
const PAGE: u64 = 4096;

fn cache(num_pages: u64) -> HostCache {
    let kinds =
        [GroupKind::Full, GroupKind::State { slots: 1 }, GroupKind::sliding_window(2 * CHUNK)];
    let mut groups = kinds.map(|kind| OffloadGroup {
        kind,
        chunk_tokens: CHUNK,
        chunk_bytes: 0,
        use_eagle: false,
    });
    for (group, bytes) in groups.iter_mut().zip([PAGE, 2 * PAGE, PAGE]) {
        group.chunk_bytes = bytes;
    }
    HostCache::new(num_pages * PAGE, &groups, CHUNK).expect("it fits")
}

/// Chunk `at` of a group in conversation `chat`, and its tokens.
fn chunk(group: u32, chat: u8, at: u32) -> (Key, u32) {
    let mut bytes = [chat; 32];
    bytes[..4].copy_from_slice(&at.to_le_bytes());
    bytes[4] = chat;
    (Key { digest: Digest::from(bytes), group: GroupId(group) }, (at + 1) * CHUNK)
}

fn chunks(group: u32, chat: u8, len: u32) -> Vec<(Key, u32)> {
    (0..len).map(|at| chunk(group, chat, at)).collect()
}

fn store(cache: &mut HostCache, request: RequestId, chunks: &[(Key, u32)]) -> usize {
    let placements = cache.begin_store(request, chunks).expect("there is room");
    let keys: Vec<_> = placements.iter().map(|it| it.key).collect();
    assert!(keys.iter().all(|key| cache.presence(key) == Presence::Pending));
    assert_eq!(cache.complete_store(&keys, true).len(), keys.len());
    assert!(keys.iter().all(|key| cache.presence(key) == Presence::Ready));
    keys.len()
}

/// Where keys lie, the first of every three passed over, as an earlier tier holds it.
fn one_by_one(cache: &HostCache, keys: &[Key]) -> Vec<Option<BlockId>> {
    let find = |(at, key)| if at % 3 == 0 { None } else { cache.find(key, Previous::default()) };
    keys.iter().enumerate().map(find).collect()
}

/// As [`one_by_one`], in one call; the row is longer than what is looked at together.
fn in_a_row(cache: &HostCache, keys: &[Key]) -> Vec<Option<BlockId>> {
    const HERE: u8 = 1;
    let load = |(at, &key): (usize, &Key)| {
        let tier = if at % 3 == 0 { 0 } else { Load::NOWHERE };
        Load { chunk: at as u32, key, tier, slot: BlockId::NULL }
    };
    let row: Vec<_> = keys.iter().enumerate().map(load).collect();
    let mut rows = row.repeat(100);
    let num_found = cache.find_row(&mut rows, HERE, &mut Previous::default());
    let slots = rows.iter().map(|load| (load.tier == HERE).then_some(load.slot));
    let slots: Vec<_> = slots.collect();
    assert_eq!(num_found, slots.iter().flatten().count());
    assert!(slots.chunks(keys.len()).all(|again| again == &slots[..keys.len()]));
    slots[..keys.len()].to_vec()
}

#[test]
fn a_state_and_its_attention_are_one_unit_whichever_comes_first() {
    for is_state_first in [false, true] {
        let mut cache = cache(64);
        for chat in [1, 2] {
            let request = cache.open_request(&chunks(ATTENTION, chat, 4));
            let mut parts = [chunks(ATTENTION, chat, 4), vec![chunk(STATE, chat, 3)]];
            if is_state_first {
                parts.reverse();
            }
            for part in &parts {
                store(&mut cache, request, part);
            }
            cache.close_request(request);
        }
        assert_eq!(cache.tier().num_units(), 2, "one unit a chat");
        assert_eq!(cache.tier().num_live_bytes(), 2 * 6 * PAGE);
    }
}

#[test]
fn a_turn_that_goes_on_is_a_child_and_shares_what_lies_before() {
    let mut cache = cache(64);
    let first = cache.open_request(&chunks(ATTENTION, 1, 4));
    store(&mut cache, first, &chunks(ATTENTION, 1, 4));
    store(&mut cache, first, &[chunk(STATE, 1, 3)]);
    // The next turn computes chunks 4 and 5 only.
    let second = cache.open_request(&chunks(ATTENTION, 1, 6));
    store(&mut cache, second, &chunks(ATTENTION, 1, 6)[4..]);
    store(&mut cache, second, &[chunk(STATE, 1, 5)]);
    assert_eq!(cache.tier().num_units(), 2);
    // A branch off its middle owns what it shares: 3 chunks are stored by the first and used by it.
    let third = cache.open_request(&chunks(ATTENTION, 1, 3));
    store(&mut cache, third, &[chunk(STATE, 1, 2)]);
    let digests: Vec<_> = chunks(ATTENTION, 1, 3).iter().map(|(key, _)| key.digest).collect();
    let plan = cache.planner().plan(&[&cache], &digests, 0, u32::MAX);
    assert_eq!(plan.num_tokens, 0, "no window was stored, so nothing can be restored");
    cache.tier().check_integrity().expect("books agree");
}

/// A turn of `chat`: a prompt of `len` chunks with a state at its end, and one chunk of an answer.
fn turn(cache: &mut HostCache, chat: u8, from: u32, len: u32) {
    let request = cache.open_request(&chunks(ATTENTION, chat, len));
    store(cache, request, &chunks(ATTENTION, chat, len)[from as usize..]);
    store(cache, request, &[chunk(STATE, chat, len - 1)]);
    store(cache, request, &[chunk(ATTENTION, chat, len)]);
    cache.close_request(request);
}

fn is_here(cache: &HostCache, chunk: (Key, u32)) -> bool {
    cache.presence(&chunk.0) == Presence::Ready
}

#[test]
fn attention_goes_from_its_end_in_whatever_order_it_was_stored() {
    for order in [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [0, 1, 7, 2, 6, 3, 5, 4]] {
        let mut cache = cache(8);
        let request = cache.open_request(&chunks(ATTENTION, 1, 8));
        for at in order {
            store(&mut cache, request, &[chunk(ATTENTION, 1, at)]);
        }
        let other = cache.open_request(&chunks(ATTENTION, 2, 2));
        store(&mut cache, other, &chunks(ATTENTION, 2, 2));
        let here: Vec<_> = (0..8).filter(|&at| is_here(&cache, chunk(ATTENTION, 1, at))).collect();
        assert_eq!(here, [0, 1, 2, 3, 4, 5], "stored as {order:?}");
        cache.tier().check_integrity().expect("books agree");
    }
}

#[test]
fn an_answer_without_a_state_leaves_no_state_behind() {
    let mut cache = cache(64);
    for chat in 0..40 {
        turn(&mut cache, chat, 0, 4);
    }
    let held = |group, at| (0..40).filter(|&it| is_here(&cache, chunk(group, it, at))).count();
    assert!(held(STATE, 3) >= 9, "{} of 10 chats that fit have their states", held(STATE, 3));
    assert!(held(ATTENTION, 4) <= 2, "{} answers that nothing leads to", held(ATTENTION, 4));
    cache.tier().check_integrity().expect("books agree");
}

#[test]
fn the_next_turn_leaves_the_state_before_the_answer_behind() {
    let mut cache = cache(64);
    turn(&mut cache, 1, 0, 4);
    turn(&mut cache, 1, 5, 8);
    // So much is stored that one end has to go.
    for chat in 2..8 {
        turn(&mut cache, chat, 0, 6);
    }
    assert!(!is_here(&cache, chunk(STATE, 1, 3)), "the next turn goes on from the second state");
    assert!(is_here(&cache, chunk(STATE, 1, 7)));
    assert!(chunks(ATTENTION, 1, 8).into_iter().all(|it| is_here(&cache, it)));
}

#[test]
fn a_state_that_was_gone_on_from_outlives_older_units() {
    let mut cache = cache(64);
    turn(&mut cache, 0, 0, 4);
    turn(&mut cache, 1, 0, 4);
    turn(&mut cache, 1, 5, 8);
    for chat in 2..20 {
        turn(&mut cache, chat, 0, 2);
        if !is_here(&cache, chunk(STATE, 0, 3)) {
            break;
        }
    }
    assert!(!is_here(&cache, chunk(STATE, 0, 3)), "the oldest goes first");
    assert!(is_here(&cache, chunk(STATE, 1, 3)), "a later prompt may leave the conversation there");
}

#[test]
fn what_a_running_request_stored_goes_after_all_else_where_it_is_written_back() {
    let mut cache = cache(64).written_back();
    let running = cache.open_request(&chunks(ATTENTION, 0, 4));
    store(&mut cache, running, &chunks(ATTENTION, 0, 4));
    store(&mut cache, running, &[chunk(STATE, 0, 3)]);
    for chat in 1..20 {
        turn(&mut cache, chat, 0, 4);
    }
    assert!(is_here(&cache, chunk(STATE, 0, 3)), "its answer may need it, and the disk");
    assert!(!is_here(&cache, chunk(STATE, 5, 3)), "stored later");
    cache.close_request(running);
    for chat in 20..40 {
        turn(&mut cache, chat, 0, 4);
    }
    assert!(!is_here(&cache, chunk(STATE, 0, 3)));
    cache.tier().check_integrity().expect("books agree");
}

#[test]
fn what_a_request_has_under_way_is_no_answer() {
    let mut cache = cache(64);
    let request = cache.open_request(&chunks(ATTENTION, 0, 8));
    for at in 0..8 {
        store(&mut cache, request, &[chunk(ATTENTION, 0, at)]);
        turn(&mut cache, 10 + at as u8, 0, 6);
    }
    assert!(chunks(ATTENTION, 0, 8).into_iter().all(|it| is_here(&cache, it)));
    store(&mut cache, request, &[chunk(STATE, 0, 7)]);
    cache.close_request(request);
    assert!(is_here(&cache, chunk(STATE, 0, 7)));
}

#[test]
fn a_copy_that_fails_is_never_found() {
    let mut cache = cache(64);
    let request = cache.open_request(&chunks(ATTENTION, 1, 4));
    let placements = cache.begin_store(request, &chunks(ATTENTION, 1, 4)).expect("there is room");
    let keys: Vec<_> = placements.iter().map(|it| it.key).collect();
    cache.complete_store(&keys[..1], true);
    cache.complete_store(&keys[1..], false);
    let found: Vec<_> = keys.iter().map(|key| cache.presence(key)).collect();
    assert_eq!(found[0], Presence::Ready);
    assert!(found[1..].iter().all(|it| *it == Presence::Absent));
    assert!(cache.begin_load(&keys).is_none());
    assert_eq!(cache.num_pending(), 0);
    cache.tier().check_integrity().expect("books agree");
}

#[test]
fn a_load_from_before_a_reset_frees_nothing_that_came_after_it() {
    let mut cache = cache(64);
    let stored = chunks(ATTENTION, 1, 4);
    let keys: Vec<_> = stored.iter().map(|(key, _)| *key).collect();
    let request = cache.open_request(&stored);
    store(&mut cache, request, &stored);
    cache.begin_load(&keys).expect("they are there");
    assert_eq!(cache.pinned_bytes(), 4 * PAGE);
    cache.reset().expect("it was made once");
    assert_eq!(cache.pinned_bytes(), 0);
    let request = cache.open_request(&stored);
    store(&mut cache, request, &stored);
    cache.complete_load(&keys);
    assert_eq!(cache.tier().num_live_bytes(), 4 * PAGE, "the second request's unit owns them");
    cache.tier().check_integrity().expect("books agree");
}

#[test]
fn what_two_loads_pin_is_counted_twice_and_once() {
    let mut cache = cache(64);
    let stored = [chunk(ATTENTION, 1, 0), chunk(STATE, 1, 0)];
    let keys = stored.map(|(key, _)| key);
    let request = cache.open_request(&stored);
    cache.begin_store(request, &stored).expect("there is room");
    assert_eq!(cache.pending_bytes(), 3 * PAGE);
    assert_eq!(cache.complete_store(&keys, true), keys);
    assert_eq!(cache.pending_bytes(), 0);
    cache.begin_load(&keys).expect("they are there");
    cache.begin_load(&keys[1..]).expect("it is there");
    assert_eq!((cache.pinned_bytes(), cache.pinned_chunk_bytes()), (5 * PAGE, 3 * PAGE));
    let num_releases = cache.num_releases();
    cache.complete_load(&keys);
    assert_eq!((cache.pinned_bytes(), cache.pinned_chunk_bytes()), (2 * PAGE, 2 * PAGE));
    assert!(cache.num_releases() > num_releases, "a store may have room now");
    cache.complete_load(&keys[1..]);
    assert_eq!((cache.pinned_bytes(), cache.pinned_chunk_bytes()), (0, 0));
}

/// The next action of a request.
#[derive(Clone, Debug)]
enum Op {
    /// Stores chunks of one group, `from..from + len` of a chat.
    Store {
        chat: u8,
        group: u32,
        from: u32,
        len: u32,
    },
    /// End the oldest store under way.
    Complete {
        succeeded: bool,
    },
    Load {
        chat: u8,
        group: u32,
        from: u32,
        len: u32,
    },
    Unload,
    Close {
        chat: u8,
    },
    Touch {
        chat: u8,
        len: u32,
    },
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..6u8, 0..=WINDOW, 0..12u32, 1..6u32);
    prop_oneof![
        6 => range().prop_map(|(chat, group, from, len)| Op::Store { chat, group, from, len }),
        6 => proptest::bool::weighted(0.9).prop_map(|succeeded| Op::Complete { succeeded }),
        3 => range().prop_map(|(chat, group, from, len)| Op::Load { chat, group, from, len }),
        3 => Just(Op::Unload),
        1 => (0..6u8).prop_map(|chat| Op::Close { chat }),
        1 => (0..6u8, 0..12u32).prop_map(|(chat, len)| Op::Touch { chat, len }),
        1 => Just(Op::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The bytes of the region are simulated: what is loaded is what was stored, slots in use never overlap.
    #[test]
    fn a_load_gets_what_was_stored(ops in proptest::collection::vec(op(), 1..120)) {
        let mut cache = cache(24);
        let mut region: HashMap<u64, Key> = HashMap::new();
        let mut requests: HashMap<u8, RequestId> = HashMap::new();
        let mut stores: Vec<Vec<Key>> = Vec::new();
        let mut loads: Vec<Vec<(Key, u64)>> = Vec::new();
        for op in ops {
            match op {
                Op::Store { chat, group, from, len } => {
                    let request = *requests.entry(chat).or_insert_with(|| {
                        cache.open_request(&chunks(ATTENTION, chat, 12))
                    });
                    let wanted = &chunks(group, chat, from + len)[from as usize..];
                    let Some(placements) = cache.begin_store(request, wanted) else { continue };
                    for placement in &placements {
                        let start = placement.bytes.start;
                        let in_use = loads.iter().flatten().any(|(_, offset)| *offset == start);
                        prop_assert!(!in_use, "a slot is stored over while it is loaded");
                        region.insert(start, placement.key);
                    }
                    stores.push(placements.iter().map(|it| it.key).collect());
                }
                Op::Complete { succeeded } if !stores.is_empty() => {
                    let keys = stores.remove(0);
                    prop_assert_eq!(cache.complete_store(&keys, succeeded), keys);
                }
                Op::Load { chat, group, from, len } => {
                    let keys: Vec<_> = chunks(group, chat, from + len)[from as usize..]
                        .iter().map(|(key, _)| *key).collect();
                    prop_assert_eq!(in_a_row(&cache, &keys), one_by_one(&cache, &keys));
                    let ready = keys.iter().all(|key| cache.presence(key) == Presence::Ready);
                    let bytes = cache.begin_load(&keys);
                    prop_assert_eq!(bytes.is_some(), ready);
                    let Some(bytes) = bytes else { continue };
                    for (key, range) in keys.iter().zip(&bytes) {
                        prop_assert_eq!(region.get(&range.start), Some(key), "other bytes");
                    }
                    loads.push(keys.into_iter().zip(bytes.iter().map(|it| it.start)).collect());
                }
                Op::Unload if !loads.is_empty() => {
                    let loaded = loads.remove(0);
                    for (key, offset) in &loaded {
                        prop_assert_eq!(region.get(offset), Some(key), "stored over in use");
                    }
                    let keys: Vec<_> = loaded.iter().map(|(key, _)| *key).collect();
                    cache.complete_load(&keys);
                }
                Op::Close { chat } => {
                    if let Some(request) = requests.remove(&chat) {
                        cache.close_request(request);
                    }
                }
                Op::Touch { chat, len } => {
                    let keys: Vec<_> =
                        chunks(ATTENTION, chat, len).iter().map(|(key, _)| *key).collect();
                    cache.touch(&keys, None);
                }
                Op::Reset => {
                    cache.reset().expect("it was made once");
                    requests.clear();
                    stores.clear();
                    loads.clear();
                    prop_assert_eq!(cache.tier().num_live_bytes(), 0);
                }
                _ => {}
            }
            prop_assert_eq!(cache.tier().check_integrity(), Ok(()));
            let pages = |key: &Key| if key.group == GroupId(STATE) { 2 * PAGE } else { PAGE };
            let pending: u64 = stores.iter().flatten().map(pages).sum();
            prop_assert_eq!(cache.pending_bytes(), pending);
            let pinned: u64 = loads.iter().flatten().map(|(key, _)| pages(key)).sum();
            prop_assert_eq!(cache.pinned_bytes(), pinned);
            let each: HashMap<_, _> = loads.iter().flatten().map(|(key, at)| (at, pages(key))).collect();
            prop_assert_eq!(cache.pinned_chunk_bytes(), each.values().sum::<u64>());
        }
        // Nothing leaks: once nothing is under way, everything can be evicted.
        for keys in stores {
            cache.complete_store(&keys, true);
        }
        for loaded in loads {
            let keys: Vec<_> = loaded.iter().map(|(key, _)| *key).collect();
            cache.complete_load(&keys);
        }
        let request = cache.open_request(&[]);
        for chat in 100..130u8 {
            let placements = cache.begin_store(request, &chunks(ATTENTION, chat, 8));
            let keys: Vec<_> = placements.into_iter().flatten().map(|it| it.key).collect();
            prop_assert_eq!(keys.len(), 8, "something is still pinned");
            cache.complete_store(&keys, true);
            cache.close_request(request);
        }
    }
}
