//! The engine's knowledge of a request at the time of a call, and its question. Counts are tokens,
//! unless they are blocks.

use crate::ids::BlockId;

/// How far a request has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestProgress {
    /// Computed, drafts among them.
    pub num_computed: u32,
    /// Tokens that are known.
    pub num_tokens: u32,
    /// Tokens of the prompt.
    pub num_prompt: u32,
    /// Scheduled in steps that have not ended. Below 0 after a step that an earlier request of the same
    /// id was in.
    pub num_in_flight: i32,
    /// Where earlier requests were seen to diverge, or 0.
    pub shared_prefix_boundary: u32,
    /// Whether it is waiting to be admitted, for the first time or again.
    pub is_waiting: bool,
    /// Whether it was admitted before, and preempted.
    pub was_preempted: bool,
}

impl RequestProgress {
    /// Returns the tokens among `num_computed` whose steps have ended.
    #[inline]
    pub(crate) fn num_processed(&self, num_computed: u32) -> u32 {
        num_computed.saturating_add_signed(self.num_in_flight.saturating_neg())
    }

    /// Tokens that the prefill computes: all but the last known one, unless that ends the prompt.
    pub(crate) fn prefill_end(&self) -> u32 {
        self.num_prompt.max(self.num_tokens.saturating_sub(1))
    }
}

/// Request for room of one allocation.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocateArgs<'a> {
    /// To be computed, drafts included.
    pub num_new: u32,
    /// Tokens of the hit.
    pub num_new_computed: u32,
    /// Blocks of the hit by group; `None` where there was no lookup or nothing was found.
    pub computed: Option<&'a [Vec<BlockId>]>,
    /// After the new ones, for a drafter.
    pub num_lookahead: u32,
    /// Tokens that others compute.
    pub num_external: u32,
    /// Encoder tokens, for cross attention.
    pub num_encoder: u32,
    /// Whether the blocks are filled later and must not be hit before.
    pub delay_commit: bool,
    /// Whether the whole request must fit, not only this step.
    pub full_sequence_must_fit: bool,
    /// Blocks to leave to others.
    pub reserved_blocks: u64,
    /// Blocks that the engine counts as taken though no request owns them; below 0 where it counts
    /// more as free than there are.
    pub withheld_blocks: i64,
    /// Whether others run, so that an admission leaves the watermark free.
    pub has_scheduled: bool,
    /// Groups whose blocks for external tokens are written by others and must not be zeroed.
    pub unzeroed_groups: &'a [u32],
}

impl AllocateArgs<'_> {
    /// Whether others write what is computed elsewhere, beside steps.
    pub(crate) fn is_load(&self) -> bool {
        self.num_external > 0 && self.delay_commit
    }

    /// The tokens of the step, where no request is longer than `max_len`.
    pub(crate) fn counts(&self, progress: &RequestProgress, max_len: u32) -> TokenCounts {
        let num_local = progress.num_computed + self.num_new_computed;
        let num_computed = num_local + self.num_external;
        let num_main = num_computed.min(max_len) + self.num_new;
        TokenCounts {
            num_tokens: (num_main + self.num_lookahead).min(max_len),
            num_main,
            num_computed,
            num_local,
            num_encoder: self.num_encoder,
            prefill_end: progress.prefill_end(),
            is_admission: false,
        }
    }
}

/// The tokens that an allocation is about.
#[derive(Clone, Copy, Debug)]
pub struct TokenCounts {
    /// Tokens that need room, those that have it and drafts included.
    pub num_tokens: u32,
    /// The same without tokens that only a drafter looks ahead to.
    pub num_main: u32,
    /// Computed before, here or elsewhere.
    pub num_computed: u32,
    /// Computed before, here.
    pub num_local: u32,
    /// Encoder tokens, for cross attention.
    pub num_encoder: u32,
    /// Where the request's prefill ends.
    pub prefill_end: u32,
    /// Whether this asks for the whole request at once, to decide on its admission.
    pub is_admission: bool,
}
