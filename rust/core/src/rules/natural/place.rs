//! Where requests leave checkpoints, and what is learned for it.

use super::BlockManager;
use crate::placement::PromptClass;
use crate::rules::checkpoint_policy::CheckpointPlan;
use crate::rules::hit::Hit;
use crate::rules::slabs::{Checkpoints, Differences, Resumed};

impl BlockManager {
    /// The rules by which checkpoints are left.
    pub(super) fn checkpoints(&self) -> Checkpoints {
        let mut groups = self.config.groups.iter();
        Checkpoints {
            policy: self.config.checkpoints,
            grain: self.lengths.alignment,
            has_drafts: groups.any(|group| group.kind.num_speculative() > 0),
            differences: Differences::OF_BLOCK_MANAGER,
        }
    }

    /// Where a request that goes on from `hit` leaves checkpoints.
    pub(super) fn checkpoint_plan(&self, row: usize, hit: Hit) -> CheckpointPlan {
        let num_tokens = self.engine.requests.progress(row).num_tokens;
        if !self.keeps_checkpoints() {
            return CheckpointPlan { prompt_tokens: num_tokens, ..CheckpointPlan::default() };
        }
        let (traffic, request) = (&self.keeper.traffic, &self.engine.requests.rows[row]);
        let resumed = self.resumed(row, hit);
        let shared = resumed.shared(traffic, &self.engine.cache, &request.digests);
        let last = num_tokens.saturating_sub(1) / self.lengths.alignment * self.lengths.alignment;
        let prompt = (request.rest.trail.client, num_tokens, last);
        self.checkpoints().plan(traffic, prompt, &resumed, traffic.num_left(&shared))
    }

    /// Take note of where a prompt that is admitted for the first time leaves the ones before it.
    pub(super) fn observe(&mut self, row: usize, class: PromptClass, hit: Hit) {
        let request = &mut self.engine.requests.rows[row];
        let is_first = request.rest.trail.arrive(&mut self.keeper, &request.digests);
        if !is_first || !self.keeps_checkpoints() {
            return;
        }
        let (cache, digests) = (&self.engine.cache, &self.engine.requests.rows[row].digests);
        let traffic = &self.keeper.traffic;
        let departure = self.resumed(row, hit).departure(traffic, cache, digests, hit.limit);
        self.keeper.traffic.on_prompt(class, departure);
    }

    fn resumed(&self, row: usize, hit: Hit) -> Resumed<'_> {
        let matched = self.engine.requests.rows[row].rest.matched.as_ref();
        let blocks = matched.map_or(&[][..], |matched| &matched.blocks);
        Resumed { num_tokens: hit.num_tokens, branch: hit.branch, blocks }
    }
}
