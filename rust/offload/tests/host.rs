//! Host memory: units of states and attention, and what share of the region they fill.

use std::collections::{BTreeMap, BTreeSet};

use hybrid_blocks::{Digest, GroupId, Key, PoolId};
use hybrid_blocks_offload::host::{HostGeometry, HostTier, UnitContent, UnitId};
use hybrid_blocks_offload::plan::{Load, Previous, Tier};
use proptest::prelude::*;

const ATTENTION: u32 = 0;
const STATE: u32 = 1;

/// A key of conversation `chat` at chunk `at`. Chats share their first `shared` chunks; as digests are
/// chained, what comes after another number of shared chunks is different.
fn key(group: u32, chat: u64, at: u32, shared: u32) -> Key {
    let chat = if at < shared { 0 } else { chat + (u64::from(shared) << 24) };
    let mut bytes = [group as u8; 32];
    let mixed = (chat << 32 | u64::from(at) << 2 | 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bytes[..8].copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes());
    bytes[8..16].copy_from_slice(&chat.to_le_bytes());
    bytes[16..20].copy_from_slice(&at.to_le_bytes());
    Key { digest: Digest::from(bytes), group: GroupId(group) }
}

fn tier(region: u64, chunk_bytes: &[u64]) -> HostTier {
    HostTier::new(HostGeometry::new(region, chunk_bytes).expect("it fits")).expect("it fits")
}

fn is_held(tier: &HostTier, key: &Key) -> bool {
    tier.find(key, Previous::default()).is_some()
}

/// Stores a conversation up to `len` chunks, with a state at its end.
fn store(tier: &mut HostTier, chat: u64, len: u32, shared: u32) -> Option<UnitId> {
    let keys: Vec<_> = (0..len).map(|at| key(ATTENTION, chat, at, shared)).collect();
    let (parent, covered) =
        tier.deepest(&keys).map_or((None, 0), |(unit, covered)| (Some(unit), covered));
    let path: Vec<_> =
        (0..).zip(keys).skip(covered).map(|(at, key)| (key, (at + 1) * 16)).collect();
    let end = [(key(STATE, chat, len - 1, shared), len * 16)];
    let ticket = tier.prepare_store(UnitContent { parent, path: &path, end: &end })?;
    let unit = ticket.unit();
    tier.complete_store(ticket, true);
    Some(unit)
}

/// Loads of a conversation's first attention chunks.
fn loads(tier: &HostTier, chat: u64, len: u32) -> Vec<Load> {
    let load = |at| {
        let key = key(ATTENTION, chat, at, 0);
        let slot = tier.find(&key, Previous::default()).expect("it is held");
        Load { chunk: at, key, tier: 0, slot }
    };
    (0..len).map(load).collect()
}

#[test]
fn attention_goes_with_the_state_that_needs_it() {
    // 64 slots of 4 KiB for attention, states take 16 KiB.
    let mut tier = tier(64 * 4096, &[4096, 16384]);
    assert!(store(&mut tier, 1, 8, 0).is_some());
    assert!(store(&mut tier, 2, 8, 0).is_some());
    assert_eq!(tier.num_live_bytes(), 2 * (8 * 4096 + 16384));
    assert!(tier.evict_one());
    assert_eq!(tier.num_live_bytes(), 8 * 4096 + 16384, "the older chat went as one thing");
    assert!(tier.evict_one());
    assert_eq!((tier.num_live_bytes(), tier.num_units()), (0, 0));
    assert!(!tier.evict_one());
}

#[test]
fn a_turn_goes_on_from_the_last_and_leaves_its_state_behind() {
    let mut tier = tier(256 * 4096, &[4096, 16384]);
    let first = store(&mut tier, 1, 8, 0).expect("it fits");
    let second = store(&mut tier, 1, 12, 0).expect("it fits");
    assert_eq!(tier.num_live_bytes(), 12 * 4096 + 2 * 16384, "attention is kept once");
    assert!(tier.evict_one());
    assert_eq!(tier.num_live_bytes(), 12 * 4096 + 16384, "the first turn's state goes first");
    let keys: Vec<_> = (0..12).map(|at| key(ATTENTION, 1, at, 0)).collect();
    assert_eq!(tier.deepest(&keys), Some((second, 12)));
    assert_eq!(tier.deepest(&keys[..11]), Some((first, 8)));
    assert!(tier.evict_one());
    assert_eq!((tier.num_live_bytes(), tier.num_units()), (0, 0), "nothing dead is kept");
    assert_eq!(tier.check_integrity(), Ok(()));
}

