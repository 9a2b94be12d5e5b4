//! `HostCache`: what requests share has an owner on each way that leads over it.

use std::collections::{BTreeSet, HashMap};

use hybrid_blocks::{Digest, GroupId, GroupKind, Key, PoolId};
use hybrid_blocks_offload::host::{HostCache, Presence, RequestId};
use hybrid_blocks_offload::plan::OffloadGroup;
use proptest::prelude::*;

const ATTENTION: u32 = 0;
const STATE: u32 = 1;
const WINDOW: u32 = 2;
const CHUNK: u32 = 16;
const PAGE: u64 = 4096;
/// Chunks with which all prompts begin.
const SHARED: u32 = 3;

type Chunk = (Key, u32);

fn cache(num_pages: u64) -> HostCache {
    let kinds =
        [GroupKind::Full, GroupKind::State { slots: 1 }, GroupKind::sliding_window(3 * CHUNK)];
    let mut groups = kinds.map(|kind| OffloadGroup {
        kind,
        chunk_tokens: CHUNK,
        chunk_bytes: 0,
        use_eagle: false,
    });
    for (group, bytes) in groups.iter_mut().zip([PAGE, 2 * PAGE, 3 * PAGE]) {
        group.chunk_bytes = bytes;
    }
    HostCache::new(num_pages * PAGE, &groups, CHUNK).expect("it fits")
}

/// As above, without the window.
fn cache_of_states(num_pages: u64) -> HostCache {
    let mut groups = [GroupKind::Full, GroupKind::State { slots: 1 }].map(|kind| OffloadGroup {
        kind,
        chunk_tokens: CHUNK,
        chunk_bytes: 0,
        use_eagle: false,
    });
    for (group, bytes) in groups.iter_mut().zip([PAGE, 2 * PAGE]) {
        group.chunk_bytes = bytes;
    }
    HostCache::new(num_pages * PAGE, &groups, CHUNK).expect("it fits")
}

fn chunk(group: u32, chat: u8, at: u32) -> Chunk {
    let mut bytes = [if at < SHARED { 0 } else { chat }; 32];
    bytes[..4].copy_from_slice(&at.to_le_bytes());
    (Key { digest: Digest::from(bytes), group: GroupId(group) }, (at + 1) * CHUNK)
}

fn chunks(group: u32, chat: u8, range: std::ops::Range<u32>) -> Vec<Chunk> {
    range.map(|at| chunk(group, chat, at)).collect()
}

fn open(cache: &mut HostCache, chat: u8, len: u32) -> RequestId {
    let groups = if cache.tier().geometry().pool_of(2).is_some() { 3 } else { 2 };
    let prefix: Vec<_> = (0..groups).flat_map(|group| chunks(group, chat, 0..len)).collect();
    cache.open_request(&prefix)
}

fn store(cache: &mut HostCache, request: RequestId, chunks: &[Chunk]) -> usize {
    let placements = cache.begin_store(request, chunks).expect("there is room");
    let keys: Vec<_> = placements.iter().map(|it| it.key).collect();
    cache.complete_store(&keys, true).len()
}

/// Chunks that a prompt finds.
fn found(cache: &HostCache, chat: u8, len: u32) -> u32 {
    let digests: Vec<_> =
        chunks(ATTENTION, chat, 0..len).iter().map(|(key, _)| key.digest).collect();
    cache.planner().plan(&[cache], &digests, 0, u32::MAX).num_tokens / CHUNK
}

/// Stores prompts that share nothing and that no request repeats. The units that brought in `used`
/// stay in use.
fn fill(cache: &mut HostCache, chats: std::ops::Range<u8>, used: &[Chunk]) {
    let used: Vec<_> = used.iter().map(|it| it.0).collect();
    for chat in chats {
        let request = cache.open_request(&[]);
        store(cache, request, &chunks(ATTENTION, chat, SHARED..8));
        store(cache, request, &[chunk(STATE, chat, 7)]);
        cache.close_request(request);
        cache.touch(&used, None);
    }
}

