//! Copies of states by our own rules: where a request keeps one, and where its chunks have to end for
//! that.
//!
//! A state stays in one block for life, so a copy is made before a step that writes on: of the state
//! after all tokens scheduled before, whether or not their step has ended.

use super::call::Call;
use super::config::ManagerConfig;
use super::progress::RequestProgress;
use crate::error::Error;
use crate::ids::BlockId;
use crate::placement::{Lengths, Prompt};
use crate::rules::checkpoint_policy::{CheckpointPlan, CheckpointPolicy};
use crate::store::Store;

/// Where one request's prompt leaves checkpoints.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    policy: CheckpointPolicy,
    plan: CheckpointPlan,
    /// What the length of a hit is a multiple of.
    grain: u32,
}

/// How far before a prompt's end it leaves checkpoints, where nothing is learned: later prompts
/// leave earlier ones at distances of all sizes.
fn margins(policy: &CheckpointPolicy) -> Lengths {
    policy.prompt_margins.unwrap_or_else(|| Lengths::from([128, 1_024, 8_192]))
}

impl Placement {
    /// `None` where vLLM's own rules say what is kept.
    pub(super) fn of(config: &ManagerConfig, progress: &RequestProgress) -> Option<Self> {
        let policy = config.checkpoints?;
        let (grain, num_prompt) = (config.hit_alignment(), progress.num_prompt);
        let branch = progress.shared_prefix_boundary / grain * grain;
        let prompt = Prompt { num_tokens: num_prompt, branch, ..Prompt::default() };
        // What the same prompt, sent again, cannot hit is of no use.
        let most = config.checkpoint_position(num_prompt, grain);
        let mut lengths = Lengths::default();
        for &length in policy.fixed(margins(&policy), prompt, grain).as_slice() {
            lengths.insert(length.min(most));
        }
        let plan = CheckpointPlan {
            lengths,
            branch,
            prompt_tokens: num_prompt,
            end: policy.finish,
            ..CheckpointPlan::default()
        };
        Some(Self { policy, plan, grain })
    }

    /// The first length after `num_tokens` at which the prompt leaves a checkpoint.
    fn next_in_prompt(&self, num_tokens: u32) -> Option<u32> {
        self.policy.next(&self.plan, num_tokens, self.grain)
    }

    /// Where a chunk from `start` on ends, that could end at `end`: where a checkpoint is wanted, or
    /// else at the last multiple of the grain, so that the state can be kept if the request is
    /// preempted then.
    pub(super) fn chunk_end(&self, start: u32, end: u32, prefill_end: u32) -> u32 {
        if start >= prefill_end {
            return end;
        }
        if let Some(stop) = self.next_in_prompt(start).filter(|&stop| stop < end) {
            return stop;
        }
        let aligned = end / self.grain * self.grain;
        if end < prefill_end && aligned > start { aligned } else { end }
    }

    /// Whether states are worth keeping at the end of what attention holds beyond a hit: a prompt
    /// that leaves another one within its margin is no branch.
    pub(super) fn is_branch(&self, num_hit: u32, branch: u32) -> bool {
        let shortest = margins(&self.policy).as_slice().first().copied().unwrap_or(0);
        let margin = shortest.min(branch / 8).next_multiple_of(self.grain);
        branch > num_hit.saturating_add(margin)
    }

    /// The first length from `num_tokens` on at which the copy that follows the generation moves.
    pub(super) fn next_move(&self, num_tokens: u32) -> u32 {
        if !self.plan.end {
            return u32::MAX;
        }
        let every = self.policy.follow_every.max(1).next_multiple_of(self.grain);
        num_tokens.max(self.plan.prompt_tokens + 1).next_multiple_of(every)
    }
}

/// Why a copy is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The prompt leaves a checkpoint here.
    Prompt,
    /// It follows the generation.
    Follow,
}

