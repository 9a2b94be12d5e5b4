//! Steps of a request that change nothing, and what makes it look at its groups again.

use hybrid_blocks::vllm::{
    AllocateArgs, Config, GroupConfig, Kind, Lookup, LookupGroup, Manager, Release, RequestProgress,
};
use hybrid_blocks::{BlockId, BlockStore, Digest, Error, GroupId, PoolId};

const HASH_BLOCK: u32 = 16;
const BLOCK: u32 = 32;

fn manager() -> Manager {
    let group = GroupConfig {
        kind: Kind::Full,
        block_size: BLOCK,
        use_eagle: false,
        admission_cap: None,
        zeroes_new_blocks: false,
    };
    let spec = LookupGroup { groups: vec![GroupId(0)], use_eagle: false };
    let config = Config {
        release: Release::V0_33,
        groups: vec![group],
        lookup: Lookup::Hybrid { specs: vec![spec], fine_grained: true },
        hash_block_size: HASH_BLOCK,
        scheduler_block_size: HASH_BLOCK,
        max_model_len: 1_024,
        enable_events: false,
        retention_interval: None,
        num_reprefillable: 0,
        num_hash_lookahead: 0,
        drops_eagle_block: false,
        drops_eagle_checkpoint: false,
        shared_prefix_checkpoint: false,
        watermark_blocks: 0,
    };
    Manager::new(BlockStore::fixed(64).unwrap(), config).unwrap()
}

/// Compute `num_new` tokens of a request whose digests start with `mark`.
fn compute(
    manager: &mut Manager,
    id: &str,
    mark: u8,
    progress: &RequestProgress,
    num_new: u32,
) -> Vec<Vec<BlockId>> {
    let digests =
        (0..progress.num_tokens / HASH_BLOCK).map(|at| Digest::from([mark + at as u8; 32]));
    let handle = manager.add(id);
    *manager.digests_mut(handle).unwrap() = digests.collect();
    let args = AllocateArgs { num_new, ..AllocateArgs::default() };
    manager.allocate(handle, progress, &args).unwrap().unwrap()
}

fn at(num_prompt: u32, num_computed: u32, num_tokens: u32) -> RequestProgress {
    RequestProgress { num_prompt, num_computed, num_tokens, ..RequestProgress::default() }
}

#[test]
fn what_a_request_does_with_its_own_blocks_ends_no_other_ones_quiet() {
    let mut manager = manager();
    let blocks = compute(&mut manager, "writer", 10, &at(24, 0, 24), 24);
    let tail = blocks[0][0];
    assert_eq!(manager.store().prefix_index(PoolId(0)).first_key(tail).unwrap().1, HASH_BLOCK);
    compute(&mut manager, "other", 50, &at(40, 0, 40), 40);
    compute(&mut manager, "other", 50, &at(40, 40, 41), 1);
    let other = manager.find("other").unwrap();
    let decode = at(40, 41, 42);
    assert!(manager.is_noop(other, &decode, 1, 0));

    // The end of the writer's prompt becomes a full block.
    compute(&mut manager, "writer", 10, &at(24, 24, 32), 8);
    assert_eq!(manager.store().prefix_index(PoolId(0)).first_key(tail).unwrap().1, BLOCK);
    assert!(manager.is_noop(other, &decode, 1, 0));

    manager.store_mut().drop_keys(PoolId(0), tail);
    assert!(!manager.is_noop(other, &decode, 1, 0));
}

#[test]
fn the_handle_of_a_freed_request_names_nothing() {
    let mut manager = manager();
    let freed = manager.add("first");
    compute(&mut manager, "first", 10, &at(24, 0, 24), 24);
    manager.free(freed).unwrap();
    let next = manager.add("second");
    compute(&mut manager, "second", 30, &at(24, 0, 24), 24);

    assert_ne!(freed, next);
    assert_eq!((manager.find("first"), manager.find("second")), (None, Some(next)));
    assert!(manager.blocks(freed, GroupId(0)).is_empty());
    assert!(!manager.blocks(next, GroupId(0)).is_empty());
    assert!(
        matches!(manager.digests_mut(freed), Err(Error::UnknownRequest { handle }) if handle == freed)
    );
    let args = AllocateArgs { num_new: 1, ..AllocateArgs::default() };
    assert!(manager.allocate(freed, &at(24, 24, 25), &args).is_err());
    manager.free(freed).unwrap();
    assert!(!manager.blocks(next, GroupId(0)).is_empty());
}
