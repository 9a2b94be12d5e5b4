//! Steps of a request that change nothing, and what makes it look at its groups again.

use hybrid_blocks::vllm::{
    AllocateArgs, GroupConfig, KvCacheManager, Lookup, LookupGroup, ManagerConfig, RequestProgress,
};
use hybrid_blocks::{BlockId, Digest, FixedStore, GroupId, GroupKind, PoolId, Store};

const HASH_BLOCK: u32 = 16;
const BLOCK: u32 = 32;

fn manager() -> KvCacheManager<FixedStore> {
    let group = GroupConfig::new(GroupKind::Full, BLOCK);
    let spec = LookupGroup { groups: vec![GroupId(0)], use_eagle: false };
    let lookup = Lookup::Hybrid { specs: vec![spec], fine_grained: true };
    let config = ManagerConfig::new(vec![group], lookup, HASH_BLOCK, HASH_BLOCK, 1_024);
    KvCacheManager::new(FixedStore::new(64).unwrap(), config).unwrap()
}

/// Compute `num_new` tokens of a request whose digests start with `mark`.
fn compute(
    manager: &mut KvCacheManager<FixedStore>,
    id: &str,
    mark: u8,
    progress: &RequestProgress,
    num_new: u32,
) -> Vec<Vec<BlockId>> {
    let num_digests = progress.num_tokens / HASH_BLOCK;
    let handle = manager.add(id);
    *manager.digests_mut(handle).unwrap() =
        (0..num_digests).map(|at| Digest::from([mark + at as u8; 32])).collect();
    let args = AllocateArgs { num_new, ..AllocateArgs::default() };
    manager.allocate(handle, progress, &args).unwrap().unwrap()
}

fn at(num_prompt: u32, num_computed: u32, num_tokens: u32) -> RequestProgress {
    RequestProgress { num_prompt, num_computed, num_tokens, ..RequestProgress::default() }
}

#[test]
fn what_a_request_does_with_its_own_blocks_changes_nothing_for_others() {
    let mut manager = manager();
    let known_tokens = |manager: &KvCacheManager<FixedStore>, block| {
        manager.store().prefix_index(PoolId(0)).first_key(block).unwrap().1
    };
    let blocks = compute(&mut manager, "writer", 10, &at(24, 0, 24), 24);
    let tail = blocks[0][0];
    assert_eq!(known_tokens(&manager, tail), HASH_BLOCK);
    compute(&mut manager, "other", 50, &at(40, 0, 40), 40);
    compute(&mut manager, "other", 50, &at(40, 40, 41), 1);
    let (other, decode) = (manager.find("other").unwrap(), at(40, 41, 42));
    assert!(manager.is_noop(other, &decode, 1, 0));

    // The end of the writer's prompt becomes a full block.
    compute(&mut manager, "writer", 10, &at(24, 24, 32), 8);
    assert_eq!(known_tokens(&manager, tail), BLOCK);
    assert!(manager.is_noop(other, &decode, 1, 0));

    manager.store_mut().drop_keys(PoolId(0), tail);
    assert!(!manager.is_noop(other, &decode, 1, 0));
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
