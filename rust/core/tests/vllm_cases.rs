//! Decisions of vLLM's rules in cases that few recorded calls come to.

mod steps;

use hybrid_blocks::vllm::{
    AllocateArgs, GroupConfig, Lookup, LookupGroup, ManagerConfig, ReleaseRules,
};
use hybrid_blocks::{BlockId, Error, GroupId, GroupKind, Key, PoolId, Residency, Store};
use steps::{HASH_BLOCK, Manager, at, compute, known, try_compute, with_blocks};

const MAX_LEN: u32 = 1_024;
const MOVING: GroupKind = GroupKind::MambaAligned {
    num_speculative: 0,
    checkpoint_alignment: None,
    has_checkpoint_blocks: false,
};

/// Groups of one spec each, hit at every hash block.
fn hybrid(groups: Vec<GroupConfig>) -> ManagerConfig {
    let spec = |(group, config): (u32, &GroupConfig)| LookupGroup {
        groups: vec![GroupId(group)],
        use_eagle: config.use_eagle,
    };
    let lookup =
        Lookup::Hybrid { specs: (0..).zip(&groups).map(spec).collect(), fine_grained: true };
    ManagerConfig::new(groups, lookup, HASH_BLOCK, 64, MAX_LEN)
}

fn uncached(num_groups: usize) -> ManagerConfig {
    let groups = vec![GroupConfig::new(GroupKind::Full, HASH_BLOCK); num_groups];
    ManagerConfig::new(groups, Lookup::None, HASH_BLOCK, HASH_BLOCK, MAX_LEN)
}

/// Resumes from blocks that a request has found.
fn adopt(manager: &mut Manager, handle: u64, blocks: &[Vec<BlockId>]) -> Result<(), Error> {
    let args = AllocateArgs { num_new: 1, computed: Some(blocks), ..AllocateArgs::default() };
    manager.allocate(handle, &at(32, 16, 32), &args).map(drop)
}

#[test]
fn a_rule_of_a_release_is_known_by_its_name() {
    let one = ReleaseRules::named(["keys_running_state_once"]).unwrap();
    assert!(one.keys_running_state_once);
    assert!(!one.keeps_block_below_junction);
    assert_eq!(ReleaseRules::named([]), Ok(ReleaseRules::default()));
    let unknown = ReleaseRules::named(["0.33"]).unwrap_err().to_string();
    assert!(unknown.contains("no rule of a vLLM release is called \"0.33\""), "{unknown}");
}

#[test]
fn a_lookup_that_does_not_fit_the_groups_is_refused() {
    let unitary = Lookup::Unitary { use_eagle: false };
    let named = |groups: &[u32]| Lookup::Hybrid {
        specs: vec![LookupGroup {
            groups: groups.iter().copied().map(GroupId).collect(),
            use_eagle: false,
        }],
        fine_grained: false,
    };
    for (num_groups, lookup, fits) in [
        (1, unitary.clone(), true),
        (2, unitary, false),
        (2, named(&[0, 1]), true),
        (2, named(&[0, 2]), false),
        (2, named(&[]), false),
    ] {
        let config = ManagerConfig { lookup, ..uncached(num_groups) };
        assert_eq!(config.check().is_ok(), fits, "{config:?}");
    }
    assert!(ManagerConfig { scheduler_block_size: 0, ..uncached(1) }.check().is_err());
}

#[test]
fn without_a_cache_a_hit_is_an_empty_list_for_each_group() {
    let mut manager = with_blocks(8, uncached(2));
    let handle = known(&mut manager, "r", 10, 32);
    let hit = manager.longest_hit(handle, 31);
    assert_eq!((hit.blocks, hit.num_tokens), (vec![vec![], vec![]], 0));
}

#[test]
fn only_a_new_request_adopts_blocks_and_only_where_prefixes_are_cached() {
    let mut manager = with_blocks(8, uncached(1));
    let handle = known(&mut manager, "r", 10, 32);
    assert!(adopt(&mut manager, handle, &[vec![BlockId(1)]]).is_err());
    compute(&mut manager, "r", 10, &at(32, 0, 32), 16);
    assert!(adopt(&mut manager, handle, &[vec![]]).is_err());

    let mut manager = with_blocks(8, hybrid(vec![GroupConfig::new(GroupKind::Full, HASH_BLOCK)]));
    compute(&mut manager, "r", 10, &at(32, 0, 32), 16);
    let handle = manager.find("r").unwrap();
    assert_eq!(adopt(&mut manager, handle, &[vec![]]), Ok(()));
    let error = adopt(&mut manager, handle, &[vec![BlockId(1)]]).unwrap_err().to_string();
    assert!(error.contains("but 1 are given for group 0"), "{error}");
}

