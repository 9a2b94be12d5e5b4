//! Where requests leave checkpoints, and what is learned for it.

use super::BlockManager;
use crate::placement::{Beginning, Prompt, PromptClass};
use crate::rules::checkpoint_policy::CheckpointPlan;
use crate::rules::hit::Hit;
use crate::rules::traffic::Shared;

impl BlockManager {
    /// Where a request that goes on from `hit` leaves checkpoints.
    pub(super) fn checkpoint_plan(&self, row: usize, hit: Hit) -> CheckpointPlan {
        let prompt_tokens = self.engine.requests.progress(row).num_tokens;
        if !self.keeps_checkpoints() {
            return CheckpointPlan { prompt_tokens, ..CheckpointPlan::default() };
        }
        let client = self.engine.requests.rows[row].rest.client;
        let shared = self.shared(row, hit);
        let prompt = Prompt {
            start: hit.num_tokens,
            num_tokens: prompt_tokens,
            branch: hit.branch,
            num_left: self.keeper.traffic.num_left(&shared),
            class: PromptClass { client, beginning: self.beginning(row, hit) },
        };
        self.keeper.traffic.plan(&self.config.checkpoints, prompt)
    }

    /// Take note of where a prompt that is admitted for the first time leaves the ones before it.
    pub(super) fn observe(&mut self, row: usize, class: PromptClass, hit: Hit) {
        let request = &mut self.engine.requests.rows[row];
        if std::mem::replace(&mut request.rest.is_known, true) {
            return;
        }
        request.rest.num_turns = self.keeper.on_arrival(request.rest.session, &request.digests);
        if !self.keeps_checkpoints() {
            return;
        }
        let digests = &self.engine.requests.rows[row].digests;
        let (cache, shared) = (&self.engine.cache, self.shared(row, hit));
        let traffic = &mut self.keeper.traffic;
        let departure = traffic.departure(cache, digests, shared, hit.limit, class.beginning);
        traffic.on_prompt(class, departure);
    }

    /// How far the prompt of a request that goes on from `hit` shares blocks.
    fn shared(&self, row: usize, hit: Hit) -> Shared {
        let digests = &self.engine.requests.rows[row].digests;
        let matched = hit.num_tokens.max(hit.branch);
        self.keeper.traffic.shared(&self.engine.cache, digests, hit.num_tokens, matched)
    }

    /// How the prompt of a request begins that goes on from `hit`.
    fn beginning(&self, row: usize, hit: Hit) -> Beginning {
        let matched = self.engine.requests.rows[row].rest.matched.as_ref();
        let counted = self.keeper.traffic.counted().zip(matched);
        let checkpoint = counted.and_then(|(group, matched)| matched.blocks.get(group)?.last());
        let checkpoint = checkpoint.copied().filter(|block| !block.is_null());
        self.keeper.traffic.beginning(hit.branch, checkpoint)
    }
}