#[test]
fn what_is_likely_to_be_used_again_outlives_newer_units_as_far_as_chances_count() {
    // Content that is there already is weighed again, too.
    for (before, lives, first_to_go) in [(0.0, 0.0, 1), (3.0, 3.0, 2), (0.0, 3.0, 2), (3.0, 0.0, 1)]
    {
        let mut tier = tier(256 * 4096, &[4096, 16384]);
        tier.set_mean_lives(before, 0.5);
        for (chat, chance) in [(1, 2.0), (2, 0.5), (3, 1.5)] {
            let unit = store(&mut tier, chat, 4, 0).expect("it fits");
            tier.touch(unit, chance);
        }
        tier.set_mean_lives(lives, 0.5);
        assert!(tier.evict_one());
        let keys = |chat| (0..4).map(|at| key(ATTENTION, chat, at, 0)).collect::<Vec<_>>();
        let is_gone = |chat: &u64| tier.deepest(&keys(*chat)).is_none();
        assert_eq!((1..4).filter(is_gone).collect::<Vec<_>>(), [first_to_go]);
    }
}

#[test]
fn a_prefix_that_many_chats_share_outlives_each_of_them() {
    let mut tier = tier(256 * 4096, &[4096, 16384]);
    let root = store(&mut tier, 9, 4, 4).expect("it fits");
    for chat in 1..4 {
        assert!(store(&mut tier, chat, 8, 4).is_some());
    }
    tier.touch(root, 0.0);
    assert_eq!(tier.num_live_bytes(), (4 + 3 * 4) * 4096 + 4 * 16384);
    for left in (0..3).rev() {
        assert!(tier.evict_one());
        assert_eq!(tier.num_live_bytes(), (4 + left * 4) * 4096 + (1 + left) * 16384);
    }
    assert!(is_held(&tier, &key(STATE, 0, 3, 4)), "the shared state is the last to go");
}

#[test]
fn a_branch_inside_a_unit_keeps_what_it_shares() {
    let mut tier = tier(256 * 4096, &[4096, 16384]);
    assert!(store(&mut tier, 1, 8, 5).is_some());
    assert!(store(&mut tier, 2, 8, 5).is_some());
    assert_eq!(tier.num_live_bytes(), (8 + 3) * 4096 + 2 * 16384, "five chunks are shared");
    assert!(tier.evict_one());
    assert_eq!(tier.num_live_bytes(), 8 * 4096 + 16384, "the second chat is whole");
    assert_eq!(tier.check_integrity(), Ok(()));
}

#[test]
fn a_store_that_fails_leaves_nothing_and_is_never_found() {
    let mut tier = tier(64 * 4096, &[4096, 16384]);
    let path = [(key(ATTENTION, 1, 0, 0), 16)];
    let end = [(key(STATE, 1, 0, 0), 16)];
    let content = UnitContent { parent: None, path: &path, end: &end };
    let ticket = tier.prepare_store(content).expect("it fits");
    assert_eq!(ticket.placements.len(), 2);
    assert!(!is_held(&tier, &path[0].0), "the copy has not ended");
    tier.complete_store(ticket, false);
    assert!(!is_held(&tier, &path[0].0) && tier.num_live_bytes() == 0);
    let ticket = tier.prepare_store(content).expect("it fits");
    tier.complete_store(ticket, true);
    assert!(is_held(&tier, &path[0].0) && is_held(&tier, &end[0].0));
}

#[test]
fn a_unit_that_does_not_fit_is_refused_and_pinned_chunks_stay() {
    let mut tier = tier(32 * 4096, &[4096, 16384]);
    assert_eq!(store(&mut tier, 1, 64, 0), None);
    assert!(store(&mut tier, 1, 16, 0).is_some());
    let pinned = loads(&tier, 1, 16);
    assert!(tier.pin(&pinned));
    assert_eq!(store(&mut tier, 2, 16, 0), None, "half of the region is being read");
    tier.unpin(&pinned);
    assert!(store(&mut tier, 2, 16, 0).is_some());
    while tier.evict_one() {}
    assert!(store(&mut tier, 3, 26, 0).is_some());
    assert!(!tier.pin(&pinned), "they were evicted");
    assert_eq!(tier.check_integrity(), Ok(()));
}

