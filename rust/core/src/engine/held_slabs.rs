//! [`ReservedBytes`]: what the slabs are held for in which a block has an owner.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Engine;
use super::requests::RequestState;
use crate::error::Error;
use crate::group::{Group, Role};
use crate::ids::{BlockId, PoolId};
use crate::store::Store;

/// The sizes of what a store counts, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct ByteSizes<'a> {
    /// A slab, or a block of a fixed store.
    pub slab: u64,
    /// Bytes that a block of each group holds.
    pub blocks: &'a [u64],
}

/// Bytes of all slabs in which a block has an owner, by what they are held for. In a fixed store, of all blocks with
/// an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservedBytes {
    /// Computed tokens and states that a request still reads.
    pub needed: u64,
    /// Room in requests' blocks without such a token: behind the last one, for drafts, and before a window.
    pub unfilled: u64,
    /// Blocks that only copies and prefill checkpoints under way own.
    pub copies: u64,
    /// Blocks that outlive their request, such as those that a KV connector still reads.
    pub transfers: u64,
    /// Cached blocks without an owner. No other pool can have them, since their slab also holds owned ones.
    pub cached: u64,
    /// Free blocks in such slabs.
    pub free: u64,
    /// Bytes that no block uses: pools cut slabs of one size.
    pub padding: u64,
}

impl ReservedBytes {
    /// The parts by name.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        let Self { needed, unfilled, copies, transfers, cached, free, padding } = *self;
        [
            ("needed", needed),
            ("unfilled", unfilled),
            ("copies", copies),
            ("transfers", transfers),
            ("cached", cached),
            ("free", free),
            ("padding", padding),
        ]
    }
}

/// Blocks that tables name, each once, and their tokens that no request reads.
#[derive(Clone, Copy, Default)]
struct Owned {
    num_blocks: u64,
    num_unread: u64,
}

impl<S: Store, R: RequestState> Engine<S, R> {
    /// Counts what the reserved bytes are held for. `num_computed` tells how many tokens of a request are computed;
    /// where it does not know, all of a request's blocks are needed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for sizes of other groups, or of blocks that do not fit into their slab.
    pub(crate) fn reserved_bytes(
        &self,
        sizes: ByteSizes<'_>,
        num_computed: impl Fn(u64) -> Option<u32>,
    ) -> Result<ReservedBytes, Error> {
        let (store, groups) = (&self.cache.store, &self.cache.groups);
        if sizes.blocks.len() != groups.len() {
            return Err(Error::InvalidArgument(format!(
                "{} sizes of blocks for {} groups",
                sizes.blocks.len(),
                groups.len()
            )));
        }
        let owned = self.owned(num_computed);
        let mut reserved = ReservedBytes::default();
        for pool in (0..store.num_pools()).map(PoolId) {
            let per_slab = u64::from(store.blocks_per_slab(pool));
            let stride = sizes.slab / per_slab;
            let copies = self.num_held_by_copies(pool);
            let beside = store.beside_live(pool);
            let mut num_owned = 0;
            for ((group, owned), &size) in groups.iter().zip(&owned).zip(sizes.blocks) {
                if group.spec.pool != pool {
                    continue;
                }
                let Some(padding) = stride.checked_sub(size) else {
                    return Err(Error::InvalidArgument(format!(
                        "a block of group {} has {size} bytes, and a slab room for {stride}",
                        group.id
                    )));
                };
                let unfilled = owned.num_unread * size / u64::from(group.spec.block_size);
                reserved.unfilled += unfilled;
                reserved.needed += owned.num_blocks * size - unfilled;
                reserved.padding += owned.num_blocks * padding;
                num_owned += owned.num_blocks;
            }
            let num_live = u64::from(store.pool(pool).num_live());
            reserved.copies += copies * stride;
            reserved.transfers += num_live.saturating_sub(num_owned + copies) * stride;
            reserved.cached += beside.num_cached * stride;
            reserved.free += beside.num_free * stride;
            reserved.padding += beside.num_slabs * (sizes.slab - per_slab * stride);
        }
        Ok(reserved)
    }

    /// Returns the owned blocks by group.
    fn owned(&self, num_computed: impl Fn(u64) -> Option<u32>) -> Vec<Owned> {
        let (store, groups) = (&self.cache.store, &self.cache.groups);
        let mut owned = vec![Owned::default(); groups.len()];
        // Most shared blocks are read whole, which takes no ranges.
        let mut whole: FxHashSet<(usize, BlockId)> = FxHashSet::default();
        let mut shared: FxHashMap<(usize, BlockId), Vec<Range<u64>>> = FxHashMap::default();
        for row in self.requests.taken() {
            let num_computed = num_computed(self.requests.handle(row));
            let tables = groups.iter().zip(self.requests.tables(row));
            for (at, (group, table)) in tables.enumerate() {
                let states = store.pool(group.spec.pool);
                let size = u64::from(group.spec.block_size);
                let read = tokens_read(group, num_computed);
                let held = (0..).zip(&table.blocks).skip(table.num_skipped as usize);
                for (position, &block) in held.filter(|(_, block)| !block.is_null()) {
                    let inside = |token: u64| token.saturating_sub(position * size).min(size);
                    let read = inside(read.start)..inside(read.end);
                    if states.ref_count(block) == 1 {
                        owned[at].num_blocks += 1;
                        owned[at].num_unread += size - (read.end - read.start);
                    } else if read == (0..size) {
                        whole.insert((at, block));
                    } else {
                        shared.entry((at, block)).or_default().push(read);
                    }
                }
            }
        }
        for &(at, _) in &whole {
            owned[at].num_blocks += 1;
        }
        for ((at, block), mut read) in shared {
            if whole.contains(&(at, block)) {
                continue;
            }
            owned[at].num_blocks += 1;
            owned[at].num_unread += u64::from(groups[at].spec.block_size) - num_in(&mut read);
        }
        owned
    }

    /// Blocks of a pool that only copies under way own.
    fn num_held_by_copies(&self, pool: PoolId) -> u64 {
        let mut owners: FxHashMap<BlockId, u32> = FxHashMap::default();
        let blocks = self.cache.outbox.owned_blocks();
        for (_, block) in blocks.filter(|&(other, _)| other == pool) {
            *owners.entry(block).or_default() += 1;
        }
        let states = self.cache.store.pool(pool);
        owners.into_iter().filter(|&(block, count)| states.ref_count(block) == count).count() as u64
    }
}

/// Returns the tokens of its table that a request reads after `num_computed` tokens.
fn tokens_read(group: &Group, num_computed: Option<u32>) -> Range<u64> {
    let kind = group.kind();
    match (num_computed.filter(|_| kind.role() != Role::State), kind.encoder_tokens()) {
        (Some(num_computed), 0) if !kind.is_constant() => {
            u64::from(num_computed - kind.num_live_tokens(num_computed))..num_computed.into()
        }
        (Some(_), num_encoder) if num_encoder > 0 => 0..num_encoder.into(),
        _ => 0..u64::MAX,
    }
}

/// Returns how many tokens lie in at least one of the ranges.
fn num_in(ranges: &mut [Range<u64>]) -> u64 {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut num_tokens, mut end) = (0, 0);
    for range in ranges {
        num_tokens += range.end.saturating_sub(range.start.max(end));
        end = range.end.max(end);
    }
    num_tokens
}