#[test]
fn a_request_that_cannot_grow_keeps_nobody_from_equal_blocks() {
    let mut manager = with_blocks(8, uncached(1));
    compute(&mut manager, "long", 10, &at(80, 0, 80), 80);
    assert_eq!(try_compute(&mut manager, "long", 10, &at(80, 80, 160), 80), None);
    assert!(try_compute(&mut manager, "short", 50, &at(16, 0, 16), 16).is_some());
}

#[test]
fn a_prompt_that_grows_inside_its_block_is_hit_up_to_its_new_end_alone() {
    let mut manager = with_blocks(8, hybrid(vec![GroupConfig::new(GroupKind::Full, 64)]));
    let block = compute(&mut manager, "r", 10, &at(17, 0, 17), 17)[0][0];
    compute(&mut manager, "r", 10, &at(40, 17, 40), 23);
    let index = manager.store().prefix_index(PoolId(0));
    let digest = manager.digests(manager.find("r").unwrap())[1];
    assert_eq!(index.first_key(block), Some((Key { digest, group: GroupId(0) }, 32)));
    assert_eq!(index.further_keys(block).count(), 0);
}

#[test]
fn the_state_at_a_prompts_end_is_saved_if_nothing_was_computed_after_it() {
    let states = GroupConfig::new(MOVING, 64);
    let config = hybrid(vec![GroupConfig::new(GroupKind::Full, 64), states]);
    for (num_computed, num_in_flight, is_saved) in [(16, 0, true), (16, 1, false), (17, 0, false)] {
        let mut manager = with_blocks(16, config.clone());
        let blocks = compute(&mut manager, "r", 10, &at(17, 0, 17), 16);
        let handle = manager.find("r").unwrap();
        let saved = manager.take_final_states(handle, num_computed, num_in_flight);
        let expected = if is_saved { vec![(GroupId(1), blocks[1][0], 16)] } else { vec![] };
        assert_eq!(saved, expected);
        assert!(manager.take_final_states(handle, 16, 0).is_empty(), "it is told once");
    }
}

#[test]
fn what_becomes_of_blocks_is_noted_in_order_and_only_if_asked() {
    let group = GroupConfig::new(GroupKind::Full, HASH_BLOCK);
    let (one, two) = (BlockId(1), BlockId(2));
    let fresh = |block| [(Residency::Evicted, block), (Residency::Allocated, block)];
    for enable_residency in [true, false] {
        let config = ManagerConfig { enable_residency, ..hybrid(vec![group]) };
        let mut manager = with_blocks(3, config);
        compute(&mut manager, "first", 10, &at(17, 0, 17), 16);
        manager.free(manager.find("first").unwrap()).unwrap();
        let handle = known(&mut manager, "second", 10, 17);
        let hit = manager.longest_hit(handle, 16);
        let computed = Some(hit.blocks.as_slice());
        let args =
            AllocateArgs { num_new: 1, num_new_computed: 16, computed, ..AllocateArgs::default() };
        manager.allocate(handle, &at(17, 0, 17), &args).unwrap().unwrap();
        let expected = [&fresh(one)[..], &[(Residency::Accessed, one)], &fresh(two)].concat();
        let noted = manager.take_residency();
        assert_eq!(noted, if enable_residency { expected } else { vec![] });
        assert!(manager.take_residency().is_empty(), "it is told once");
    }
    let elsewhere = GroupConfig { pool: PoolId(1), ..group };
    let config = ManagerConfig { enable_residency: true, ..hybrid(vec![group, elsewhere]) };
    assert!(config.check().is_err(), "ids of two pools");
}

