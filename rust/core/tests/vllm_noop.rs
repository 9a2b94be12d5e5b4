//! Steps of a request that change nothing, and what makes it look at its groups again.

mod steps;

use hybrid_blocks::vllm::{GroupConfig, Lookup, LookupGroup, ManagerConfig};
use hybrid_blocks::{GroupId, GroupKind, PoolId, Store};
use steps::{HASH_BLOCK, Manager, at, compute, known, with_blocks};

const BLOCK: u32 = 32;

fn lookup(groups: u32, use_eagle: bool, fine_grained: bool) -> Lookup {
    let spec = |group| LookupGroup { groups: vec![GroupId(group)], use_eagle };
    Lookup::Hybrid { specs: (0..groups).map(spec).collect(), fine_grained }
}

fn manager() -> Manager {
    let group = GroupConfig::new(GroupKind::Full, BLOCK);
    let lookup = lookup(1, false, true);
    with_blocks(64, ManagerConfig::new(vec![group], lookup, HASH_BLOCK, HASH_BLOCK, 1_024))
}

#[test]
fn what_a_request_does_with_its_own_blocks_changes_nothing_for_others() {
    let mut manager = manager();
    let known_tokens = |manager: &Manager, block| {
        manager.store().prefix_index(PoolId(0)).first_key(block).unwrap().1
    };
    let blocks = compute(&mut manager, "writer", 10, &at(24, 0, 24), 24);
    let tail = blocks[0][0];
    assert_eq!(known_tokens(&manager, tail), HASH_BLOCK);
    compute(&mut manager, "other", 50, &at(40, 0, 40), 40);
    compute(&mut manager, "other", 50, &at(40, 40, 41), 1);
    let (other, decode) = (manager.find("other").unwrap(), at(40, 41, 42));
    assert!(manager.is_noop(other, &decode, 1, 0));
    assert!(manager.is_commit_noop(other, 41));

    // The end of the writer's prompt becomes a full block.
    compute(&mut manager, "writer", 10, &at(24, 24, 32), 8);
    assert_eq!(known_tokens(&manager, tail), BLOCK);
    assert!(manager.is_noop(other, &decode, 1, 0));

    manager.store_mut().drop_keys(PoolId(0), tail);
    assert!(!manager.is_noop(other, &decode, 1, 0));
    assert!(!manager.is_commit_noop(other, 41));
}

#[test]
fn the_handle_of_a_freed_request_names_nothing() {
    let mut manager = manager();
    compute(&mut manager, "gone", 10, &at(40, 0, 40), 40);
    let gone = manager.find("gone").unwrap();
    manager.free(gone).unwrap();
    assert_eq!(manager.find("gone"), None);
    compute(&mut manager, "next", 50, &at(40, 0, 40), 40);
    assert!(manager.blocks(gone, GroupId(0)).is_empty());
    assert!(manager.commit(gone, &at(40, 40, 40), 40).is_err());
    manager.free(gone).unwrap();
    manager.check_integrity().unwrap();
    assert_eq!(manager.store().pool(PoolId(0)).num_live(), 2);
}

#[test]
fn a_shared_prefix_matters_where_checkpoints_move_or_are_kept_sparsely() {
    let moving = GroupKind::MambaAligned {
        num_speculative: 0,
        checkpoint_alignment: None,
        has_checkpoint_blocks: false,
    };
    for (kind, retention_interval, expected) in [
        (GroupKind::Full, None, false),
        (GroupKind::Full, Some(0), true),
        (moving, None, true),
        (moving, Some(64), true),
    ] {
        let groups = vec![GroupConfig::new(kind, BLOCK)];
        let config = ManagerConfig {
            retention_interval,
            ..ManagerConfig::new(groups, Lookup::None, HASH_BLOCK, BLOCK, 1_024)
        };
        assert_eq!(config.heeds_shared_prefix_boundary(), expected, "{kind:?}");
        assert!(!config.enable_caching());
    }
}

#[test]
fn a_prompt_whose_end_no_group_can_enter_does_not_keep_its_request_from_resting() {
    let group = |kind, size| GroupConfig { use_eagle: true, ..GroupConfig::new(kind, size) };
    let window = GroupKind::sliding_window(1_024);
    let groups = vec![group(GroupKind::Full, HASH_BLOCK), group(window, 4 * HASH_BLOCK)];
    let lookup = lookup(2, true, false);
    let config = ManagerConfig::new(groups, lookup, HASH_BLOCK, 4 * HASH_BLOCK, 1_024);
    let mut manager = with_blocks(64, config);
    compute(&mut manager, "r", 10, &at(48, 0, 48), 48);
    compute(&mut manager, "r", 10, &at(48, 48, 49), 1);
    let handle = manager.find("r").unwrap();
    assert!(manager.is_noop(handle, &at(48, 49, 50), 1, 0));
}

#[test]
fn a_prompt_that_goes_on_is_entered_though_it_stays_within_its_block() {
    let mut manager = manager();
    compute(&mut manager, "session", 10, &at(33, 0, 33), 33);
    compute(&mut manager, "session", 10, &at(33, 33, 34), 1);
    let handle = manager.find("session").unwrap();
    assert!(manager.is_noop(handle, &at(33, 34, 35), 1, 0));
    // Its client sends more, beyond the end of a hash block inside the block.
    let longer = at(49, 34, 49);
    assert!(!manager.is_noop(handle, &longer, 15, 0));
    let blocks = compute(&mut manager, "session", 10, &longer, 15);
    assert!(blocks[0].is_empty());
    let same = known(&mut manager, "same", 10, 49);
    assert_eq!(manager.longest_hit(same, 48).num_tokens, 48);
}
