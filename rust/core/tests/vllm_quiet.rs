//! Steps of a request that change nothing, and what makes it look at its groups again.

use hybrid_blocks::vllm::{
    Ask, Config, Facts, GroupConfig, Kind, Lookup, LookupGroup, Manager, Release,
};
use hybrid_blocks::{BlockId, Digest, FixedStore, GroupId, PoolId, Store};

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
    Manager::new(Config {
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
    })
    .unwrap()
}

/// Compute `num_new` tokens of a request whose digests start with `mark`.
fn compute(
    manager: &mut Manager,
    store: &mut FixedStore,
    id: &str,
    mark: u8,
    facts: &Facts,
    num_new: u32,
) -> Vec<Vec<BlockId>> {
    let digests = (0..facts.num_tokens / HASH_BLOCK).map(|at| Digest::from([mark + at as u8; 32]));
    *manager.digests_mut(id) = digests.collect();
    let ask = Ask { num_new, ..Ask::default() };
    manager.allocate(store, id, facts, &ask).unwrap().unwrap()
}

fn at(num_prompt: u32, num_computed: u32, num_tokens: u32) -> Facts {
    Facts { num_prompt, num_computed, num_tokens, ..Facts::default() }
}

#[test]
fn what_a_request_does_with_its_own_blocks_ends_no_other_ones_quiet() {
    let (mut manager, mut store) = (manager(), FixedStore::new(64).unwrap());
    let blocks = compute(&mut manager, &mut store, "writer", 10, &at(24, 0, 24), 24);
    let tail = blocks[0][0];
    assert_eq!(store.prefix_index(PoolId(0)).first_key(tail).unwrap().1, HASH_BLOCK);
    compute(&mut manager, &mut store, "other", 50, &at(40, 0, 40), 40);
    compute(&mut manager, &mut store, "other", 50, &at(40, 40, 41), 1);
    let decode = at(40, 41, 42);
    assert!(manager.is_quiet(&store, "other", &decode, 1, 0));

    // The end of the writer's prompt becomes a full block.
    compute(&mut manager, &mut store, "writer", 10, &at(24, 24, 32), 8);
    assert_eq!(store.prefix_index(PoolId(0)).first_key(tail).unwrap().1, BLOCK);
    assert!(manager.is_quiet(&store, "other", &decode, 1, 0));

    store.drop_keys(PoolId(0), tail);
    assert!(!manager.is_quiet(&store, "other", &decode, 1, 0));
}
