//! [`Step`]: what is scheduled at a time.

use std::collections::VecDeque;

use hybrid_blocks::BlockId;

use super::request::Request;
use crate::tokens::Tokens;

/// Scheduled work of one request. Counts are tokens.
#[derive(Debug)]
pub(super) struct Work {
    /// [`Request::life`](super::request::Request::life).
    pub(super) life: (u32, u32),
    pub(super) num_new: u32,
    pub(super) num_drafts: u32,
    /// Drafts that turn out to be right.
    pub(super) num_right: u32,
    /// Whether a token is sampled after it.
    pub(super) samples: bool,
    /// Right tokens that its request has computed when it has ended.
    pub(super) num_written: u32,
}

impl Work {
    /// Tokens that it samples, at most.
    pub(super) fn num_sampled(&self) -> u32 {
        if self.samples { 1 + self.num_drafts } else { 0 }
    }
}

#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) work: Vec<Work>,
    /// Tokens that may still be scheduled.
    pub(super) budget: u32,
    pub(super) has_preempted: bool,
    /// Waiting requests that hold blocks and were passed over.
    pub(super) holding: VecDeque<Request>,
    /// Loads that end with it.
    pub(super) ended: Vec<Load>,
}

/// Tokens `start` to `end` of a request, for the blocks that it holds.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) life: (u32, u32),
    pub(super) tokens: Tokens,
    pub(super) tables: Vec<Vec<BlockId>>,
    pub(super) start: u32,
    pub(super) end: u32,
    /// Steps until it ends.
    pub(super) num_steps: u32,
    pub(super) fails: bool,
}

impl Load {
    /// Where what a load writes that fails begins to be wrong.
    pub(super) fn right(&self) -> u32 {
        if self.fails { u32::midpoint(self.start, self.end) } else { self.end }
    }
}
