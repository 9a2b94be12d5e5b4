//! What the rules remember of a request.

use super::no_change::NoChangeUntil;
use crate::digest::Digest;
use crate::engine::requests::RequestState;
use crate::group::Table;
use crate::rules::checkpoint_policy::CheckpointPlan;
use crate::rules::hit::HitLimit;
use crate::rules::keeper::Visit;
use crate::rules::sessions::{Hint, WorthClass};
use crate::rules::traffic::Shared;
use crate::rules::windows::Windows;

/// Marks the requests of these rules. Their progress is told with each call; what a step looks at is
/// how far they can go on without a change.
#[derive(Debug)]
pub(super) struct VllmRequest;

impl RequestState for VllmRequest {
    type Progress = NoChangeUntil;
    type Rest = Request;
}

/// The rest. Over a fixed store nearly all of it stays empty.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// Where it leaves checkpoints: made by its look-up, or else when it is first scheduled.
    pub(super) plan: Option<CheckpointPlan>,
    /// Where its chunk starts that is asked for, and the checkpoint to which it goes on: tokens.
    pub(super) next_checkpoint: Option<(u32, u32)>,
    /// The request for whose checkpoint it waits, or waited.
    pub(super) awaited: Option<u64>,
    /// What ended the hit of its last look-up, until its admission counts that.
    pub(super) ended_by: Option<HitLimit>,
    /// How its prompt shares blocks with earlier ones, until its admission takes note of that.
    pub(super) shared: Option<Shared>,
    /// Whether its prompt was taken note of.
    pub(super) is_known: bool,
    /// Whether anything was said of it.
    pub(super) is_named: bool,
    /// What was said of how its session goes on.
    pub(super) hint: Hint,
    /// A number of its session, 0 if nothing was said.
    pub(super) session: u64,
    /// Earlier turns of its conversation, as far as they are remembered.
    pub(super) num_turns: u8,
    /// Tokens that it went on from.
    pub(super) start: u32,
    /// Whether others still write what it was admitted with: nothing of it may be found.
    pub(super) is_loading: bool,
    /// Tokens of the state that others wrote, 0 if none did.
    pub(super) loaded: u32,
    /// Tokens computed when it was to be given up.
    pub(super) num_computed: u32,
    /// Lengths of the checkpoints that it went on from and left.
    pub(super) checkpoints: Vec<u32>,
    /// What left its windows.
    pub(super) windows: Windows,
}

impl Request {
    /// The request as a keeper sees it, which has so many tokens computed. What was said of its session counts
    /// once it is over.
    pub(super) fn visit<'a>(
        &self,
        tables: &'a [Table],
        digests: &'a [Digest],
        num_computed: u32,
        is_over: bool,
    ) -> Visit<'a> {
        let hint = if is_over { self.hint } else { Hint::None };
        Visit {
            tables,
            digests,
            plan: self.plan.unwrap_or_default(),
            start: self.start,
            num_computed,
            class: WorthClass::new(self.num_turns, hint),
            session: self.session,
        }
    }
}
