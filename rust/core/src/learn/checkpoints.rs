//! [`Checkpoints`]: at which lengths a request leaves checkpoints.

use super::{CheckpointTrail, ResumePoint};
use crate::learn::checkpoint_policy::{CheckpointPlan, CheckpointPolicy};
use crate::learn::places::{Prompt, PromptClass};
use crate::learn::traffic::Traffic;

/// A policy, for groups that can all be resumed at multiples of a grain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoints {
    pub(crate) policy: CheckpointPolicy,
    /// Tokens between two lengths at which all groups can be resumed.
    pub(crate) grain: u32,
    /// Whether some group keeps states for drafts.
    pub(crate) has_drafts: bool,
}

/// Why a checkpoint is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The length is a place of the prompt, or a periodic one.
    Prompt,
    /// The copy follows the answer.
    Follow,
    /// Others computed it, and the next step overwrites it.
    Loaded,
}

impl Checkpoints {
    /// Where a prompt of `num_tokens` tokens leaves checkpoints, which earlier ones left where it leaves them
    /// `num_left` times. The same prompt, sent again, can hit `last` tokens, and a longer one the `whole`.
    pub(crate) fn plan(
        &self,
        traffic: &Traffic,
        (client, num_tokens, [last, whole]): (u16, u32, [u32; 2]),
        resumed: &ResumePoint<'_>,
        num_left: u8,
    ) -> CheckpointPlan {
        let class = PromptClass { client, beginning: resumed.beginning(traffic) };
        let ResumePoint { num_tokens: start, branch, .. } = *resumed;
        let mut plan =
            traffic.plan(&self.policy, Prompt { start, num_tokens, branch, num_left, class });
        for &length in std::mem::take(&mut plan.lengths).as_slice() {
            plan.lengths.insert(length.min(last));
            if length >= last {
                plan.lengths.insert(whole);
            }
        }
        plan.end &= !self.has_drafts;
        plan
    }

    /// The first length after `num_computed` at which a checkpoint of the prompt is wanted.
    pub(crate) fn next(&self, plan: &CheckpointPlan, num_computed: u32) -> Option<u32> {
        self.policy.next(plan, num_computed, self.grain)
    }

    /// Returns a plan as it is once the next step has copied the checkpoint at `num_computed`, if one is wanted there.
    pub(crate) fn after_copy(&self, plan: CheckpointPlan, num_computed: u32) -> CheckpointPlan {
        let before = num_computed.checked_sub(1);
        let is_due = before.is_some_and(|before| self.next(&plan, before) == Some(num_computed));
        CheckpointPlan { num_taken: plan.num_taken + u32::from(is_due), ..plan }
    }

    /// The lengths after `num_computed`, up to `most`, at which checkpoints of the prompt are wanted.
    pub(crate) fn places(
        self,
        mut plan: CheckpointPlan,
        mut num_computed: u32,
        most: u32,
    ) -> impl Iterator<Item = u32> {
        std::iter::from_fn(move || {
            num_computed = self.next(&plan, num_computed).filter(|&next| next <= most)?;
            plan.num_taken += 1;
            Some(num_computed)
        })
    }

    /// Why a request leaves a checkpoint after `num_computed` tokens, if it does.
    pub(crate) fn reason(&self, trail: &CheckpointTrail, num_computed: u32) -> Option<Reason> {
        let (plan, before) = trail.plan.as_ref().zip(num_computed.checked_sub(1))?;
        if self.next(plan, before) == Some(num_computed) {
            Some(Reason::Prompt)
        } else if self.policy.follows(plan, num_computed, self.grain) {
            Some(Reason::Follow)
        } else {
            (num_computed == trail.loaded).then_some(Reason::Loaded)
        }
    }

    /// Whether the state of a request that ends after `num_computed` tokens is kept.
    pub(crate) fn keeps_end(&self, plan: &CheckpointPlan, num_computed: u32) -> bool {
        (plan.end || self.policy.finish)
            && num_computed > 0
            && num_computed.is_multiple_of(self.grain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learn::places::Lengths;

    fn checkpoints() -> Checkpoints {
        Checkpoints { policy: CheckpointPolicy::default(), grain: 16, has_drafts: false }
    }

    #[test]
    fn a_request_leaves_its_places_what_follows_its_answer_and_what_was_loaded() {
        let lengths = Lengths::from([320, 992]);
        let plan = CheckpointPlan {
            lengths,
            prompt_tokens: 1_000,
            end: true,
            ..CheckpointPlan::default()
        };
        let trail = CheckpointTrail { plan: Some(plan), loaded: 336, ..CheckpointTrail::default() };
        let rules = checkpoints();
        let found = (0..1_100).filter_map(|at| Some((at, rules.reason(&trail, at)?)));
        let expected = [
            (320, Reason::Prompt),
            (336, Reason::Loaded),
            (992, Reason::Prompt),
            (1_024, Reason::Follow),
            (1_088, Reason::Follow),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert_eq!(rules.reason(&CheckpointTrail::default(), 320), None, "nothing is planned");
    }

    #[test]
    fn an_end_is_kept_on_the_grain_only() {
        let plan = CheckpointPlan { end: true, ..CheckpointPlan::default() };
        let kept = [0, 8, 16, 24, 32].map(|at| checkpoints().keeps_end(&plan, at));
        assert_eq!(kept, [false, false, true, false, true]);
    }
}
