//! Tokens that others compute: what is loaded is found once it is there, and never before.

use hybrid_blocks::placement::Lengths;
use hybrid_blocks::vllm::{
    AllocateArgs, GroupConfig, KvCacheManager, Lookup, LookupGroup, ManagerConfig, RequestProgress,
    TokenCounts,
};
use hybrid_blocks::{
    BlockId, CheckpointPolicy, Digest, FixedStore, GroupId, GroupKind, PoolId, SlabStore, Store,
};

/// Tokens of an attention block.
const BLOCK: u32 = 4;
const MAX_LEN: u32 = 256;
const STATE: GroupKind = GroupKind::MambaAligned {
    num_speculative: 0,
    checkpoint_alignment: None,
    has_checkpoint_blocks: false,
};

/// Attention blocks of 4 tokens, 8 to a slab, and states of a whole slab.
fn over_slabs(num_slabs: u32) -> KvCacheManager<SlabStore> {
    let groups = vec![
        GroupConfig::new(GroupKind::Full, BLOCK),
        GroupConfig { pool: PoolId(1), ..GroupConfig::new(STATE, MAX_LEN) },
    ];
    let policy = CheckpointPolicy::default();
    let config = ManagerConfig {
        // A checkpoint at the end of each prompt, whatever was learned.
        checkpoints: Some(CheckpointPolicy { prompt_margins: Some(Lengths::from([0])), ..policy }),
        ..ManagerConfig::new(groups, lookup(), BLOCK, MAX_LEN, MAX_LEN)
    };
    KvCacheManager::new(SlabStore::new(num_slabs, &[8, 1]).unwrap(), config).unwrap()
}

/// As vLLM plans them: attention blocks of 4 tokens, and states kept at their borders.
fn over_blocks(num_blocks: u32) -> KvCacheManager<FixedStore> {
    let groups = [GroupKind::Full, STATE].map(|kind| GroupConfig::new(kind, BLOCK)).to_vec();
    let config = ManagerConfig::new(groups, lookup(), BLOCK, BLOCK, MAX_LEN);
    KvCacheManager::new(FixedStore::new(num_blocks).unwrap(), config).unwrap()
}

fn lookup() -> Lookup {
    let specs = [0, 1].map(|group| LookupGroup { groups: vec![GroupId(group)], use_eagle: false });
    Lookup::Hybrid { specs: specs.to_vec(), fine_grained: true }
}

fn prompt(number: u32, shared: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| if at < shared { at } else { number * 1_000 + at }).collect()
}

fn digests(tokens: &[u32]) -> Vec<Digest> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let blocks = tokens.chunks_exact(BLOCK as usize).map(|block| {
        for &token in block {
            hash = (hash ^ (u64::from(token) + 1)).wrapping_mul(0x1_0000_01b3);
        }
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        Digest::from(bytes)
    });
    blocks.collect()
}

fn progress(tokens: &[u32], num_computed: u32) -> RequestProgress {
    let num_tokens = tokens.len() as u32;
    RequestProgress {
        num_computed,
        num_tokens,
        num_prompt: num_tokens,
        is_waiting: num_computed == 0,
        ..RequestProgress::default()
    }
}

/// A request that is new. Returns its handle, and its hit.
fn arrive<S: Store>(
    manager: &mut KvCacheManager<S>,
    id: &str,
    tokens: &[u32],
) -> (u64, u32, Vec<Vec<BlockId>>) {
    manager.start_step();
    let handle = manager.add(id);
    *manager.digests_mut(handle).unwrap() = digests(tokens);
    let limit = tokens.len() as u32 - 1;
    let hit = if manager.store().is_slabbed() {
        manager.longest_usable_hit(handle, limit, &progress(tokens, 0)).unwrap()
    } else {
        manager.longest_hit(handle, limit)
    };
    (handle, hit.num_tokens, hit.blocks)
}

/// Begins to load `num_external` tokens behind the hit of a new request.
fn load<S: Store>(
    manager: &mut KvCacheManager<S>,
    id: &str,
    tokens: &[u32],
    num_external: u32,
) -> u64 {
    let (handle, num_local, blocks) = arrive(manager, id, tokens);
    let args = AllocateArgs {
        num_new_computed: num_local,
        computed: Some(&blocks),
        num_external,
        delay_commit: true,
        full_sequence_must_fit: true,
        ..AllocateArgs::default()
    };
    assert!(manager.allocate(handle, &progress(tokens, 0), &args).unwrap().is_some(), "{id}");
    handle
}

/// Computes what a request lacks from `start` tokens on, one step a chunk, and lets it end.
fn compute(manager: &mut KvCacheManager<SlabStore>, handle: u64, tokens: &[u32], start: u32) {
    let mut at = start;
    while at < tokens.len() as u32 {
        let now = progress(tokens, at);
        let end = manager.next_boundary(handle, &now, at, now.num_tokens).unwrap();
        let args = AllocateArgs { num_new: end - at, ..AllocateArgs::default() };
        assert!(manager.allocate(handle, &now, &args).unwrap().is_some(), "{at}");
        manager.take_disjoint_copies().unwrap();
        manager.start_step();
        at = end;
    }
    manager.settle(handle, &progress(tokens, at)).unwrap();
    manager.finish(handle).unwrap();
}

fn hit_of(manager: &mut KvCacheManager<SlabStore>, tokens: &[u32]) -> u32 {
    let (handle, num_tokens, _) = arrive(manager, "probe", tokens);
    manager.free(handle).unwrap();
    num_tokens
}

