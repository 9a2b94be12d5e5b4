//! When a step of a request changes nothing.

use super::cache::Cache;
use super::config::{GroupConfig, Kind};
use super::request::{Facts, Request, Table};
use crate::store::Store;

/// A decoding request stays within its blocks for many steps. These are the token counts up to
/// which no group has a block to take, to give back or to enter into the prefix cache, so that such
/// a step costs a few comparisons.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quiet {
    /// Computed tokens from which on this holds: the prompt is done.
    from: u32,
    /// Tokens that have room where every token of a step needs it.
    room: u32,
    /// Tokens that have room where drafts looked ahead to need none.
    main_room: u32,
    /// Tokens computed for good at which no group gives anything back.
    processed: u32,
    /// Computed tokens that complete no block.
    committed: u32,
    /// New tokens a step, so that no checkpoint is written inside it.
    step: u32,
    /// Live blocks that had lost their keys to somebody else.
    num_dropped: u64,
    is_known: bool,
}

/// A step, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Computed before it.
    pub(crate) start: u32,
    /// Computed after it.
    pub(crate) end: u32,
    /// With those that a drafter looks ahead to.
    pub(crate) slots: u32,
    /// Computed for good before it.
    pub(crate) processed: u32,
}

impl Quiet {
    /// Whether `step` changes nothing.
    #[inline]
    pub(crate) fn covers(&self, step: Step, num_dropped: u64) -> bool {
        self.is_known
            && self.num_dropped == num_dropped
            && step.start >= self.from
            && step.slots <= self.room
            && step.end <= self.main_room
            && step.processed <= self.processed
            && step.end <= self.committed
            && step.end - step.start <= self.step
    }

    /// Whether committing `num_computed` tokens changes nothing.
    #[inline]
    pub(crate) fn covers_commit(&self, num_computed: u32, num_dropped: u64) -> bool {
        self.is_known
            && self.num_dropped == num_dropped
            && num_computed >= self.from
            && num_computed <= self.committed
    }
}

impl Cache<'_> {
    /// How far the request can go, after a step that left nothing to give back for `num_processed`
    /// tokens and nothing to enter for `num_committed`.
    pub(crate) fn quiet(
        &self,
        request: &Request,
        facts: &Facts,
        num_processed: u32,
        num_committed: u32,
    ) -> Quiet {
        let mut quiet = Quiet {
            from: facts.num_prompt,
            room: u32::MAX,
            main_room: u32::MAX,
            processed: u32::MAX,
            committed: u32::MAX,
            step: u32::MAX,
            num_dropped: self.store.num_dropped(),
            is_known: true,
        };
        for (config, table) in self.config.groups.iter().zip(&request.tables) {
            if table.partial_hit.is_some() {
                return Quiet::default();
            }
            if config.kind.is_aligned()
                && (!table.aligned.allocated
                    || table.aligned.checkpoint.is_some()
                    || (self.config.enable_caching() && self.config.num_reprefillable > 0))
            {
                return Quiet::default();
            }
            if let Kind::MambaAligned { has_checkpoint_blocks: true, .. } = config.kind {
                quiet.step = self.config.hash_block_size - 1;
            }
            let held = table.blocks.len() as u32;
            let drafts = match config.kind {
                Kind::MambaAligned { num_speculative, .. }
                | Kind::MambaInPlace { num_speculative } => num_speculative,
                _ => 0,
            };
            let room = held.saturating_sub(drafts) * config.block_size;
            let limit =
                if config.kind.is_aligned() { &mut quiet.main_room } else { &mut quiet.room };
            *limit = (*limit).min(room);
            quiet.processed = quiet.processed.min(processed_limit(config, table, num_processed));
            if self.config.enable_caching() {
                if self.has_open_tail(config, request, facts, num_committed) {
                    return Quiet::default();
                }
                quiet.committed = quiet.committed.min(self.next_commit(config, table) - 1);
            }
        }
        quiet
    }

    /// Whether the end of the prompt, at which a block can be hit inside, is still to be entered at
    /// a token count that completes no block.
    fn has_open_tail(
        &self,
        config: &GroupConfig,
        request: &Request,
        facts: &Facts,
        num_committed: u32,
    ) -> bool {
        let hash_block = self.config.hash_block_size;
        if !config.kind.is_full() || config.block_size == hash_block {
            return false;
        }
        let is_hashed = request.digests.len() >= (facts.num_prompt / hash_block) as usize;
        let is_lagging = config.use_eagle || self.config.num_reprefillable > 0;
        let tail = self.prompt_tail(config, facts, request.digests.len());
        !is_hashed || (is_lagging && tail > self.num_cacheable(num_committed, config))
    }

    /// Computed tokens, at least, that complete the group's next block.
    fn next_commit(&self, config: &GroupConfig, table: &Table) -> u32 {
        let end = (table.num_cached.unwrap_or(0) + 1) * config.block_size;
        if !self.config.is_hybrid() || self.config.is_fine_grained() {
            return end;
        }
        let unit = self.config.scheduler_block_size;
        if config.use_eagle {
            end.max((end - config.block_size).next_multiple_of(unit)).max(unit)
        } else {
            end.next_multiple_of(unit)
        }
    }
}

/// Processed tokens up to which a group gives nothing back.
fn processed_limit(config: &GroupConfig, table: &Table, num_processed: u32) -> u32 {
    let size = config.block_size;
    let skipped = config.kind.num_skipped_tokens(num_processed) / size;
    // The next position goes once this many tokens are skipped.
    let next = (skipped + 1) * size;
    match config.kind {
        Kind::Full => u32::MAX,
        Kind::SlidingWindow { window, extra_retained } => next + window + extra_retained - 2,
        Kind::Chunked { chunk } => (num_processed / chunk + 1) * chunk - 1,
        Kind::MambaInPlace { .. } => next,
        Kind::MambaAligned { .. } => {
            let retired = (table.aligned.num_retired + 1) * size;
            let last_state = table
                .aligned
                .last_state
                .filter(|&at| table.blocks.get(at as usize).is_some_and(|block| !block.is_null()));
            last_state.map_or(retired, |at| retired.min((at + 1) * size))
        }
    }
}
