//! The configuration of `KvCacheManager` that a [`Config`] stands for.

use super::Config;
use crate::engine::cache::groups_of;
use crate::error::Error;
use crate::group::{GroupKind, GroupSpec, gcd};
use crate::ids::{GroupId, PoolId};
use crate::rules::vllm::{GroupConfig, Lookup, LookupGroup, ManagerConfig};
use crate::store::{BlockStore, Store};

/// Tokens of the longest request that a search for it tries.
const MOST_TOKENS: u32 = 1 << 30;

/// # Errors
/// [`Error::InvalidConfig`] for groups or sizes that cannot be.
pub(super) fn check(store: &BlockStore, config: &Config) -> Result<(), Error> {
    if config.max_in_flight_tokens == 0 {
        return Err(Error::InvalidConfig(
            "max_in_flight_tokens is 0: no token could be computed; give at least 1".to_owned(),
        ));
    }
    if config.groups.len() >= usize::from(u16::MAX) {
        return Err(Error::InvalidConfig(format!("{} groups are too many", config.groups.len())));
    }
    if let Some(spec) = config.groups.iter().find(|spec| spec.kind.is_mamba()) {
        return Err(Error::InvalidConfig(format!(
            "{:?} is for vLLM's rules; give recurrent layers as states",
            spec.kind
        )));
    }
    let mut encoders = config.groups.iter().map(|it| it.kind.encoder_tokens()).filter(|&it| it > 0);
    if let Some(first) = encoders.next()
        && let Some(other) = encoders.find(|&other| other != first)
    {
        return Err(Error::InvalidConfig(format!(
            "groups for {first} and {other} tokens of an encoder; an engine has one"
        )));
    }
    if config.kept_pools.len() > config.groups.len() {
        return Err(Error::InvalidConfig(format!(
            "pools for the checkpoints of {} groups; there are {}",
            config.kept_pools.len(),
            config.groups.len()
        )));
    }
    groups_of(store, config.groups.iter().copied(), config.hash_block_size)?;
    alignment(&config.groups).map(|_| ())
}

/// The configuration of vLLM's rules at level `natural`, for requests of up to `longest` tokens.
pub(super) fn manager_config(
    config: &Config,
    is_slabbed: bool,
    longest: u32,
) -> Result<ManagerConfig, Error> {
    let alignment = alignment(&config.groups)?;
    let kept = config.kept_pools.iter().copied().chain(std::iter::repeat(None));
    let groups = config.groups.iter().zip(kept).map(|(&spec, kept)| GroupConfig {
        kept: kept.filter(|_| config.enable_caching),
        ..group(spec, config, alignment, longest)
    });
    let has_states = config.groups.iter().any(|spec| spec.kind.is_state());
    let has_full = config.groups.iter().any(|spec| spec.kind.is_full());
    let has_windows = config.groups.iter().any(|spec| spec.kind.is_window());
    let has_places = has_states || (is_slabbed && has_full && has_windows);
    let places = config.enable_caching && has_places;
    Ok(ManagerConfig {
        enable_events: config.enable_events,
        checkpoints: places.then_some(config.checkpoints),
        watermark_blocks: config.watermark,
        prefill_checkpoint_alignment: config.prefill_checkpoint_alignment.filter(|_| has_states),
        ..ManagerConfig::new(
            groups.collect(),
            lookup(config, has_states),
            config.hash_block_size,
            alignment,
            longest,
        )
    })
}

/// A hit ends where every group has a block border.
fn alignment(groups: &[GroupSpec]) -> Result<u32, Error> {
    let mut sizes = groups.iter().filter(|it| it.kind.is_cacheable()).map(|it| it.block_size);
    let first = sizes.next().ok_or_else(|| {
        Error::InvalidConfig("a manager needs at least one group of decoder layers".to_owned())
    })?;
    sizes.try_fold(first, |a, b| (a / gcd(a, b)).checked_mul(b)).ok_or_else(|| {
        Error::InvalidConfig("the block sizes have no common multiple below 2^32".to_owned())
    })
}