#[test]
fn a_load_that_fails_leaves_nothing_to_find() {
    let mut manager = over_slabs(20);
    let tokens = prompt(1, 0, 33);
    let handle = load(&mut manager, "a", &tokens, 32);
    // vLLM counts what is being loaded as computed when it frees the request.
    manager.settle(handle, &progress(&tokens, 32)).unwrap();
    manager.free(handle).unwrap();
    assert_eq!(hit_of(&mut manager, &tokens), 0);
    manager.check_integrity().unwrap();
}

#[test]
fn a_load_that_ended_is_found() {
    let mut manager = over_slabs(20);
    let tokens = prompt(1, 0, 33);
    let handle = load(&mut manager, "a", &tokens, 32);
    manager.commit(handle, &progress(&tokens, 32), 32).unwrap();
    manager.settle(handle, &progress(&tokens, 32)).unwrap();
    manager.free(handle).unwrap();
    assert_eq!(hit_of(&mut manager, &tokens), 32);
}

#[test]
fn a_loaded_state_is_found_by_prompts_that_share_it() {
    let mut manager = over_slabs(20);
    let tokens = prompt(1, 16, 61);
    let handle = load(&mut manager, "a", &tokens, 16);
    manager.commit(handle, &progress(&tokens, 16), 16).unwrap();
    compute(&mut manager, handle, &tokens, 16);
    assert_eq!(manager.stats().loaded, 1);
    assert_eq!(hit_of(&mut manager, &prompt(2, 16, 61)), 16);
}

#[test]
fn no_state_is_copied_to_where_one_is_loaded() {
    let mut manager = over_slabs(20);
    let first = prompt(1, 0, 33);
    let (handle, ..) = arrive(&mut manager, "a", &first);
    compute(&mut manager, handle, &first, 0);
    let more = [first, prompt(2, 0, 32)].concat();
    let handle = load(&mut manager, "b", &more, 24);
    assert_eq!(manager.take_disjoint_copies().unwrap(), []);
    assert_eq!(manager.stats().forks, 0);
    assert_eq!(manager.blocks(handle, GroupId(1)).len(), 1);
    manager.check_integrity().unwrap();
}

#[test]
fn a_request_that_holds_blocks_does_not_wait_for_anothers_checkpoint() {
    let mut manager = over_slabs(30);
    let (first, second) = (prompt(1, 64, 65), prompt(2, 64, 129));
    let (other, ..) = arrive(&mut manager, "a", &first);
    let end = manager.next_boundary(other, &progress(&first, 0), 0, 65).unwrap();
    assert_eq!(end, 64);
    let args = AllocateArgs { num_new: 64, ..AllocateArgs::default() };
    assert!(manager.allocate(other, &progress(&first, 0), &args).unwrap().is_some());
    let handle = manager.add("b");
    *manager.digests_mut(handle).unwrap() = digests(&second);
    assert!(manager.hits_more_later(handle, &progress(&second, 0)));
    // A connector finds the tokens before that checkpoint is there.
    let args = AllocateArgs { num_external: 64, delay_commit: true, ..AllocateArgs::default() };
    assert!(manager.allocate(handle, &progress(&second, 0), &args).unwrap().is_some());
    assert!(!manager.hits_more_later(handle, &progress(&second, 64)));
}

#[test]
fn blocks_that_are_handed_over_name_their_pools() {
    let mut manager = over_slabs(20);
    let tokens = prompt(1, 0, 33);
    let handle = load(&mut manager, "a", &tokens, 32);
    let (attention, state) = (PoolId(0), PoolId(1));
    let popped = manager.pop(handle, true);
    let pools: Vec<PoolId> = popped.iter().map(|&(pool, _)| pool).collect();
    assert_eq!(pools, [[attention; 8].as_slice(), &[state]].concat());
    for (pool, block) in popped {
        manager.store_mut().free(pool, [block].into_iter()).unwrap();
    }
    assert_eq!(manager.store().pool(attention).num_live(), 0);
    manager.check_integrity().unwrap();
}

#[test]
fn what_a_request_still_needs_is_counted_in_slabs() {
    let mut manager = over_slabs(30);
    let handle = manager.add("a");
    let counts = TokenCounts {
        num_tokens: 130,
        num_main: 130,
        num_computed: 0,
        num_local: 0,
        num_encoder: 0,
        prefill_end: 130,
        is_admission: true,
    };
    // 33 blocks of attention fill 5 slabs, and the state one.
    assert_eq!(manager.demand(handle, None, counts).unwrap(), 6);
}

#[test]
fn a_state_that_is_loaded_with_the_first_step_needs_a_block_of_its_own() {
    let mut manager = over_blocks(9);
    let one = prompt(1, 0, 1);
    let (handle, ..) = arrive(&mut manager, "a", &one);
    let args = AllocateArgs { num_new: 1, ..AllocateArgs::default() };
    assert!(manager.allocate(handle, &progress(&one, 0), &args).unwrap().is_some());
    // 5 blocks of attention, a state after 16 tokens, and one after 17: one more than is free.
    let tokens = prompt(2, 0, 17);
    let (other, ..) = arrive(&mut manager, "b", &tokens);
    let args = AllocateArgs { num_new: 1, num_external: 16, ..AllocateArgs::default() };
    assert!(manager.allocate(other, &progress(&tokens, 0), &args).unwrap().is_none());
    manager.free(handle).unwrap();
    assert!(manager.allocate(other, &progress(&tokens, 0), &args).unwrap().is_some());
    manager.check_integrity().unwrap();
}
