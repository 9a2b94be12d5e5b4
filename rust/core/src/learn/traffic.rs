//! [`Traffic`]: learns where requests continue each other, and so where they leave checkpoints.
//! Every set of rules tells it what it sees.

mod savings;

use super::checkpoint_policy::{CheckpointPlan, CheckpointPolicy};
use super::history::CheckpointHistory;
use super::sessions::Kept as Left;
use crate::engine::cache::Cache;
use crate::engine::hit::HitLimit;
use crate::group::{Group, GroupKind};
use crate::ids::{BlockId, PoolId};
use crate::learn::places::{
    Author, Authors, Beginning, Lengths, PREFILL_CHECKPOINT_TOKENS, Placement, Pressure, Prompt,
    PromptClass, STEP_TOKENS,
};
use crate::pool::BlockStates;
use crate::store::{EvictionOrder, Store};
use hybrid_blocks_hash::Digest;
use savings::Savings;

/// Counts of the traffic so far.
#[derive(Debug)]
pub(crate) struct Traffic {
    placement: Placement,
    /// Authors of the blocks in the first group of full attention, which tell how far prompts share.
    authors: Authors,
    first_full: Option<usize>,
    pub(crate) pressure: Pressure,
    /// Uses of the checkpoints of the counted group, which stand for those of all.
    pub(crate) history: CheckpointHistory,
    /// The first recurrent group, else the first one whose windows are checkpoints.
    counted: Option<usize>,
    /// Tokens whose attention blocks take as many bytes as one checkpoint.
    state_tokens: f64,
    /// Prompt tokens that take as long as one more step of few tokens.
    step_tokens: f64,
    /// Tokens that divide the length of each hit.
    alignment: u32,
    /// Tokens of the longest window, where checkpoints are windows alone; else 0.
    window: u32,
    /// Tokens at the end of what a request computed that a drafter drops.
    num_dropped: u32,
    /// Slabs' worth of blocks evicted, and cached, when that was last looked at.
    slabs_evicted: f64,
    slabs_cached: f64,
    savings: Savings,
    /// The share of requests lately that ended within a life: what they left meanwhile was still there.
    survival: f64,
}

/// Requests over which the share of those is averaged that end within a life.
const SURVIVAL_MEMORY: f64 = 32.0;

/// That share is taken to be at least this.
const LEAST_SURVIVAL: f64 = 0.01;

/// Running requests leave room only in a cache that is at most this many times as large.
const MOST_OF_ROOM: f64 = 4.0;

/// Blocks that are looked at for one whose key is remembered among those evicted lately. When as many blocks were evicted
/// since as there are, a key is remembered in 37 % of cases, and one of 8 in 97 %.
const PROBES: u32 = 8;

/// How far a prompt shares blocks with earlier ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shared {
    /// Tokens that it resumes from.
    pub(crate) hit: u32,
    /// Tokens whose attention blocks are there.
    pub(crate) matched: u32,
    /// Tokens whose attention blocks are there, or were until lately.
    pub(crate) reached: u32,
    /// The attention block that ends at `matched`.
    pub(crate) last: Option<BlockId>,
}

impl Traffic {
    /// Nothing seen so far.
    pub(crate) fn new<S: Store>(cache: &Cache<S>, alignment: u32) -> Self {
        let first = |is: fn(GroupKind) -> bool| cache.groups.iter().position(|it| is(it.kind()));
        let (first_full, first_state) = (first(GroupKind::is_full), first(GroupKind::is_recurrent));
        let counted = first_state.or_else(|| cache.groups.iter().position(|it| it.is_placed));
        let placed = cache.groups.iter().filter(|it| it.is_placed && first_state.is_none());
        let window =
            placed.map(|it| it.kind().mean_window_blocks(it.spec.block_size) * it.spec.block_size);
        let dropped = cache.groups.iter().map(|it| it.num_dropped * it.spec.block_size);
        let num_ids = |group: Option<usize>| {
            group.map_or(0, |group| cache.store.pool(cache.groups[group].kept).num_ids())
        };
        let (state_tokens, capacity) = in_tokens(cache);
        let window = window.max().unwrap_or(0);
        Self {
            placement: Placement::new(state_tokens, alignment).of_windows(window),
            authors: Authors::new(num_ids(first_full)),
            first_full,
            pressure: Pressure::new(capacity),
            history: CheckpointHistory::new(num_ids(counted)),
            counted,
            state_tokens,
            step_tokens: STEP_TOKENS,
            alignment,
            num_dropped: dropped.max().unwrap_or(0),
            window,
            slabs_evicted: 0.0,
            slabs_cached: 0.0,
            savings: Savings::default(),
            survival: 1.0,
        }
    }