#[test]
fn chunks_that_are_there_when_they_are_offered_stay_until_the_state_behind_them() {
    let mut cache = cache_of_states(48);
    let first = open(&mut cache, 1, 5);
    store(&mut cache, first, &chunks(ATTENTION, 1, 0..5));
    store(&mut cache, first, &[chunk(STATE, 1, 4)]);
    cache.close_request(first);

    fill(&mut cache, 100..102, &[]);
    let second = open(&mut cache, 2, 6);
    assert_eq!(store(&mut cache, second, &chunks(ATTENTION, 2, 0..SHARED)), 0);
    // Others need the memory of the first before the second's next step.
    fill(&mut cache, 102..107, &[]);
    assert_eq!(cache.presence(&chunk(ATTENTION, 1, 4).0), Presence::Absent);

    store(&mut cache, second, &chunks(ATTENTION, 2, SHARED..6));
    store(&mut cache, second, &[chunk(STATE, 2, 5)]);
    cache.close_request(second);
    assert_eq!(found(&cache, 2, 6), 6);
}

#[test]
fn chunks_that_another_stores_in_between_are_owned_too() {
    for is_late in [false, true] {
        let mut cache = cache_of_states(40);
        let (long, short) = (open(&mut cache, 1, 6), open(&mut cache, 1, 4));
        store(&mut cache, long, &chunks(ATTENTION, 1, 0..2));
        let placed = cache.begin_store(short, &chunks(ATTENTION, 1, 0..4)).expect("there is room");
        let keys: Vec<_> = placed.iter().map(|it| it.key).collect();
        assert_eq!(keys.len(), 2);
        if is_late {
            store(&mut cache, long, &chunks(ATTENTION, 1, 2..6));
        }
        cache.complete_store(&keys, true);
        store(&mut cache, short, &[chunk(STATE, 1, 3)]);
        cache.close_request(short);
        if !is_late {
            store(&mut cache, long, &chunks(ATTENTION, 1, 2..6));
        }
        store(&mut cache, long, &[chunk(STATE, 1, 5)]);
        cache.close_request(long);

        fill(&mut cache, 100..120, &[chunk(ATTENTION, 1, 5)]);
        assert_eq!(cache.presence(&chunk(STATE, 1, 3).0), Presence::Absent);
        assert_eq!(found(&cache, 1, 6), 6, "late: {is_late}");
        cache.tier().check_integrity().expect("books agree");
    }
}

#[test]
fn a_window_that_an_earlier_turn_brought_in_is_owned_by_the_next() {
    let mut cache = cache(60);
    let first = open(&mut cache, 1, 5);
    store(&mut cache, first, &chunks(ATTENTION, 1, 0..5));
    store(&mut cache, first, &chunks(WINDOW, 1, 2..5));
    store(&mut cache, first, &[chunk(STATE, 1, 4)]);
    cache.close_request(first);
    let second = open(&mut cache, 1, 6);
    store(&mut cache, second, &chunks(ATTENTION, 1, 5..6));
    store(&mut cache, second, &[chunk(WINDOW, 1, 5), chunk(STATE, 1, 5)]);
    cache.close_request(second);

    fill(&mut cache, 100..120, &[chunk(ATTENTION, 1, 5)]);
    assert_eq!(cache.presence(&chunk(STATE, 1, 4).0), Presence::Absent);
    assert_eq!(found(&cache, 1, 6), 6);
}

/// The actions of requests.
#[derive(Clone, Debug)]
enum Op {
    /// Offer the next chunks of a chat, and then maybe the state at their end.
    Offer {
        chat: u8,
        len: u32,
        with_state: bool,
    },
    /// End the copies of a store under way.
    Copied {
        at: usize,
    },
    /// End a request and whatever it has under way.
    Close {
        chat: u8,
    },
    Load {
        chat: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..5u8, 1..4u32, any::<bool>())
            .prop_map(|(chat, len, with_state)| Op::Offer { chat, len, with_state }),
        6 => (0..4usize).prop_map(|at| Op::Copied { at }),
        2 => (0..5u8).prop_map(|chat| Op::Close { chat }),
        1 => (0..5u8).prop_map(|chat| Op::Load { chat }),
    ]
}

/// States from which a prompt can go on.
fn num_restored(cache: &HostCache) -> u32 {
    let lengths = (0..112u8).flat_map(|chat| (1..=LONGEST).map(move |len| (chat, len)));
    let restored = lengths.filter(|&(chat, len)| found(cache, chat, len) == len);
    let states = restored.map(|(chat, len)| chunk(STATE, chat, len - 1).0.digest);
    states.collect::<BTreeSet<_>>().len() as u32
}

