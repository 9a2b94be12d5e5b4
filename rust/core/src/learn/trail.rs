//! [`CheckpointTrail`]: what a request remembers of the checkpoints that it resumes from and leaves.

use crate::engine::cache::Cache;
use crate::group::{Group, Table};
use crate::ids::BlockId;
use crate::learn::checkpoint_policy::CheckpointPlan;
use crate::learn::keeper::{Arriving, Departing, Keeper};
use crate::learn::sessions::{ConversationRank, Hint, WorthClass};
use crate::learn::traffic::Traffic;
use crate::learn::windows::{Places, Windows};
use crate::store::Store;
use hybrid_blocks_hash::Digest;

/// A request, as far as others may resume from it, and it from others.
#[derive(Debug, Default)]
pub(crate) struct CheckpointTrail {
    /// Where it leaves checkpoints, once that is planned.
    pub(crate) plan: Option<CheckpointPlan>,
    /// Tokens that it resumed from.
    pub(crate) start: u32,
    /// Tokens of the state that others computed, 0 if none did.
    pub(crate) loaded: u32,
    /// Whether it was admitted before.
    pub(crate) is_known: bool,
    /// A number of its client, 0 if none is known.
    pub(crate) client: u16,
    /// Earlier turns of its conversation, as far as they are remembered.
    pub(crate) num_turns: u8,
    /// Rank of the request's conversation; low ranks are kept when only a share fits.
    pub(crate) rank: ConversationRank,
    /// A number of its session, 0 if none is known.
    pub(crate) session: u64,
    /// How the client says that its session continues.
    pub(crate) hint: Hint,
    /// Lengths of the checkpoints that it resumed from and left.
    pub(crate) lengths: Vec<u32>,
    /// Blocks that left the request's windows.
    pub(crate) windows: Windows,
}

impl CheckpointTrail {
    /// Where it leaves checkpoints; nowhere before that is planned.
    pub(crate) fn plan(&self) -> CheckpointPlan {
        self.plan.unwrap_or_default()
    }

    /// Notes an admission. Returns what is known of the prompt if it is the first one, to be learned from.
    pub(crate) fn arrive(&mut self, keeper: &mut Keeper, digests: &[Digest]) -> Option<Arriving> {
        if std::mem::replace(&mut self.is_known, true) {
            return None;
        }
        let arrival = keeper.on_arrival(self.session, digests, self.start);
        (self.num_turns, self.rank) = (arrival.num_turns, arrival.rank);
        Some(arrival)
    }

    /// Notes that the request resumes after `num_tokens` tokens from a state in a block of the
    /// counted group.
    pub(crate) fn resume_state(&mut self, traffic: &mut Traffic, block: BlockId, num_tokens: u32) {
        traffic.on_used(block, num_tokens, true);
        self.lengths.extend([traffic.history.spare(block), num_tokens]);
    }

    /// Notes that the request resumes after `num_tokens` tokens from `blocks` by group, where
    /// windows are checkpoints.
    pub(crate) fn resume_windows(
        &mut self,
        traffic: &mut Traffic,
        groups: &[Group],
        blocks: &[Vec<BlockId>],
        num_tokens: u32,
        leaves: bool,
    ) {
        let counted = traffic.counted().filter(|&group| groups[group].is_placed);
        let Some(group) = counted.filter(|_| num_tokens > 0) else { return };
        self.lengths.push(num_tokens);
        let last = blocks.get(group).and_then(|it| it.last());
        if let Some(&block) = last.filter(|block| !block.is_null()) {
            traffic.on_used(block, num_tokens, leaves);
            self.lengths.push(traffic.history.spare(block));
        }
    }

    /// Notes that the request computed blocks of a group, from a position on.
    pub(crate) fn compute(
        &self,
        traffic: &mut Traffic,
        group: &Group,
        first: u32,
        blocks: &[BlockId],
    ) {
        if let Some(plan) = &self.plan {
            traffic.on_computed(group.id.index(), blocks, plan);
            traffic.on_windows(group, first, blocks, plan);
        }
    }

    /// Notes that a state after `num_tokens` tokens is kept in a block of the counted group.
    pub(crate) fn leave(&self, traffic: &mut Traffic, block: BlockId, num_tokens: u32) {
        traffic.on_left(block, &self.plan(), num_tokens);
    }

    /// Notes that the request gave up its checkpoint of a length.
    pub(crate) fn give_up(&mut self, length: u32) {
        self.lengths.retain(|&other| other != length);
    }

    /// Where its windows are kept, if others could resume it after `end` tokens now.
    pub(crate) fn places(&self, end: u32) -> Places {
        Places { plan: self.plan(), start: self.start, end }
    }

    /// The request as a keeper sees it. What the client says of the session counts once the request is over.
    fn visit<'a>(
        &self,
        (tables, digests): (&'a [Table], &'a [Digest]),
        num_computed: u32,
        is_over: bool,
    ) -> Departing<'a> {
        let hint = if is_over { self.hint } else { Hint::None };
        Departing {
            tables,
            digests,
            plan: self.plan(),
            start: self.start,
            num_computed,
            class: WorthClass::new(self.num_turns, hint),
            session: self.session,
            rank: self.rank,
        }
    }

    /// Gives the checkpoint after `at` tokens its priority, which the request uses or leaves after
    /// `num_computed`.
    pub(crate) fn score_checkpoint<S: Store>(
        &self,
        keeper: &Keeper,
        cache: &mut Cache<S>,
        content: (&[Table], &[Digest]),
        num_computed: u32,
        at: u32,
    ) {
        let visit = self.visit(content, num_computed, false);
        keeper.score_checkpoint(cache, &visit, &self.lengths, at);
    }

    /// Gives what the request holds its priority before it is given back.
    pub(crate) fn score_left<S: Store>(
        &mut self,
        keeper: &mut Keeper,
        cache: &mut Cache<S>,
        content: (&[Table], &[Digest]),
        num_computed: u32,
        is_over: bool,
    ) {
        let mut lengths = std::mem::take(&mut self.lengths);
        let visit = self.visit(content, num_computed, is_over);
        keeper.on_left(cache, &visit, &mut lengths, is_over);
        lengths.clear();
        self.lengths = lengths;
    }
}