    /// A step takes the time of `step_tokens` prompt tokens. A checkpoint costs one, but for a window: no chunk ends
    /// there.
    pub(crate) fn set_step_tokens(&mut self, step_tokens: u32) {
        self.step_tokens = f64::from(step_tokens);
        if self.window == 0 {
            self.placement.set_place_tokens(self.step_tokens);
        }
    }

    /// No chunk ends for a checkpoint, which costs less then.
    pub(crate) fn end_no_chunks(&mut self) {
        self.placement.set_place_tokens(PREFILL_CHECKPOINT_TOKENS);
    }

    /// Returns the tokens that divide the length of each hit.
    pub(crate) fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The group whose checkpoints stand for those of all, if there are checkpoints.
    pub(crate) fn counted(&self) -> Option<usize> {
        self.counted
    }

    /// Whether a group's checkpoints stand for those of all.
    pub(crate) fn counts(&self, group: usize) -> bool {
        self.counted == Some(group)
    }

    /// The longest length at which others can resume a request of `num_tokens` computed tokens, if it is kept there.
    pub(crate) fn end(&self, num_tokens: u32) -> u32 {
        num_tokens.saturating_sub(self.num_dropped) / self.alignment * self.alignment
    }

    /// Where a prompt leaves checkpoints.
    pub(crate) fn plan(&self, policy: &CheckpointPolicy, prompt: Prompt) -> CheckpointPlan {
        let wanted = Prompt { branch: if policy.branch { prompt.branch } else { 0 }, ..prompt };
        let most = policy.max_per_request as usize;
        let learned = self.placement.plan(wanted, self.price(), most);
        let lengths = match policy.prompt_margins {
            Some(margins) => policy.fixed(margins, wanted, self.alignment),
            None if policy.prompt_end => learned.lengths,
            None => Lengths::from([learned.branch]),
        };
        let keeps_branch = lengths.as_slice().contains(&prompt.branch);
        CheckpointPlan {
            lengths,
            branch: if keeps_branch { prompt.branch } else { 0 },
            class: prompt.class,
            prompt_tokens: prompt.num_tokens,
            end: policy.finish && learned.end,
            every: policy.periodic(self.alignment),
            planned_at: self.pressure.now(),
            number: self.placement.num_prompts(),
            ..CheckpointPlan::default()
        }
    }

    /// The tokens that the attention of one token, instead of a checkpoint's bytes, would save.
    ///
    /// Running requests may leave so little memory that what is cached is gone before they end. A checkpoint
    /// saves something only if it outlives its request, so that its bytes have to save more by as much.
    ///
    /// Where nothing lasts, nothing is hit late, be it because each request leaves several checkpoints. So far as
    /// earlier turns are evicted before the next one finds them, bytes save what they save in the mean.
    fn price(&self) -> f64 {
        let evicts_states = self.window == 0 && self.pressure.now() > 0.0;
        let unfound = if evicts_states { self.savings.lost() } else { 0.0 };
        let least = unfound.max(1.0 - self.survival) * self.savings.mean();
        self.pressure.price().max(least) / self.survival.max(LEAST_SURVIVAL)
    }

    /// How a prompt begins that resumes from `checkpoint`, and shares attention blocks up to `branch`
    /// beyond it, 0 if it does not.
    pub(crate) fn beginning(&self, branch: u32, checkpoint: Option<BlockId>) -> Beginning {
        match checkpoint {
            _ if branch > 0 => Beginning::Shared,
            Some(checkpoint) if self.history.is_used(checkpoint) => Beginning::Shared,
            Some(_) => Beginning::Turn,
            None => Beginning::Fresh,
        }
    }

    /// How far a prompt of `digests` shares, whose attention blocks are there for `matched` tokens.
    pub(crate) fn shared<S: Store>(
        &self,
        cache: &Cache<S>,
        digests: &[Digest],
        hit: u32,
        matched: u32,
    ) -> Shared {
        let last = self.first_full.and_then(|group| {
            let group = cache.groups[group];
            cache.store.get(group.kept, &group.key_at(digests, matched)?)
        });
        Shared { hit, matched, reached: matched, last }
    }

