//! How many blocks an allocation would take, cached ones that it revives included.

use crate::ids::BlockId;
use crate::store::Store;

use super::cache::{Cache, POOL};
use super::config::{GroupConfig, Kind};
use super::request::{Request, Table};

/// The tokens that an allocation is about.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Tokens that need room, those that have it and drafts included.
    pub num_tokens: u32,
    /// The same without tokens that only a drafter looks ahead to.
    pub num_main: u32,
    /// Computed before, here or elsewhere.
    pub num_computed: u32,
    /// Computed before, here.
    pub num_local: u32,
    /// Where the request's prefill ends.
    pub prefill_end: u32,
    /// Whether this asks for the whole request at once, to decide on its admission.
    pub is_admission: bool,
}

impl Cache<'_> {
    /// Blocks that all groups together would take. `computed` has the hit's blocks by group.
    ///
    /// An aligned group that holds more than it needs counts below zero, as in vLLM.
    pub(crate) fn demand(
        &self,
        request: &mut Request,
        computed: Option<&[Vec<BlockId>]>,
        mut span: Span,
    ) -> i64 {
        if self.config.retention_interval != Some(0) {
            span.prefill_end = 0;
        }
        (0..self.config.groups.len())
            .map(|group| {
                let computed = computed.map_or(&[][..], |blocks| &blocks[group]);
                self.group_demand(&mut request.tables[group], group, computed, span)
            })
            .sum()
    }

    fn group_demand(
        &self,
        table: &mut Table,
        group: usize,
        computed: &[BlockId],
        span: Span,
    ) -> i64 {
        let config = self.group(group);
        if config.kind.is_mamba()
            && let Some((key, _)) = computed.last().and_then(|&block| self.first_key(block))
            && self.outboxes[group].cached_this_step.contains(&key.digest)
        {
            // The state is only there after this step: ask for more than there is.
            return i64::from(self.store.pool(POOL).num_ids()) + 1;
        }
        match config.kind {
            Kind::MambaAligned { .. } => self.aligned_demand(table, &config, computed, span),
            Kind::MambaInPlace { num_speculative } => {
                let drafts = config.block_size * num_speculative;
                let span = Span { num_tokens: span.num_tokens + drafts, ..span };
                self.positional_demand(table, &config, computed, span)
            }
            _ => self.positional_demand(table, &config, computed, span),
        }
    }

    /// One block a position.
    fn positional_demand(
        &self,
        table: &Table,
        config: &GroupConfig,
        computed: &[BlockId],
        span: Span,
    ) -> i64 {
        let mut required = span.num_tokens.div_ceil(config.block_size);
        if span.is_admission
            && let Some(cap) = config.admission_cap
        {
            required = required.min(cap);
        }
        let held = table.blocks.len() as u32;
        if table.num_cached.is_some() {
            return i64::from(required.saturating_sub(held));
        }
        let skipped = config.kind.num_skipped_tokens(span.num_computed) / config.block_size;
        let present = computed.len() as u32 + held;
        let new = required.saturating_sub(skipped.max(present));
        let skipped_hits = (skipped.saturating_sub(held) as usize).min(computed.len());
        let revived = self.num_revived(&computed[skipped_hits..]);
        let copy = ends_inside_block(config, computed, span.num_local);
        i64::from(new) + revived + i64::from(copy)
    }

    /// One block for the state, a copy of a shared one, a checkpoint, and drafts the first time.
    fn aligned_demand(
        &self,
        table: &mut Table,
        config: &GroupConfig,
        computed: &[BlockId],
        span: Span,
    ) -> i64 {
        let Kind::MambaAligned { num_speculative, .. } = config.kind else { return 0 };
        let required = i64::from(span.num_main.div_ceil(config.block_size) + num_speculative);
        let mut new = required
            - computed.len().cast_signed() as i64
            - table.blocks.len().cast_signed() as i64;
        let copy =
            ends_inside_block(config, computed, span.num_local) || table.partial_hit.is_some();
        if copy {
            new = new.max(0) + 1;
        }
        let checkpoint = self.checkpoint_in(table, config, span);
        if !span.is_admission {
            table.aligned.checkpoint = checkpoint;
        }
        if new > 0 {
            let drafts = if table.aligned.allocated { 0 } else { num_speculative };
            let most = 1 + u32::from(copy) + u32::from(checkpoint.is_some()) + drafts;
            new = new.min(i64::from(most));
        }
        new + self.num_revived(computed)
    }

    fn num_revived(&self, blocks: &[BlockId]) -> i64 {
        let pool = self.store.pool(POOL);
        let is_idle = |block: &&BlockId| !block.is_null() && pool.ref_count(**block) == 0;
        blocks.iter().filter(is_idle).count().cast_signed() as i64
    }
}

/// Whether a local hit ends inside its last block, which then must be copied before it is written.
pub(crate) fn ends_inside_block(config: &GroupConfig, hit: &[BlockId], num_local: u32) -> bool {
    !hit.is_empty() && !num_local.is_multiple_of(config.block_size)
}