/// A request as the model sees it: how much it has offered.
struct Open {
    id: RequestId,
    offered: u32,
}

const LONGEST: u32 = 12;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Every state with kept memory can be restored once nothing is under way. The exception is a
    /// request that lost some of its chunks before it came to the state.
    #[test]
    fn a_state_that_is_kept_can_be_restored(ops in proptest::collection::vec(op(), 1..150)) {
        let mut cache = cache_of_states(64);
        let mut region: HashMap<u64, Key> = HashMap::new();
        let mut requests: HashMap<u8, Open> = HashMap::new();
        let mut copies: Vec<Vec<Key>> = Vec::new();
        let mut has_lost = false;
        let end = Op::Close { chat: u8::MAX };
        for op in ops.into_iter().chain([end]) {
            let before: Vec<_> = requests.iter().map(|(&chat, it)| (chat, it.offered)).collect();
            match op {
                Op::Offer { chat, len, with_state } => {
                    let request = requests.entry(chat).or_insert_with(|| {
                        Open { id: open(&mut cache, chat, LONGEST), offered: 0 }
                    });
                    let from = request.offered;
                    request.offered = (from + len).min(LONGEST);
                    let mut wanted = chunks(ATTENTION, chat, from..request.offered);
                    if with_state {
                        wanted.push(chunk(STATE, chat, request.offered - 1));
                    }
                    let placed = cache.begin_store(request.id, &wanted);
                    has_lost |= wanted.iter().any(|it| cache.presence(&it.0) == Presence::Absent);
                    let placed = placed.unwrap_or_default();
                    region.extend(placed.iter().map(|it| (it.bytes.start, it.key)));
                    copies.push(placed.iter().map(|it| it.key).collect());
                }
                Op::Copied { at } if at < copies.len() => {
                    cache.complete_store(&copies.remove(at), true);
                }
                Op::Copied { .. } => {}
                Op::Close { chat } => {
                    // A request ends when its copies have.
                    copies.drain(..).for_each(|keys| {
                        cache.complete_store(&keys, true);
                    });
                    let ended: Vec<_> =
                        requests.keys().copied().filter(|&it| it == chat || chat == u8::MAX).collect();
                    for chat in ended {
                        if let Some(request) = requests.remove(&chat) {
                            cache.close_request(request.id);
                        }
                    }
                }
                Op::Load { chat } => {
                    let len = found(&cache, chat, LONGEST);
                    let mut keys: Vec<_> =
                        chunks(ATTENTION, chat, 0..len).iter().map(|it| it.0).collect();
                    keys.extend((len > 0).then(|| chunk(STATE, chat, len.saturating_sub(1)).0));
                    if keys.iter().any(|key| cache.presence(key) != Presence::Ready) {
                        continue;
                    }
                    let bytes = cache.begin_load(&keys);
                    prop_assert!(bytes.is_some(), "what was just found cannot be loaded");
                    for (key, range) in keys.iter().zip(bytes.into_iter().flatten()) {
                        prop_assert_eq!(region.get(&range.start), Some(key), "other bytes");
                    }
                    cache.touch(&keys, None);
                    cache.complete_load(&keys);
                }
            }
            has_lost |= before.iter().any(|&(chat, offered)| {
                requests.contains_key(&chat)
                    && chunks(ATTENTION, chat, 0..offered)
                        .iter().any(|it| cache.presence(&it.0) == Presence::Absent)
            });
            prop_assert_eq!(cache.tier().check_integrity(), Ok(()));
        }
        for chat in (100..112).take_while(|_| !has_lost) {
            let (live, restored) = (cache.tier().num_live_slots(PoolId(1)), num_restored(&cache));
            prop_assert!(live <= restored, "{live} states are kept, {restored} can be restored");
            let request = open(&mut cache, chat, 5);
            store(&mut cache, request, &chunks(ATTENTION, chat, 0..5));
            store(&mut cache, request, &[chunk(STATE, chat, 4)]);
            cache.close_request(request);
        }
    }
}