    /// How far a prompt of `digests` shares that begins as `beginning` says, if that is known although `limit` ends its
    /// hit. Where attention was evicted, it is for the next turn of a conversation only, as far as the keys of what was
    /// evicted are remembered: other prompts may have gone on elsewhere.
    pub(crate) fn departure<S: Store>(
        &self,
        cache: &Cache<S>,
        digests: &[Digest],
        shared: Shared,
        limit: HitLimit,
        beginning: Beginning,
    ) -> Option<Shared> {
        // Where only a window is missing, attention says how far the prompt shares.
        let lacks_window = limit == HitLimit::WindowEvicted && shared.matched > shared.hit;
        if limit.is_whole() || lacks_window {
            return Some(shared);
        }
        let is_known = limit == HitLimit::AttentionEvicted && beginning == Beginning::Turn;
        is_known.then(|| Shared { reached: self.reach(cache, digests, shared.matched), ..shared })
    }

    /// The tokens up to which attention blocks are there or were until lately, if `matched` are there.
    fn reach<S: Store>(&self, cache: &Cache<S>, digests: &[Digest], matched: u32) -> u32 {
        let Some(group) = self.first_full.map(|group| cache.groups[group]) else { return matched };
        let block_size = group.spec.block_size;
        let first = matched / block_size;
        let was_evicted = |num_blocks: u32| {
            let key = group.key_at(digests, (first + num_blocks) * block_size);
            key.is_some_and(|key| cache.store.was_evicted(group.kept, &key))
        };
        // Some keys are forgotten: one of the next few that is known stands for all before it.
        let next = |lost: u32| (lost + 1..=lost + PROBES).rev().find(|&at| was_evicted(at));
        let (mut lost, mut step) = (0, 1);
        while let Some(at) = next(lost + step - 1) {
            lost = at;
            step *= 2;
        }
        while step > 1 {
            step /= 2;
            if let Some(at) = next(lost + step - 1) {
                lost = at;
            }
        }
        ((first + lost) * block_size / self.alignment * self.alignment).max(matched)
    }

    /// Prompts that left an earlier one where this one does.
    pub(crate) fn num_left(&self, shared: &Shared) -> u8 {
        shared.last.map_or(0, |last| self.authors.num_left(last))
    }

    /// A prompt of `class` and `num_tokens` was admitted for the first time, and leaves earlier ones as `shared` says, if
    /// that is known.
    /// It may continue an `earlier` request that is over, and share it up to a length. Of these tokens it finds those up
    /// to `start`.
    ///
    /// Where attention beyond `shared` was evicted, the earlier request tells what prompts share, and so what checkpoints
    /// are worth. Their places are those that are found: under pressure a shorter checkpoint still serves when the end of
    /// a prompt is evicted.
    /// Where prompts find less than they miss, ends do not last, and what is found counts. Places by what is shared
    /// would lose hits of agents.
    ///
    /// Where `shared` is not known, the earlier request teaches only if little is found. Prompts that come back late, when
    /// nothing is left of what they need, would count like others.
    ///
    /// Windows are neither placed nor valued by the earlier request: an earlier window outlives the end of a
    /// prompt.
    pub(crate) fn on_prompt(
        &mut self,
        (class, num_tokens): (PromptClass, u32),
        shared: Option<Shared>,
        earlier: Option<(Author, u32)>,
        start: u32,
    ) {
        if let Some((_, length)) = earlier {
            self.savings.missed += f64::from(length.saturating_sub(start));
        }
        let found = shared.and_then(|shared| {
            let Shared { hit, matched, reached, last } = shared;
            self.authors.leave(last?, matched, reached, hit, self.alignment, num_tokens)
        });
        let earlier = earlier.filter(|(author, _)| author.num_tokens > 0 && self.window == 0);
        let left =
            |(author, length): (Author, u32), hit| author.left(length, hit, self.alignment, None);
        let evicted = earlier.zip(shared).filter(|((_, length), shared)| *length > shared.reached);
        let shared = evicted
            .filter(|_| self.savings.finds_more())
            .map(|(earlier, shared)| left(earlier, shared.hit));
        let earlier = earlier.filter(|_| self.savings.finds_little());
        let found = found.or_else(|| earlier.map(|earlier| left(earlier, earlier.1)));
        self.placement.on_prompt(class, found, shared.or(found));
    }

    /// A request computed blocks of a group.
    pub(crate) fn on_computed(&mut self, group: usize, blocks: &[BlockId], plan: &CheckpointPlan) {
        if self.first_full == Some(group) {
            self.authors.set(blocks, plan.author());
        }
    }