#[test]
fn who_goes_on_from_a_state_inside_a_block_copies_it() {
    let states = GroupConfig::new(MOVING, 64);
    let mut manager = with_blocks(16, hybrid(vec![GroupConfig::new(GroupKind::Full, 64), states]));
    let first = compute(&mut manager, "first", 10, &at(17, 0, 17), 16);
    manager.free(manager.find("first").unwrap()).unwrap();
    manager.start_step();
    let handle = known(&mut manager, "second", 10, 17);
    let hit = manager.longest_hit(handle, 16);
    assert_eq!((&hit.blocks, hit.num_tokens), (&first, 16));
    let args = AllocateArgs {
        num_new: 1,
        num_new_computed: 16,
        computed: Some(&hit.blocks),
        ..AllocateArgs::default()
    };
    let new = manager.allocate(handle, &at(17, 0, 17), &args).unwrap().unwrap();
    let copies = [(first[0][0], new[0][0]), (first[1][0], new[1][0])];
    assert_eq!(manager.take_copies(), copies);
    assert_eq!(manager.stats().forks, 1, "one state");
}

#[test]
fn a_drafter_drops_its_last_block_anew_where_another_group_ends_the_hit_earlier() {
    // Windows of 17 tokens need one block, and one more for the drafter to drop.
    let window = GroupConfig {
        use_eagle: true,
        ..GroupConfig::new(GroupKind::sliding_window(HASH_BLOCK + 1), HASH_BLOCK)
    };
    let full = GroupConfig::new(GroupKind::Full, HASH_BLOCK);
    let other = GroupConfig::new(GroupKind::sliding_window(HASH_BLOCK + 1), HASH_BLOCK);
    let mut manager = with_blocks(64, hybrid(vec![full, window, other]));
    let blocks = compute(&mut manager, "r", 10, &at(160, 0, 160), 160);
    manager.free(manager.find("r").unwrap()).unwrap();
    let handle = known(&mut manager, "again", 10, 161);
    let hit = |manager: &Manager| manager.longest_hit(handle, 160).num_tokens / HASH_BLOCK;
    assert_eq!(hit(&manager), 9, "the drafter computes the last block again");
    // The third group can go on at block 5 at the latest, and the drafter's lacks block 5.
    for &block in &blocks[2][5..10] {
        manager.store_mut().drop_keys(PoolId(0), block);
    }
    assert_eq!(hit(&manager), 5);
    manager.store_mut().drop_keys(PoolId(0), blocks[1][5]);
    assert_eq!(hit(&manager), 4);
}

#[test]
fn a_hit_does_not_go_on_behind_a_block_that_is_gone() {
    let mut manager = with_blocks(8, hybrid(vec![GroupConfig::new(GroupKind::Full, 64)]));
    let blocks = compute(&mut manager, "r", 10, &at(145, 0, 145), 145);
    manager.free(manager.find("r").unwrap()).unwrap();
    let handle = known(&mut manager, "again", 10, 146);
    assert_eq!(manager.longest_hit(handle, 145).num_tokens, 144);
    manager.store_mut().drop_keys(PoolId(0), blocks[0][1]);
    assert_eq!(manager.longest_hit(handle, 145).num_tokens, 64);
}

#[test]
fn cross_attention_takes_the_blocks_of_the_encoders_tokens_once() {
    let mut config = uncached(2);
    config.groups[1].kind = GroupKind::Cross { encoder_tokens: 1_500 };
    let mut manager = with_blocks(8, config);
    let handle = known(&mut manager, "r", 10, HASH_BLOCK);
    let num_encoder = 3 * HASH_BLOCK - 1;
    let args = AllocateArgs { num_new: HASH_BLOCK, num_encoder, ..AllocateArgs::default() };
    let new = manager.allocate(handle, &at(HASH_BLOCK, 0, HASH_BLOCK), &args).unwrap().unwrap();
    assert_eq!((new[0].len(), new[1].len()), (1, 3));
    assert_eq!(manager.blocks(handle, GroupId(1)), new[1]);
    // 7 blocks are usable: a second request of this kind is one too many, a shorter one is not.
    let other = known(&mut manager, "other", 20, HASH_BLOCK);
    assert!(manager.allocate(other, &at(HASH_BLOCK, 0, HASH_BLOCK), &args).unwrap().is_none());
    let shorter = AllocateArgs { num_encoder: 2 * HASH_BLOCK, ..args };
    assert!(manager.allocate(other, &at(HASH_BLOCK, 0, HASH_BLOCK), &shorter).unwrap().is_some());
    // The first one goes on without more of them.
    let next = AllocateArgs { num_new: 0, ..AllocateArgs::default() };
    let new =
        manager.allocate(handle, &at(HASH_BLOCK, HASH_BLOCK, HASH_BLOCK), &next).unwrap().unwrap();
    assert_eq!(new, [vec![], vec![]]);
}