/// A state stays in one block, which holds the longest request.
fn group(spec: GroupSpec, config: &Config, alignment: u32, longest: u32) -> GroupConfig {
    let (kind, block_size) = match spec.kind {
        GroupKind::State { slots } => {
            let kind = GroupKind::MambaAligned {
                num_speculative: slots.saturating_sub(1),
                checkpoint_alignment: None,
                has_checkpoint_blocks: false,
            };
            (kind, (longest + 1).next_multiple_of(alignment))
        }
        kind => (kind, spec.block_size),
    };
    GroupConfig {
        pool: spec.pool,
        admission_cap: admission_cap(spec, config.max_in_flight_tokens, longest),
        ..GroupConfig::new(kind, block_size)
    }
}

/// Blocks that a request holds at most at a time, where leading blocks are given back: those of the window and of
/// the tokens in flight. `max_admission_blocks_per_request` of vLLM's specs.
fn admission_cap(spec: GroupSpec, in_flight: u32, longest: u32) -> Option<u32> {
    let (kept, is_shifted) = match spec.kind {
        GroupKind::SlidingWindow { window, extra_retained } => (window - 1 + extra_retained, true),
        // Chunks begin at borders of blocks, unless their size is no multiple: vLLM's specs leave that out.
        GroupKind::Chunked { chunk } => (chunk, !chunk.is_multiple_of(spec.block_size)),
        _ => return None,
    };
    let num_tokens = kept.saturating_add(in_flight).min(longest);
    Some(num_tokens.div_ceil(spec.block_size) + u32::from(is_shifted))
}

/// Groups that a hit needs content of, those of full attention first; alike ones are searched together.
fn lookup(config: &Config, has_states: bool) -> Lookup {
    if !config.enable_caching {
        return Lookup::None;
    }
    if config.groups.len() == 1 && !has_states {
        return Lookup::Unitary { use_eagle: false };
    }
    let mut specs: Vec<(GroupSpec, Vec<GroupId>)> = Vec::new();
    for is_full in [true, false] {
        for (group, &spec) in (0..).map(GroupId).zip(&config.groups) {
            if spec.kind.is_full() != is_full || !spec.kind.is_cacheable() {
                continue;
            }
            match specs.iter_mut().find(|(other, _)| alike(*other, spec)) {
                Some((_, groups)) => groups.push(group),
                None => specs.push((spec, vec![group])),
            }
        }
    }
    let specs = specs.into_iter().map(|(_, groups)| LookupGroup { groups, use_eagle: false });
    // Attention blocks are not copied, so a hit ends inside none.
    let is_hash_block = |spec: &GroupSpec| spec.block_size == config.hash_block_size;
    let fine_grained =
        has_states && config.groups.iter().filter(|it| it.kind.is_full()).all(is_hash_block);
    Lookup::Hybrid { specs: specs.collect(), fine_grained }
}

fn alike(a: GroupSpec, b: GroupSpec) -> bool {
    (a.kind, a.block_size) == (b.kind, b.block_size)
}

/// Tokens of the longest request that fits alone into an empty store.
pub(super) fn longest_request(store: &BlockStore, config: &Config) -> u32 {
    let (mut fits, mut too_many) = (0, MOST_TOKENS);
    while fits + 1 < too_many {
        let middle = u32::midpoint(fits, too_many);
        if slabs_for(store, config, middle) <= store.num_slabs() {
            fits = middle;
        } else {
            too_many = middle;
        }
    }
    fits
}

/// Slabs (blocks of a fixed pool) that a request of `num_tokens` tokens alone needs at most.
pub(super) fn slabs_for(store: &BlockStore, config: &Config, num_tokens: u32) -> u64 {
    let mut blocks = vec![0; store.num_pools() as usize];
    for spec in &config.groups {
        let most = spec.kind.table_len(u64::from(num_tokens), spec.block_size);
        let cap = admission_cap(*spec, config.max_in_flight_tokens, num_tokens);
        blocks[spec.pool.index()] += cap.map_or(most, |cap| most.min(u64::from(cap)));
    }
    let pools = (0..).map(PoolId).zip(blocks);
    pools.map(|(pool, it): (_, u64)| it.div_ceil(u64::from(store.blocks_per_slab(pool)))).sum()
}