#[test]
fn a_store_that_does_not_fit_costs_no_unit() {
    let mut tier = tier(32 * 4096, &[4096, 16384]);
    assert!(store(&mut tier, 1, 8, 0).is_some());
    assert_eq!(store(&mut tier, 2, 64, 0), None, "it is larger than the region");
    assert_eq!(tier.num_units(), 1);
    let pinned = loads(&tier, 1, 8);
    assert!(tier.pin(&pinned));
    assert!(store(&mut tier, 3, 4, 0).is_some());
    assert!(store(&mut tier, 3, 6, 0).is_some(), "a turn that leaves the first one's state behind");
    let before = (tier.num_units(), tier.num_live_bytes());
    assert_eq!(store(&mut tier, 4, 26, 0), None, "no room beside what is being read");
    assert_eq!((tier.num_units(), tier.num_live_bytes()), before);
    assert_eq!(tier.check_integrity(), Ok(()));
    tier.unpin(&pinned);
    assert!(store(&mut tier, 4, 26, 0).is_some());
}

/// A unit of attention alone.
fn only(path: &[(Key, u32)]) -> UnitContent<'_> {
    UnitContent { parent: None, path, end: &[] }
}

#[test]
fn regions_that_are_too_small_and_models_without_chunks_are_refused() {
    assert!(HostGeometry::new(1 << 30, &[0, 0]).is_err());
    assert!(HostGeometry::new(8191, &[4096]).is_err());
    assert!(HostGeometry::new(8192, &[4096]).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_of_a_region_never_overlap(
        chunk_bytes in prop::collection::vec(0u64..200_000, 1..6),
        region in 2_000_000u64..40_000_000,
    ) {
        prop_assume!(chunk_bytes.iter().any(|&bytes| bytes > 0));
        let Ok(geometry) = HostGeometry::new(region, &chunk_bytes) else { return Ok(()) };
        prop_assert!(geometry.num_bytes() <= region);
        for (group, &bytes) in chunk_bytes.iter().enumerate() {
            let Some(pool) = geometry.pool_of(group) else { prop_assert_eq!(bytes, 0); continue };
            let per_slab = geometry.slots_per_slab()[pool.index()];
            let mut end = 0;
            for slot in per_slab..per_slab * (geometry.num_slabs() + 1) {
                let range = geometry.bytes_of(pool, hybrid_blocks::BlockId(slot));
                prop_assert!(range.start >= end && range.end - range.start >= bytes);
                prop_assert_eq!(range.start % 4096, 0);
                end = range.end;
            }
            prop_assert!(end <= region);
        }
    }

    /// Chats grow, branch, are used and evicted in any order; a unit that is found is whole.
    #[test]
    fn what_a_unit_needs_is_there_while_the_unit_is(
        ops in prop::collection::vec((0u8..6, 0u64..6, 1u32..20, 0u32..6), 1..60),
    ) {
        let mut tier = tier(120 * 4096, &[4096, 12000]);
        let mut alive: BTreeMap<UnitId, (u64, u32, u32)> = BTreeMap::new();
        for (op, chat, len, shared) in ops {
            match op {
                0..=3 => {
                    if let Some(unit) = store(&mut tier, chat + 1, len, shared) {
                        alive.insert(unit, (chat + 1, len, shared));
                    }
                }
                4 => {
                    tier.evict_one();
                }
                _ => {
                    if let Some(&unit) = alive.keys().nth(len as usize % alive.len().max(1)) {
                        tier.touch(unit, 0.1);
                    }
                }
            }
            prop_assert_eq!(tier.check_integrity(), Ok(()));
            for (&unit, &(chat, len, shared)) in &alive {
                let keys: Vec<_> = (0..len).map(|at| key(ATTENTION, chat, at, shared)).collect();
                if tier.deepest(&keys).is_some_and(|(found, _)| found == unit) {
                    let all = keys.iter().all(|key| is_held(&tier, key));
                    prop_assert!(all, "chat {chat}, {len} chunks");
                }
            }
        }
        while tier.evict_one() {}
        prop_assert_eq!((tier.num_live_bytes(), tier.num_units()), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// One of two tiers is also asked for stores that do not fit: larger than the region, or than its unpinned
    /// part.
    #[test]
    fn a_store_that_fails_for_want_of_room_changes_nothing(
        ops in prop::collection::vec((0u8..7, 0u64..6, 1u32..20, 0u32..6), 1..60),
        slot_bytes in prop_oneof![Just(4096), Just(12_000), Just(40_000)],
    ) {
        let (mut plain, mut asked) = [(); 2].map(|()| tier(120 * 4096, &[4096, slot_bytes])).into();
        let mut pinned: Vec<Load> = Vec::new();
        for (at, (op, chat, len, shared)) in (0u64..).zip(ops) {
            match op {
                0..=3 => {
                    let stored = store(&mut plain, chat + 1, len, shared);
                    prop_assert_eq!(store(&mut asked, chat + 1, len, shared), stored);
                }
                4 => prop_assert_eq!(plain.evict_one(), asked.evict_one()),
                5 => {
                    let keys = (0..len).map(|at| key(ATTENTION, chat + 1, at, shared));
                    let loads = keys.zip(0..).filter_map(|(key, chunk)| {
                        let slot = plain.find(&key, Previous::default())?;
                        Some(Load { chunk, key, tier: 0, slot })
                    });
                    let loads: Vec<_> = loads.collect();
                    prop_assert!(plain.pin(&loads) && asked.pin(&loads));
                    pinned.extend(loads);
                }
                _ => {
                    plain.unpin(&pinned);
                    asked.unpin(&pinned);
                    pinned.clear();
                }
            }
            let slots: BTreeSet<_> = pinned.iter().map(|load| load.slot).collect();
            for len in [121, 121 - slots.len() as u32, 125 - slots.len() as u32] {
                let keys = (0..len).map(|chunk| (key(ATTENTION, 1000 + at, chunk, 0), 16));
                let keys: Vec<_> = keys.collect();
                prop_assert!(asked.prepare_store(only(&keys)).is_none());
                // The clock of both goes on.
                prop_assert!(plain.prepare_store(only(&[keys[0]; 121])).is_none());
            }
            prop_assert_eq!(asked.num_units(), plain.num_units());
            prop_assert_eq!(asked.num_live_bytes(), plain.num_live_bytes());
            prop_assert_eq!(asked.check_integrity(), Ok(()));
        }
    }
}

/// Bytes of a chunk of each group, and of how many of its chunks a unit of one turn has: per-chunk bytes,
/// whether it is a state or window, and chunks at the end.
struct Model {
    name: &'static str,
    chunk_bytes: &'static [u64],
    /// Chunks at a unit's end; 0 for attention, whose chunks grow with the turn.
    at_end: &'static [u32],
    region: u64,
}

const KIB: u64 = 1024;
const GIB: u64 = 1 << 30;

/// Shapes as these models have them in bf16, without draft layers unless said; sizes in bytes.
const MODELS: &[Model] = &[
    // 16 full layers of 4 heads of 256 (784 tokens a chunk), 48 delta nets: 48 heads of 128 × 128 in fp32
    // and a convolution of 10,240 × 3.
    Model {
        name: "Qwen3.5-27B",
        chunk_bytes: &[784 * 64 * KIB, 48 * (3072 + 60) * KIB],
        at_end: &[0, 1],
        region: 64 * GIB,
    },
    Model {
        name: "Qwen3.5-27B, MTP",
        chunk_bytes: &[784 * 64 * KIB, 48 * (3072 + 60) * KIB, 784 * 4 * KIB],
        at_end: &[0, 1, 0],
        region: 64 * GIB,
    },
    // 18 full and 18 sliding layers of 8 heads of 64, window 128.
    Model {
        name: "gpt-oss",
        chunk_bytes: &[64 * 36 * KIB, 64 * 36 * KIB],
        at_end: &[0, 2],
        region: 32 * GIB,
    },
    // 10 full layers of 4 heads of 512, 50 sliding of 16 heads of 256, window 1,024.
    Model {
        name: "Gemma-4",
        chunk_bytes: &[16 * 80 * KIB, 16 * 800 * KIB],
        at_end: &[0, 64],
        region: 64 * GIB,
    },
    // 4 attention layers of 8 heads of 128, 24 Mamba-2 of 128 heads of 64 × 128.
    Model {
        name: "Nemotron-H",
        chunk_bytes: &[128 * 16 * KIB, 24 * (4096 + 60) * KIB],
        at_end: &[0, 1],
        region: 32 * GIB,
    },
    // Latent attention of 576 × 2 bytes in 40 layers, an indexer of 128 bytes a token in 40.
    Model {
        name: "GLM-5.3-Flash-like",
        chunk_bytes: &[64 * 45 * KIB, 64 * 5 * KIB],
        at_end: &[0, 0],
        region: 32 * GIB,
    },
    // Latent attention in three rates of compression, and a window of 128.
    Model {
        name: "DeepSeek-V4-like",
        chunk_bytes: &[256 * 18 * KIB, 256 * 584, 128 * 25 * KIB],
        at_end: &[0, 0, 1],
        region: 64 * GIB,
    },
];

#[test]
fn a_full_region_holds_hardly_anything_but_live_bytes() {
    for model in MODELS {
        let mut tier = tier(model.region, model.chunk_bytes);
        let mut lens = BTreeMap::new();
        let mut live = Vec::new();
        let mut random = 1u64;
        let mut is_full = false;
        for _ in 0..40_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let chat = 1 + (random >> 33) % 400;
            let turn = 1 + (random >> 50) as u32 % 6;
            let before = *lens.get(&chat).unwrap_or(&0);
            let len = if before > 60 { turn } else { before + turn };
            let chat_id = chat + if before > 60 { random >> 20 } else { 0 };
            let stored = store_model(&mut tier, model, chat_id, len);
            lens.insert(chat, if stored { len } else { 0 });
            // Units are evicted from now on.
            let needed = natural_bytes(&tier, model, |pool| tier.num_live_slots(pool));
            let natural = natural_bytes(&tier, model, |pool| tier.num_held_slots(pool));
            is_full |= natural as f64 > model.region as f64 * 0.96;
            if is_full {
                live.push([natural, needed].map(|bytes| bytes as f64 / model.region as f64));
            }
            if live.len() > 2000 {
                break;
            }
        }
        assert!(live.len() > 1000, "{}: the region never fills", model.name);
        let settled = &live[live.len() / 2..];
        let mean = |at: usize| settled.iter().map(|it| it[at]).sum::<f64>() / settled.len() as f64;
        println!(
            "{}: {:.4} of {} GiB can be found, {:.4} needed by units; slabs of {} KiB",
            model.name,
            mean(0),
            model.region / GIB,
            mean(1),
            tier.geometry().slab_bytes() / KIB
        );
        assert!(mean(0) >= 0.97, "{}: {}", model.name, mean(0));
        assert!(mean(1) >= 0.95, "{}: {}", model.name, mean(1));
    }
}

/// Bytes of the chunks in a number of slots of each pool, without the padding of the slots.
fn natural_bytes(tier: &HostTier, model: &Model, num_slots: impl Fn(PoolId) -> u32) -> u64 {
    let mut bytes_of = BTreeMap::new();
    for (group, &bytes) in model.chunk_bytes.iter().enumerate() {
        let pool = tier.geometry().pool_of(group).expect("every group is stored");
        let least = bytes_of.entry(pool).or_insert(bytes);
        *least = bytes.min(*least);
    }
    bytes_of.iter().map(|(&pool, bytes)| bytes * u64::from(num_slots(pool))).sum()
}

fn store_model(tier: &mut HostTier, model: &Model, chat: u64, len: u32) -> bool {
    let groups = || (0u32..).zip(model.at_end);
    let last = groups().filter(|(_, at_end)| **at_end == 0).map(|(group, _)| group).last();
    let last = last.expect("every model has attention");
    let keys: Vec<_> = (0..len).map(|at| key(last, chat, at, 0)).collect();
    let (parent, covered) =
        tier.deepest(&keys).map_or((None, 0), |(unit, n)| (Some(unit), n as u32));
    let mut path = Vec::new();
    for (group, _) in groups().filter(|(_, at_end)| **at_end == 0) {
        path.extend((covered..len).map(|at| (key(group, chat, at, 0), at + 1)));
    }
    let mut end = Vec::new();
    for (group, &at_end) in groups() {
        end.extend((0..at_end).map(|at| (key(group, chat, (len << 8) + at, 0), len)));
    }
    match tier.prepare_store(UnitContent { parent, path: &path, end: &end }) {
        Some(ticket) => {
            tier.complete_store(ticket, true);
            true
        }
        None => false,
    }
}
