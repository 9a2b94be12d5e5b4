//! Where requests leave checkpoints, and what is learned for it.

use super::BlockManager;
use super::checkpoint_policy::CheckpointPlan;
use super::hit::{Hit, HitLimit};
use super::policy::Policy;
use crate::ids::BlockId;
use crate::placement::{Beginning, Lengths, Prompt, PromptClass};
use crate::store::Store;

impl BlockManager {
    /// Where a request that goes on from `hit` leaves checkpoints.
    pub(super) fn checkpoint_plan(&self, row: usize, hit: Hit) -> CheckpointPlan {
        let prompt_tokens = self.engine.requests.progress(row).num_tokens;
        let mut plan = CheckpointPlan { prompt_tokens, ..CheckpointPlan::default() };
        if !self.keeps_states() {
            return plan;
        }
        let policy = &self.config.checkpoints;
        let request = &self.engine.requests.rows[row].rest;
        let prompt = Prompt {
            start: hit.num_tokens,
            num_tokens: prompt_tokens,
            branch: if policy.branch { hit.branch } else { 0 },
            class: PromptClass { client: request.client, beginning: self.beginning(row, hit) },
        };
        let most = policy.max_per_request as usize;
        let learned = self.placement.plan(prompt, self.pressure.price(), most);
        plan.class = prompt.class;
        plan.end = policy.finish && learned.end;
        plan.lengths = match policy.prompt_margins {
            Some(margins) => policy.fixed(margins, prompt, self.lengths.alignment),
            None if policy.prompt_end => learned.lengths,
            None => Lengths::from([learned.branch]),
        };
        plan.branch = if plan.lengths.as_slice().contains(&hit.branch) { hit.branch } else { 0 };
        plan
    }

    /// Take note of where a prompt that is admitted for the first time leaves the ones before it.
    pub(super) fn observe(&mut self, row: usize, class: PromptClass, hit: Hit) {
        let request = &mut self.engine.requests.rows[row];
        if std::mem::replace(&mut request.rest.is_known, true) {
            return;
        }
        if matches!(self.config.policy, Policy::FlopAware(_)) {
            self.note_return(row);
        }
        if !self.keeps_states() {
            return;
        }
        let matched = hit.num_tokens.max(hit.branch);
        // Where the rest was evicted, nobody knows how far it went.
        let is_whole = !matches!(hit.limit, HitLimit::AttentionEvicted | HitLimit::WindowEvicted);
        let departure = self.last_matched(row, matched).filter(|_| is_whole).and_then(|block| {
            self.authors.leave(block, matched, hit.num_tokens, self.lengths.alignment)
        });
        self.placement.on_prompt(class, departure);
    }

    /// How the prompt of a request begins that goes on from `hit`.
    fn beginning(&self, row: usize, hit: Hit) -> Beginning {
        let request = &self.engine.requests.rows[row].rest;
        if hit.branch > 0 {
            return Beginning::Shared;
        }
        let states = self.lengths.first_state.zip(request.matched.as_ref());
        match states.and_then(|(group, matched)| matched.blocks.get(group)?.last()) {
            Some(&checkpoint) if self.history.is_used(checkpoint) => Beginning::Shared,
            Some(_) => Beginning::Turn,
            None => Beginning::Fresh,
        }
    }

    /// The attention block that ends after `matched` tokens of a request.
    fn last_matched(&self, row: usize, matched: u32) -> Option<BlockId> {
        let group = self.engine.cache.groups[self.lengths.first_full?];
        let key = group.key_at(&self.engine.requests.rows[row].digests, matched)?;
        self.engine.cache.store.get(group.spec.pool, &key)
    }

    /// Measure what was evicted since the last time.
    pub(super) fn measure_pressure(&mut self) {
        let store = &self.engine.cache.store;
        let pools = (0..store.num_pools()).map(crate::ids::PoolId);
        let slabs: f64 = pools
            .map(|pool| {
                store.pool(pool).num_evicted as f64 / f64::from(store.blocks_per_slab(pool))
            })
            .sum();
        let share = (slabs - self.slabs_evicted) / store.num_slabs() as f64;
        self.slabs_evicted = slabs;
        self.pressure.on_evicted(share);
    }
}