    /// A request computed blocks of a group, from position `first` on. Where windows are checkpoints, one ends with each.
    pub(crate) fn on_windows(
        &mut self,
        group: &Group,
        first: u32,
        blocks: &[BlockId],
        plan: &CheckpointPlan,
    ) {
        if group.is_placed && self.counts(group.id.index()) {
            let ends = (first + 1..).map(|position| position * group.spec.block_size);
            for (end, &block) in ends.zip(blocks) {
                self.on_left(block, plan, end);
            }
        }
    }

    /// A checkpoint was left after `num_tokens` tokens.
    pub(crate) fn on_left(&mut self, block: BlockId, plan: &CheckpointPlan, num_tokens: u32) {
        self.history.leave(block, plan.branch == num_tokens, self.pressure.now());
    }

    /// A request resumes from a checkpoint of `num_tokens` tokens. `leaves` says whether it leaves earlier prompts there;
    /// else what followed was evicted, or how far it follows them is not known.
    ///
    /// Where conversations find most of what they repeat, only those who leave count as uses. Else the first window of a
    /// conversation from which it resumed twice would be worth more than its newer ones for good. Where
    /// they find less, only such a window lasts.
    pub(crate) fn on_used(&mut self, block: BlockId, num_tokens: u32, leaves: bool) {
        self.pressure.on_hit(self.history.last_used(block), f64::from(num_tokens));
        if leaves || !self.savings.finds_most() {
            self.history.resume(block);
        }
    }

    /// A request of `plan` that went on from `start` ends after `num_tokens` tokens, and leaves checkpoints
    /// at `lengths`, ascending.
    pub(crate) fn on_end(
        &mut self,
        plan: &CheckpointPlan,
        start: u32,
        num_tokens: u32,
        lengths: &[u32],
    ) {
        let own = lengths.partition_point(|&length| length <= start);
        let survives = if self.pressure.now() - plan.planned_at < 1.0 { 1.0 } else { 0.0 };
        self.survival += (survives - self.survival) / SURVIVAL_MEMORY;
        let (placement, none) = (&self.placement, vec![0.0; lengths.len()]);
        let saved = placement.outlook(plan.class, plan.prompt_tokens, lengths, &none).saved(own);
        let states = self.num_checkpoints(start, &lengths[own..]) * self.state_tokens;
        self.savings.add(Savings {
            saved,
            bytes: f64::from(num_tokens.saturating_sub(start)) + states,
            saved_by_one: self.saved_by_one(plan, start, num_tokens),
            found: f64::from(start),
            prompt: f64::from(plan.prompt_tokens),
            generated: f64::from(num_tokens.saturating_sub(plan.prompt_tokens)),
            held: f64::from(num_tokens),
            missed: 0.0,
            num_requests: 1.0,
        });
    }

    /// Returns the content that the next turn needs of a request of `num_tokens` tokens with checkpoints at
    /// `lengths`, ascending, in tokens of attention. `None` while nothing is evicted. Shorter checkpoints go first.
    pub(crate) fn left_by(&self, num_tokens: u32, lengths: &[u32]) -> Option<Left> {
        let state = if lengths.is_empty() { 0.0 } else { self.state_tokens };
        let num_found = lengths.last().copied().unwrap_or(num_tokens);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let kept = Left { bytes: u64::from(num_tokens) + state as u64, num_tokens: num_found };
        (self.cached_tokens() > 0).then_some(kept)
    }

    /// Tokens whose attention takes as much as is cached, on average over the last life; 0 while nothing is evicted.
    pub(crate) fn cached_tokens(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let tokens = self.pressure.cached_tokens() as u64;
        tokens
    }

    /// Checkpoints at `lengths`, ascending, behind `start`. What windows share counts once.
    fn num_checkpoints(&self, start: u32, lengths: &[u32]) -> f64 {
        if self.window == 0 {
            return lengths.len() as f64;
        }
        let (mut before, mut kept) = (start, 0);
        for &length in lengths {
            kept += length - length.saturating_sub(self.window).max(before).min(length);
            before = length;
        }
        f64::from(kept) / f64::from(self.window)
    }