impl<S: Store> Call<'_, S> {
    /// Whether what the next step writes on is a state worth a copy. The copy is a part of the
    /// call's demand then.
    pub(super) fn plan_copies(&mut self) -> Option<Reason> {
        let placement = Placement::of(self.config, &self.progress)?;
        let at = self.progress.num_computed;
        if !self.cache.enable_caching || !self.is_running() || !self.is_state_at(at) {
            return None;
        }
        let reason = if placement.next_in_prompt(at - 1) == Some(at) {
            Reason::Prompt
        } else if placement.policy.follows(&placement.plan, at, placement.grain) {
            Reason::Follow
        } else {
            return None;
        };
        let mut is_missing = false;
        for group in 0..self.tables.len() {
            if let Some(state) = self.state_without_key(group, at) {
                self.tables[group].set_copy_source(0, state);
                is_missing = true;
            }
        }
        is_missing.then_some(reason)
    }

    /// Whether the states hold exactly `num_tokens` tokens, which have a digest. A step with drafts
    /// leaves states of tokens that are then rejected.
    fn is_state_at(&self, num_tokens: u32) -> bool {
        let has_drafts = self.config.groups.iter().any(|it| it.kind.num_speculative() > 0);
        let hash_block = self.config.hash_block_size;
        num_tokens > 0
            && num_tokens.is_multiple_of(self.config.hit_alignment())
            && (num_tokens / hash_block) as usize <= self.digests.len()
            && (!has_drafts || num_tokens <= self.progress.num_prompt)
    }

    /// A group's state, if nobody can go on from it yet.
    fn state_without_key(&self, group: usize, num_tokens: u32) -> Option<BlockId> {
        if !self.config_of(group).kind.is_aligned() || self.tables[group].copy_source().is_some() {
            return None;
        }
        let key = self.key(group, num_tokens).ok()?;
        let state = *self.tables[group].blocks.first()?;
        let is_kept = self.cache.store.get(self.pool(group), &key).is_some();
        (!is_kept && !state.is_null()).then_some(state)
    }

    /// Do without the copies that were planned: there is no room for them.
    pub(super) fn cancel_copies(&mut self) {
        for table in &mut *self.tables {
            self.stats.no_room += u64::from(table.take_copy_source().is_some());
        }
    }

    /// Let the states be found that are about to be copied; the copies take the keys over.
    pub(super) fn key_copies(&mut self, reason: Reason) -> Result<(), Error> {
        let at = self.progress.num_computed;
        for group in 0..self.tables.len() {
            let Some((_, state)) = self.tables[group].copy_source() else { continue };
            if reason == Reason::Follow {
                self.drop_following(group);
                self.tables[group].moving_mut().following = at;
                self.stats.followed += 1;
            } else {
                self.stats.prompt += 1;
            }
            self.tables[group].moving_mut().last_kept = at;
            self.key_tail(group, state, at, false)?;
        }
        Ok(())
    }

    /// Give up the copy that followed the generation so far, unless somebody goes on from it.
    fn drop_following(&mut self, group: usize) {
        let following = std::mem::take(&mut self.tables[group].moving_mut().following);
        if following > 0
            && let Ok(key) = self.key(group, following)
        {
            let pool = self.pool(group);
            self.cache.store.discard(pool, &key);
            self.stats.superseded += 1;
        }
    }

    /// Keep the states of a request that ends, or is preempted, in the blocks that they are in. What
    /// is computed is exact: a step in flight ends before anybody reads them.
    pub(super) fn keep_states(&mut self) -> Result<(), Error> {
        let at = self.progress.num_computed;
        if self.config.checkpoints.is_none()
            || !self.cache.enable_caching
            || !self.is_running()
            || at > self.progress.num_tokens
            || !self.is_state_at(at)
        {
            return Ok(());
        }
        self.commit(at)?;
        for group in 0..self.tables.len() {
            if let Some(state) = self.state_without_key(group, at) {
                self.drop_following(group);
                self.key_tail(group, state, at, false)?;
                self.stats.kept += 1;
            }
        }
        Ok(())
    }
}
