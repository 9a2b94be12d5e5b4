//! [`Request`]: what an engine knows of one.

use hybrid_blocks::vllm::RequestProgress;
use hybrid_blocks::{Digest, Hint};

use crate::tokens::Tokens;

/// Where a request is. Counts are tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The request waits to be admitted.
    Waiting,
    /// A connector fills the blocks.
    Loading,
    /// The blocks are filled up to `valid`, and the request waits to continue.
    Loaded {
        valid: u32,
    },
    Running,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
pub(super) struct Request {
    pub(super) id: String,
    /// In the order of arrival.
    pub(super) number: u32,
    pub(super) priority: u8,
    /// All that it will ever have, and more than that.
    pub(super) tokens: Tokens,
    pub(super) num_prompt: u32,
    /// Tokens to end with.
    pub(super) length: u32,
    /// Whether it ends by a token, so that no step knows when before that is sampled.
    pub(super) ends_unforeseen: bool,
    pub(super) session: Option<String>,
    pub(super) hint: Hint,
    /// Tokens that the other end of the connector has.
    pub(super) reach: u32,
    /// Steps until a load of it ends.
    pub(super) load_steps: u32,
    pub(super) load_fails: bool,
    /// Whether the connector answers the second question only.
    pub(super) is_asked_again: bool,

    pub(super) stage: Stage,
    /// Tokens that the scheduler knows.
    pub(super) num_known: u32,
    /// Tokens that it takes for computed: those of steps in flight too, and drafts that may be rejected.
    pub(super) num_computed: u32,
    pub(super) num_in_flight: u32,
    /// Tokens that steps in flight sample, at most.
    pub(super) num_placeholders: u32,
    /// Whether a drafter has followed the last token.
    pub(super) is_drafted: bool,
    pub(super) boundary: u32,
    pub(super) num_preemptions: u32,

    /// Tokens that the worker has computed, and none rejected.
    pub(super) num_written: u32,
    /// The slot that holds the state after them.
    pub(super) column: usize,
}

impl Request {
    pub(super) fn progress(&self) -> RequestProgress {
        RequestProgress {
            num_computed: self.num_computed,
            num_tokens: self.num_known,
            num_prompt: self.num_prompt,
            num_in_flight: self.num_in_flight.cast_signed(),
            shared_prefix_boundary: self.boundary,
            is_waiting: self.stage != Stage::Running,
            was_preempted: self.num_preemptions > 0,
        }
    }

    /// Digests of the tokens that are known.
    pub(super) fn digests(&self, hash_block_size: u32) -> Vec<Digest> {
        self.tokens.digests(hash_block_size, 0..self.num_known / hash_block_size)
    }

    /// Takes in the tokens sampled after `num_written` computed ones. Returns whether it is over.
    pub(super) fn take_sampled(&mut self, num_written: u32) -> bool {
        self.num_known = self.num_known.max((num_written + 1).min(self.length));
        self.num_known == self.length
    }

    /// Nothing of it is held any more.
    pub(super) fn forget_computed(&mut self) {
        self.stage = Stage::Waiting;
        (self.num_computed, self.num_in_flight, self.num_placeholders) = (0, 0, 0);
        (self.num_written, self.column, self.is_drafted) = (0, 0, false);
    }

    /// Returns the rank among requests of all priorities.
    pub(super) fn order(&self) -> (u8, u32) {
        (self.priority, self.number)
    }

    /// Returns the identity of a life between two preemptions.
    pub(super) fn life(&self) -> (u32, u32) {
        (self.number, self.num_preemptions)
    }
}