    /// Tokens that a request of `plan` is likely to save by a checkpoint in the best place of its
    /// prompt. The checkpoint at its end counts where it is worth its copies.
    fn saved_by_one(&self, plan: &CheckpointPlan, start: u32, num_tokens: u32) -> f64 {
        let CheckpointPlan { class, prompt_tokens, .. } = *plan;
        let prompt = Prompt { start, num_tokens: prompt_tokens, class, ..Prompt::default() };
        let best = self.placement.plan(prompt, 0.0, 1);
        let places = best.lengths.as_slice().iter().copied();
        let end = Some(num_tokens).filter(|&end| best.end && end > prompt_tokens);
        let lengths: Vec<u32> = std::iter::once(start).chain(places).chain(end).collect();
        let none = vec![0.0; lengths.len()];
        self.placement.outlook(class, prompt_tokens, &lengths, &none).saved(1)
    }

    /// Whether each of `num_running` requests is to have room for a checkpoint beside it, rather than more run. A cache
    /// much larger than that room finds as much without it.
    pub(crate) fn leaves_room(&self, num_running: usize) -> bool {
        let room = num_running as f64 * self.state_tokens;
        self.pressure.cached_tokens() <= MOST_OF_ROOM * room
            && self.savings.is_worth_room(num_running as f64, self.state_tokens, self.step_tokens)
    }

    /// Returns the worth of each checkpoint of a request of `plan` at `lengths`, ascending, next to all other
    /// content, at most 1. Worth is the tokens that a checkpoint is likely to save for its bytes. `block` is the one
    /// at a length.
    pub(crate) fn worth(
        &self,
        plan: &CheckpointPlan,
        lengths: &[u32],
        block: impl Fn(u32) -> Option<BlockId>,
    ) -> Vec<f64> {
        let again = |&length: &u32| match block(length).map(|block| self.history.num_uses(block)) {
            None | Some(0) => 0.0,
            Some(num_uses) => self.placement.chance_again(num_uses),
        };
        let again: Vec<f64> = lengths.iter().map(again).collect();
        let mut outlook = self.placement.outlook(plan.class, plan.prompt_tokens, lengths, &again);
        if self.window > 0 {
            outlook = outlook.of_windows(self.window, lengths);
        }
        let mean = self.savings.mean() * self.state_tokens;
        let values = outlook.values();
        // Windows of one request replace each other, whatever others save. Of those that are worth a life, the best one
        // outlives the rest, so that many requests keep one each where some would keep all.
        let best = values.iter().copied().fold(0.0, f64::max);
        let beside = |value| if self.window > 0 && best > 0.0 { value / best } else { 1.0 };
        let worth = |value| if value < mean { value / mean } else { 1.0 };
        values.into_iter().map(|value| worth(value) * beside(value)).collect()
    }

    /// Measures what was evicted since the last time, of what was cached then.
    pub(crate) fn measure<S: Store>(&mut self, store: &S) {
        let in_slabs = |count: fn(&BlockStates) -> u64| -> f64 {
            let pools = (0..store.num_pools()).map(PoolId);
            pools
                .map(|pool| count(store.pool(pool)) as f64 / f64::from(store.blocks_per_slab(pool)))
                .sum()
        };
        let evicted = in_slabs(|blocks| blocks.num_evicted);
        if evicted > self.slabs_evicted {
            let share = |slabs: f64| slabs / store.num_slabs() as f64;
            let lately = evicted - self.slabs_evicted;
            self.pressure.on_evicted(share(lately), share(self.slabs_cached));
        }
        self.slabs_evicted = evicted;
        self.slabs_cached = in_slabs(|blocks| u64::from(blocks.num_cached()));
    }
}

/// The tokens whose attention takes as much memory as a checkpoint, and those whose attention fills the memory.
fn in_tokens<S: Store>(cache: &Cache<S>) -> (f64, f64) {
    let slabs = |group: &&Group| 1.0 / f64::from(cache.store.blocks_per_slab(group.kept));
    let groups = cache.groups.iter();
    let of_state = groups.filter(|group| group.kind().is_recurrent()).map(|it| slabs(&it));
    let windows = cache.groups.iter().filter(|group| group.is_placed);
    let of_windows = windows.map(|group| {
        slabs(&group) * f64::from(group.kind().mean_window_blocks(group.spec.block_size))
    });
    let of_token = cache
        .groups
        .iter()
        .filter(|group| group.kind().is_full())
        .map(|group| slabs(&group) / f64::from(group.spec.block_size));
    let of_state = of_state.chain(of_windows).sum::<f64>();
    let of_token = of_token.sum::<f64>();
    if of_token == 0.0 {
        // No token takes memory for good: only states do.
        return (1.0, cache.store.num_slabs() as f64);
    }
    (of_state / of_token, cache.store.num_slabs() as f64 / of_token)
}

#[cfg(test)]
mod tests;
