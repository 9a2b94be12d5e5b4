//! What the rules remember of a request.

use super::no_change::NoChangeUntil;
use crate::engine::requests::RequestState;
use crate::rules::hit::HitLimit;
use crate::rules::slabs::Trail;
use crate::rules::traffic::Shared;

/// Marks the requests of these rules. Each call brings their progress; a step reads how far they
/// can continue without a change.
#[derive(Debug)]
pub(super) struct VllmRequest;

impl RequestState for VllmRequest {
    type Progress = NoChangeUntil;
    type Rest = Request;
}

/// The rest. Over a fixed store nearly all of it stays empty.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// What it uses and leaves. Its plan is made by its look-up, or else when it is first scheduled.
    pub(super) trail: Trail,
    /// Where the wanted chunk starts, and the checkpoint at which it ends: tokens.
    pub(super) next_checkpoint: Option<(u32, u32)>,
    /// The request for whose checkpoint it waits, or waited.
    pub(super) awaited: Option<u64>,
    /// What ended the hit of its last look-up, until its admission counts that.
    pub(super) ended_by: Option<HitLimit>,
    /// Leading tokens whose full attention its last look-up found.
    pub(super) attention: u32,
    /// How its prompt shares blocks with earlier ones, until its admission takes note of that.
    pub(super) shared: Option<Shared>,
    /// Whether anything was said of it.
    pub(super) is_named: bool,
    /// Whether others still write what it was admitted with: nothing of it may be found.
    pub(super) is_loading: bool,
    /// Whether it could not grow the last time, though no other request held a block.
    pub(super) is_stuck: bool,
    /// Tokens computed when it was to be given up.
    pub(super) num_computed: u32,
}

impl Request {
    /// Forgets all but what the client said of it.
    pub(super) fn suspend(&mut self) {
        let Self { trail, is_named, .. } = std::mem::take(self);
        let Trail { client, session, hint, .. } = trail;
        let trail = Trail { client, session, hint, ..Trail::default() };
        *self = Self { trail, is_named, ..Self::default() };
    }
}
