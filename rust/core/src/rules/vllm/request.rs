//! The rules' memory of a request.

use super::progress::RequestProgress;
use crate::engine::hit::HitLimit;
use crate::engine::requests::RequestState;
use crate::learn::CheckpointTrail;
use crate::learn::traffic::Shared;

/// Marks the requests of these rules. Each call brings their progress; a step reads how far they
/// can continue without a change.
#[derive(Debug)]
pub(crate) struct VllmRequest;

impl RequestState for VllmRequest {
    type Progress = NoChangeUntil;
    type Rest = Request;
}

/// The rest. Over a fixed store nearly all of it stays empty.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// Checkpoints that the request uses and leaves. The look-up plans them, or else the first allocation.
    pub(crate) trail: CheckpointTrail,
    /// Where the wanted chunk starts, and the checkpoint at which it ends: tokens.
    pub(crate) next_checkpoint: Option<(u32, u32)>,
    /// The request for whose checkpoint it waits, or waited.
    pub(crate) awaited: Option<u64>,
    /// Reason that ended the hit of the last look-up, until the admission counts it.
    pub(crate) ended_by: Option<HitLimit>,
    /// Leading tokens whose full attention its last look-up found.
    pub(crate) attention: u32,
    /// How its prompt shares blocks with earlier ones, until its admission takes note of that.
    pub(crate) shared: Option<Shared>,
    /// Whether the client named a session or gave a hint.
    pub(crate) is_named: bool,
    /// Whether others still write what it was admitted with: nothing of it may be found.
    pub(crate) is_loading: bool,
    /// Whether it could not grow the last time, though no other request held a block.
    pub(crate) is_stuck: bool,
    /// Tokens computed when it was to be given up.
    pub(crate) num_computed: u32,
}

impl Request {
    /// Forgets all but what the client said of it.
    pub(crate) fn suspend(&mut self) {
        let Self { trail, is_named, .. } = std::mem::take(self);
        let CheckpointTrail { client, session, hint, .. } = trail;
        let trail = CheckpointTrail { client, session, hint, ..CheckpointTrail::default() };
        *self = Self { trail, is_named, ..Self::default() };
    }
}

/// A decoding request stays within its blocks for many steps. Up to these token counts no group
/// takes a block, gives one back or enters one into the prefix cache. Such a step costs a few
/// comparisons.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NoChangeUntil {
    /// Tokens of the prompt. This holds once they are computed, and as long as no more are added, as
    /// streamed input does.
    pub(super) num_prompt: u32,
    /// Tokens that have room where every token of a step needs it.
    pub(super) room: u32,
    /// Tokens that have room where drafts looked ahead to need none.
    pub(super) main_room: u32,
    /// Tokens computed for good at which no group gives anything back.
    pub(super) processed: u32,
    /// Computed tokens that complete no block.
    pub(super) committed: u32,
    /// New tokens a step, so that no checkpoint is written inside it.
    pub(super) step: u32,
    /// Live blocks that had lost their keys to somebody else.
    pub(super) num_dropped: u64,
    pub(super) is_known: bool,
}

impl NoChangeUntil {
    /// Whether a step of `num_new` tokens, and room for `num_lookahead` more, changes nothing.
    #[inline]
    pub(crate) fn covers(
        &self,
        progress: &RequestProgress,
        num_new: u32,
        num_lookahead: u32,
        num_dropped: u64,
    ) -> bool {
        let (start, end) = (progress.num_computed, progress.num_computed + num_new);
        self.covers_commit(end, num_dropped)
            && progress.num_prompt == self.num_prompt
            && start >= self.num_prompt
            && end + num_lookahead <= self.room
            && end <= self.main_room
            && progress.num_processed(start) <= self.processed
            && num_new <= self.step
    }

    /// Whether committing `num_computed` tokens changes nothing.
    #[inline]
    pub(crate) fn covers_commit(&self, num_computed: u32, num_dropped: u64) -> bool {
        self.is_known
            && self.num_dropped == num_dropped
            && num_computed >= self.num_prompt
            && num_computed <= self.committed
    }
}
