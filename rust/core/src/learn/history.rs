//! [`CheckpointHistory`]: what is known of checkpoints besides their content.

use crate::ids::BlockId;

/// Requests that make a checkpoint shared.
const SHARED: u8 = 2;

/// Uses of one checkpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Checkpoint {
    num_uses: u8,
    /// When the last request that used or left it ended, in lives of cached content.
    last_used: f64,
    /// The shorter checkpoint that its request kept beside it, 0 for none.
    spare: u32,
}

/// Uses of each checkpoint of a pool, by block.
#[derive(Debug, Default)]
pub(crate) struct CheckpointHistory {
    of: Vec<Checkpoint>,
}

impl CheckpointHistory {
    pub(crate) fn new(num_ids: u32) -> Self {
        Self { of: vec![Checkpoint::default(); num_ids as usize] }
    }

    /// A new checkpoint. At a branch, two requests have come by already.
    pub(crate) fn leave(&mut self, block: BlockId, is_branch: bool, now: f64) {
        let num_uses = if is_branch { SHARED } else { 0 };
        self.of[block.index()] = Checkpoint { num_uses, last_used: now, spare: 0 };
    }

    /// A request resumes from a checkpoint.
    pub(crate) fn resume(&mut self, block: BlockId) {
        let checkpoint = &mut self.of[block.index()];
        checkpoint.num_uses = checkpoint.num_uses.saturating_add(1);
    }

    /// A request ended and keeps a checkpoint of `num_tokens` beside this one.
    pub(crate) fn set_spare(&mut self, block: BlockId, num_tokens: u32) {
        self.of[block.index()].spare = num_tokens;
    }

    /// The length of the checkpoint kept beside this one, 0 for none.
    pub(crate) fn spare(&self, block: BlockId) -> u32 {
        self.of[block.index()].spare
    }

    /// A request that used or left a checkpoint ends.
    pub(crate) fn touch(&mut self, block: BlockId, now: f64) {
        self.of[block.index()].last_used = now;
    }

    /// When the last request that used or left a checkpoint ended.
    pub(crate) fn last_used(&self, block: BlockId) -> f64 {
        self.of[block.index()].last_used
    }

    /// Whether a request resumed from a checkpoint, or passed it at a branch.
    pub(crate) fn is_used(&self, block: BlockId) -> bool {
        self.of[block.index()].num_uses > 0
    }

    /// Requests that resumed from a checkpoint, or passed it at a branch.
    pub(crate) fn num_uses(&self, block: BlockId) -> u8 {
        self.of[block.index()].num_uses
    }

    /// Whether several requests resumed from a checkpoint, so that more may come.
    pub(crate) fn is_shared(&self, block: BlockId) -> bool {
        self.of[block.index()].num_uses >= SHARED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_was_last_used_when_a_request_that_needs_it_ended() {
        let (mut history, block) = (CheckpointHistory::new(2), BlockId(1));
        history.leave(block, false, 0.5);
        assert!((history.last_used(block) - 0.5).abs() < f64::EPSILON);
        history.touch(block, 2.5);
        assert!((history.last_used(block) - 2.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_checkpoint_is_shared_by_two_requests_and_a_branch_by_the_first() {
        let mut history = CheckpointHistory::new(3);
        let (branch, prompt) = (BlockId(1), BlockId(2));
        history.leave(branch, true, 0.0);
        history.leave(prompt, false, 0.0);
        assert!(history.is_shared(branch) && !history.is_used(prompt));
        for is_shared in [false, true] {
            history.resume(prompt);
            assert_eq!(history.is_shared(prompt), is_shared);
            assert!(history.is_used(prompt));
        }
    }
}
