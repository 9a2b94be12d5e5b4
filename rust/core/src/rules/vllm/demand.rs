//! How many blocks an allocation would take, cached ones that it revives included.

use super::call::Call;
use super::config::GroupConfig;
use super::progress::TokenCounts;
use crate::group::{GroupKind, Table};
use crate::ids::{BlockId, PoolId};
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    /// Whether the store has the blocks that an allocation would take, `kept` blocks more and those left to others.
    /// Reserves the blocks of the allocation.
    pub(crate) fn fits(
        &mut self,
        computed: Option<&[Vec<BlockId>]>,
        counts: TokenCounts,
        kept: i64,
    ) -> bool {
        if !self.cache.store.is_slabbed() {
            let needed = self.demand(computed, counts) + kept;
            self.cache.demand[0] = needed.max(0).cast_unsigned();
            return self.cache.reserve().is_ok();
        }
        self.cache.demand.fill(0);
        let others = self.cache.demand.iter_mut().zip(&self.slabs.left_to_others);
        others.for_each(|(demand, it)| *demand += it);
        for group in 0..self.tables.len() {
            let computed = computed.map_or(&[][..], |blocks| &blocks[group]);
            let needed = self.group_demand(group, computed, counts).max(0).cast_unsigned();
            let (pool, kept) = (self.pool(group), self.kept(group));
            self.cache.demand[pool.index()] += needed;
            if kept != pool {
                self.cache.demand[kept.index()] += self.kept_demand(group, computed, counts);
            }
        }
        self.cache.reserve().is_ok_and(|spare| spare >= kept.max(0).cast_unsigned())
    }

    /// Blocks that all groups together would take. `computed` has the hit's blocks by group.
    ///
    /// An aligned group that holds more than it needs counts below zero, as in vLLM.
    pub(crate) fn demand(&mut self, computed: Option<&[Vec<BlockId>]>, counts: TokenCounts) -> i64 {
        self.demands(computed, counts).map(|(_, demand)| demand).sum()
    }

    /// Slabs that all groups together would take, at most.
    pub(crate) fn slab_demand(
        &mut self,
        computed: Option<&[Vec<BlockId>]>,
        counts: TokenCounts,
    ) -> i64 {
        let mut by_pool = vec![0; self.cache.store.num_pools() as usize];
        self.demands(computed, counts)
            .for_each(|(pool, demand)| by_pool[pool.index()] += demand.max(0));
        let pools = (0..).map(PoolId).zip(by_pool);
        let sizes = pools.map(|(pool, it)| (i64::from(self.cache.store.blocks_per_slab(pool)), it));
        sizes.map(|(size, demand)| (demand + size - 1) / size).sum()
    }

    fn demands<'a>(
        &'a mut self,
        computed: Option<&'a [Vec<BlockId>]>,
        counts: TokenCounts,
    ) -> impl Iterator<Item = (PoolId, i64)> + 'a {
        (0..self.tables.len()).flat_map(move |group| {
            let computed = computed.map_or(&[][..], |blocks| &blocks[group]);
            let kept = self.group(group).keeps_apart().then(|| {
                let demand = self.kept_demand(group, computed, counts);
                (self.kept(group), demand.cast_signed())
            });
            let own = (self.pool(group), self.group_demand(group, computed, counts));
            std::iter::once(own).chain(kept)
        })
    }

    /// Whether what others compute replaces a group's hit: one state is all that is kept, and it is
    /// written into a block of its own. A fork would be copied while it is written.
    pub(crate) fn is_replaced(&self, group: usize, counts: TokenCounts) -> bool {
        self.config.checkpoints.is_some()
            && counts.num_computed > counts.num_local
            && self.config_of(group).kind.is_aligned()
    }

    fn group_demand(&mut self, group: usize, computed: &[BlockId], counts: TokenCounts) -> i64 {
        let config = self.config_of(group);
        let computed = if self.is_replaced(group, counts) { &[] } else { computed };
        if config.kind.is_mamba()
            && let Some((key, _)) = computed.last().and_then(|&it| self.first_key(group, it))
            && self.outputs[group].cached_this_step.contains(&key.digest)
        {
            // The state is only there after this step: ask for more than there is.
            return i64::from(self.cache.store.pool(self.pool(group)).num_ids()) + 1;
        }
        match config.kind {
            GroupKind::MambaAligned { num_speculative, .. } => {
                self.aligned_demand(group, num_speculative, computed, counts)
            }
            GroupKind::Cross { .. } => {
                i64::from(self.num_missing_for_encoder(group, counts.num_encoder))
            }
            kind if kind.is_constant() => {
                let held = self.tables[group].blocks.len() as u32;
                kind.constant_blocks(config.block_size).saturating_sub(held).into()
            }
            _ => self.positional_demand(group, computed, counts),
        }
    }

    /// Blocks missing until the encoder's tokens have room.
    pub(crate) fn num_missing_for_encoder(&self, group: usize, num_encoder: u32) -> u32 {
        let held = self.tables[group].blocks.len() as u32;
        num_encoder.div_ceil(self.config_of(group).block_size).saturating_sub(held)
    }

    /// One block a position.
    fn positional_demand(&self, group: usize, computed: &[BlockId], counts: TokenCounts) -> i64 {
        let (config, own, table) = (self.config_of(group), self.group(group), &self.tables[group]);
        let mut required = own.table_len(u64::from(counts.num_tokens)) as u32;
        if counts.is_admission
            && let Some(cap) = config.admission_cap
        {
            required = required.min(cap);
        }
        let held = table.blocks.len() as u32;
        if table.num_cached().is_some() {
            if counts.is_admission && self.waits_with_blocks && self.cache.store.is_slabbed() {
                let most = own.table_len(u64::from(counts.num_tokens));
                return num_missing(table, most, config.admission_cap).cast_signed();
            }
            return i64::from(required.saturating_sub(held));
        }
        let skipped = own.num_skipped_blocks(counts.num_computed);
        let present = computed.len() as u32 + held;
        let new = required.saturating_sub(skipped.max(present));
        let skipped_hits = (skipped.saturating_sub(held) as usize).min(computed.len());
        let revived = self.num_revived(group, &computed[skipped_hits..]);
        let copy = ends_inside_block(config, computed, counts.num_local);
        i64::from(new) + revived + i64::from(copy)
    }

    /// One block for the state, a copy of a shared one, a checkpoint, and drafts the first time.
    fn aligned_demand(
        &mut self,
        group: usize,
        num_speculative: u32,
        computed: &[BlockId],
        counts: TokenCounts,
    ) -> i64 {
        let (config, table) = (self.config_of(group), &self.tables[group]);
        let required = i64::from(counts.num_main.div_ceil(config.block_size) + num_speculative);
        let mut new = required
            - computed.len().cast_signed() as i64
            - table.blocks.len().cast_signed() as i64;
        let keeps_apart = self.group(group).keeps_apart();
        let copy = ends_inside_block(config, computed, counts.num_local)
            || (table.copy_source().is_some() && !(keeps_apart && table.moving().allocated));
        if copy {
            new = new.max(0) + 1;
        }
        let checkpoint = self.checkpoint_in(group, counts);
        let moving = table.moving();
        if !counts.is_admission && moving.checkpoint != checkpoint {
            self.tables[group].moving_mut().checkpoint = checkpoint;
        }
        if new > 0 {
            let moves = checkpoint.is_none() || self.config.release.moves_drafts_at_checkpoints;
            let drafts = if moving.allocated && moves { 0 } else { num_speculative };
            let most = 1 + u32::from(copy) + u32::from(checkpoint.is_some()) + drafts;
            new = new.min(i64::from(most));
        }
        if !counts.is_admission {
            new += self.num_inside(group);
        }
        if keeps_apart { new } else { new + self.num_revived(group, computed) }
    }

    /// Blocks of a group's other pool, where that keeps checkpoints apart: one for a planned copy of its state, and
    /// those of a hit that would be held again.
    fn kept_demand(&self, group: usize, computed: &[BlockId], counts: TokenCounts) -> u64 {
        let table = &self.tables[group];
        let copies = table.copy_source().is_some() && table.moving().allocated;
        let computed = if self.is_replaced(group, counts) { &[] } else { computed };
        u64::from(copies) + self.num_revived(group, computed).cast_unsigned()
    }

    /// Blocks that vLLM's count of an admission leaves out: where others compute a state, it takes a block of
    /// its own if the step's last token does not share its block. Slabs are counted again once hits are adopted.
    pub(crate) fn num_uncounted(
        &mut self,
        computed: Option<&[Vec<BlockId>]>,
        counts: TokenCounts,
    ) -> i64 {
        if counts.num_computed == counts.num_local
            || self.is_running()
            || self.cache.store.is_slabbed()
        {
            return 0;
        }
        let groups = 0..self.tables.len();
        groups.map(|group| self.num_uncounted_in(group, computed, counts)).sum()
    }

    fn num_uncounted_in(
        &mut self,
        group: usize,
        computed: Option<&[Vec<BlockId>]>,
        counts: TokenCounts,
    ) -> i64 {
        let &GroupConfig { kind, block_size, .. } = self.config_of(group);
        let GroupKind::MambaAligned { num_speculative, .. } = kind else { return 0 };
        let hit = computed.map_or(&[][..], |blocks| &blocks[group]);
        let counted = self.aligned_demand(group, num_speculative, hit, counts);
        let skipped = self.group(group).num_skipped_blocks(counts.num_computed);
        let kept = &hit[hit.len().min(skipped as usize)..];
        let copy = !kept.is_empty() && !counts.num_local.is_multiple_of(block_size);
        let held = skipped.max(hit.len() as u32);
        let end = held.max(counts.num_computed.div_ceil(block_size));
        let required = counts.num_main.div_ceil(block_size);
        let checkpoint = u32::from(self.tables[group].moving().checkpoint.is_some());
        let first_new = end.max(required.saturating_sub(1 + checkpoint));
        let new = (required + num_speculative).saturating_sub(first_new);
        i64::from(end - held + new) + i64::from(copy) + self.num_revived(group, kept) - counted
    }

    fn num_revived(&self, group: usize, blocks: &[BlockId]) -> i64 {
        let states = self.cache.store.pool(self.kept(group));
        let idle = blocks.iter().filter(|&&block| states.is_available(block));
        idle.count().cast_signed() as i64
    }
}

/// Blocks that a request takes until it has room for `most` of a group, where it gives back some on the way.
pub(crate) fn num_missing(table: &Table, most: u64, cap: Option<u32>) -> u64 {
    let room = cap.map_or(u64::MAX, |cap| u64::from(cap).saturating_sub(table.num_held()));
    most.saturating_sub(table.blocks.len() as u64).min(room)
}

/// Whether a local hit ends inside its last block, which then must be copied before it is written.
pub(crate) fn ends_inside_block(config: &GroupConfig, hit: &[BlockId], num_local: u32) -> bool {
    !hit.is_empty() && !num_local.is_multiple_of(config.block_size)
}
