//! [`Keeper`]: for how long content is kept that requests use and leave: its priority, by what it is worth. What
//! has the lowest is evicted first. Both sets of rules ask it.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::checkpoint_policy::CheckpointPlan;
use super::sessions::{
    ConversationRank, Given, Hint, LeftBlock, SessionEnd, Sessions, Turn, Turns, WorthClass,
};
use super::traffic::Traffic;
use super::windows::{Needed, Places, blocks_at};
use crate::engine::cache::Cache;
use crate::group::{Group, Table};
use crate::ids::BlockId;
use crate::learn::places::Author;
use crate::prefix_index::Key;
use crate::store::{EvictionOrder, Store};
use hybrid_blocks_hash::Digest;

/// Parts of a life that priorities distinguish.
const PARTS_A_LIFE: f64 = 65_536.0;

/// Bits of a priority below the parts of a life: ticks, for content of the same part.
const TICK_BITS: u32 = 24;

/// Lives for which attention behind the last checkpoint of a request is kept. No prompt can resume from it.
///
/// Such attention saves nothing, but tells where later prompts leave this one. Kept for a whole life, it takes memory
/// from content that saves; kept for none, too little is learned.
const LEAST_WORTH: f64 = 1.0 / 3.0;

/// Weight of the chance that a prompt resumes from content with a hint.
const HINT_WEIGHT: f64 = 2.0;

/// Learned facts of requests, and the worth of their content that follows from them.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) traffic: Traffic,
    pub(crate) sessions: Sessions,
    /// Whether a client named a session or gave a hint so far.
    pub(crate) is_hinted: bool,
    /// Authors of the last requests that are over, the latest last.
    authors: VecDeque<Author>,
    /// Checkpoints that the request at hand leaves, and that no other is known to need.
    scored: Vec<LeftBlock>,
}

/// Requests that are over whose prompts are remembered.
const MOST_AUTHORS: usize = 1 << 12;

/// Known facts of a prompt that arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arriving {
    /// Earlier turns of its conversation, as far as they are remembered.
    pub(crate) num_turns: u8,
    /// Rank of the prompt's conversation; low ranks are kept when only a share fits.
    pub(crate) rank: ConversationRank,
    /// A request that is over, and the last of the given digests up to which it is known to be shared.
    pub(crate) earlier: Option<(Author, usize)>,
}

/// A request, as far as it matters for what it uses and leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departing<'a> {
    /// Tables of the request by group.
    pub(crate) tables: &'a [Table],
    pub(crate) digests: &'a [Digest],
    pub(crate) plan: CheckpointPlan,
    /// Tokens that it resumed from.
    pub(crate) start: u32,
    pub(crate) num_computed: u32,
    /// Turn of the conversation, and hint of the client.
    pub(crate) class: WorthClass,
    /// A number of its session, 0 if none is known.
    pub(crate) session: u64,
    /// Rank of the request's conversation.
    pub(crate) rank: ConversationRank,
}

impl Departing<'_> {
    /// The checkpoint of a group after `num_tokens` tokens, if there is one.
    fn checkpoint<S: Store>(
        &self,
        cache: &Cache<S>,
        group: &Group,
        num_tokens: u32,
    ) -> Option<BlockId> {
        if group.is_placed {
            return cache.store.get(group.kept, &group.key_at(self.digests, num_tokens)?);
        }
        let last = (num_tokens / cache.hash_block_size).checked_sub(1)?;
        let key = Key { digest: *self.digests.get(last as usize)?, group: group.id };
        cache.store.get(group.kept, &key)
    }
}

impl Keeper {
    /// Nothing learned so far. `alignment` is what the length of a hit is a multiple of.
    pub(crate) fn new<S: Store>(cache: &Cache<S>, alignment: u32) -> Self {
        Self {
            traffic: Traffic::new(cache, alignment),
            sessions: Sessions::new(&cache.store),
            is_hinted: false,
            authors: VecDeque::new(),
            scored: Vec::new(),
        }
    }

    /// A step begins. What is cached in it without a word gets the priority of content of mean worth.
    pub(crate) fn start_step<S: Store>(&mut self, store: &mut S) {
        self.traffic.measure(store);
        let at = (self.traffic.pressure.now(), store.now());
        store.set_default_priority(priority(at, 1.0));
    }

    /// A prompt arrived for the first time, whose `digests` from the end of its hit of `num_tokens` on are given.
    pub(crate) fn on_arrival(
        &mut self,
        session: u64,
        digests: &[Digest],
        num_tokens: u32,
    ) -> Arriving {
        if !self.knows_turns() {
            return Arriving::default();
        }
        let Turn { num_earlier, after, rank, shared } =
            self.sessions.turns.on_arrival(session, digests);
        if let Some(end) = after {
            self.sessions.kept_share.on_return(end, num_tokens);
        }
        Arriving {
            num_turns: num_earlier,
            rank: rank.unwrap_or_else(|| self.sessions.kept_share.rank()),
            earlier: shared.and_then(|(end, at)| Some((self.author(end)?, at))),
        }
    }

    /// The author that ended as number `end`, counted from 1.
    fn author(&self, end: u64) -> Option<Author> {
        let num_later = self.sessions.turns.num_ended().checked_sub(end)?;
        let at = self.authors.len().checked_sub(1 + usize::try_from(num_later).ok()?)?;
        self.authors.get(at).copied()
    }

    /// Hints count from now on, if they did not before. What ended without a hint says nothing of hints.
    pub(crate) fn listen(&mut self) {
        if !self.is_hinted {
            self.is_hinted = true;
            self.sessions.turns.forget_chances();
        }
    }

    /// Whether it is noted which requests are turns of one conversation: once something was evicted.
    fn knows_turns(&self) -> bool {
        self.is_hinted || self.traffic.pressure.now() > 0.0
    }

    /// A request is over: remember where the next turn of its conversation may go on. Returns the request's number.
    fn on_end<S: Store>(&mut self, cache: &Cache<S>, visit: &Departing<'_>) -> Option<u64> {
        if !self.knows_turns() {
            return None;
        }
        let num_computed = visit.num_computed;
        let end = num_computed / self.traffic.alignment() * self.traffic.alignment();
        let planned = visit.plan.lengths.as_slice().iter().copied();
        let places = planned.chain([end]).filter(|&length| length <= num_computed);
        let last = places.filter_map(|length| (length / cache.hash_block_size).checked_sub(1));
        let digests = last.filter_map(|at| visit.digests.get(at as usize));
        if self.authors.len() == MOST_AUTHORS {
            self.authors.pop_front();
        }
        self.authors.push_back(visit.plan.author());
        let end = self.sessions.turns.on_end(visit.class, visit.session, visit.rank, digests);
        if self.traffic.pressure.now() <= 0.0 {
            self.sessions.turns.share_none_so_far();
        }
        Some(end)
    }

    /// Gives the checkpoint after `num_tokens` tokens its priority in all groups. A request uses or leaves it, next to
    /// those that it used, left or is to leave. `lengths` are those of the first two.
    pub(crate) fn score_checkpoint<S: Store>(
        &self,
        cache: &mut Cache<S>,
        visit: &Departing<'_>,
        lengths: &[u32],
        num_tokens: u32,
    ) {
        let planned = visit.plan.lengths.as_slice().iter();
        let mut lengths: Vec<u32> = planned.chain(lengths).copied().collect();
        lengths.push(num_tokens);
        lengths.sort_unstable();
        lengths.dedup();
        let at = lengths.partition_point(|&length| length < num_tokens);
        let counted = self.counted(cache, visit, num_tokens);
        let worth = self
            .traffic
            .worth(&visit.plan, &lengths, |length| counted.filter(|_| length == num_tokens));
        let own = self.priority(cache, self.lives(visit).max(1.0), worth[at]);
        for group in cache.state_groups() {
            if let Some(block) = visit.checkpoint(cache, &group, num_tokens) {
                let priority = own.max(self.kept_for_others(cache, counted, &group, block));
                // A group may have had one already, without an owner.
                cache.store.reprioritize(group.kept, [(block, priority)].into_iter());
            }
        }
    }

    /// Gives what a request holds its priority before it is given back, and the checkpoints at
    /// `lengths`, which it used or left. One that is over is remembered as the end of its session.
    pub(crate) fn on_left<S: Store>(
        &mut self,
        cache: &mut Cache<S>,
        visit: &Departing<'_>,
        lengths: &mut Vec<u32>,
        is_over: bool,
    ) {
        let end = if is_over { self.on_end(cache, visit) } else { None };
        let lives = if is_over { self.lives(visit) } else { self.lives(visit).max(1.0) };
        let worth = self.score_checkpoints(cache, visit, lengths, (lives, is_over));
        if let Some((end, left)) = end.zip(self.traffic.left_by(visit.num_computed, lengths)) {
            self.sessions.kept_share.on_end(end, visit.rank, left, self.traffic.cached_tokens());
        }
        // A preempted request may soon continue, and states kept without a plan may need all attention.
        let is_planned = self.traffic.counted().is_some() && visit.plan.prompt_tokens > 0;
        let least = if is_over && is_planned { LEAST_WORTH } else { 1.0 };
        let needed = needed_by(lengths, &worth, least);
        let remembers = is_over && visit.session > 0 && self.is_hinted;
        let given = remembers.then(|| {
            Given::new(self.sessions.ends.get_mut(visit.session).as_deref(), visit.class.hint())
        });
        let mut left = self.score_attention(cache, visit, &needed, given.as_ref(), lives);
        if remembers {
            left.extend_from_slice(&self.scored);
            let (class, at) = (visit.class, self.now(cache));
            self.sessions.ends.insert(visit.session, SessionEnd { class, at, left });
        }
    }

    /// Gives attention at least its priority, by what it is [`needed_by`]. Returns the blocks that
    /// only the request's session is known to need; none if it is not told what that has `given`.
    fn score_attention<S: Store>(
        &self,
        cache: &mut Cache<S>,
        visit: &Departing<'_>,
        needed: &[(u32, f64)],
        given: Option<&Given>,
        lives: f64,
    ) -> Vec<LeftBlock> {
        let mut left = Vec::new();
        for (group, table) in cache.groups.iter().zip(visit.tables) {
            if !is_attention(group) {
                continue;
            }
            let (pool, mut first) = (group.kept, 0);
            for &(length, worth) in needed {
                // A drafter drops blocks of a hit that must be there.
                let end = length.div_ceil(group.spec.block_size).saturating_add(group.num_dropped);
                let end = (end as usize).min(table.blocks.len());
                let blocks = &table.blocks[first..end];
                let own = given.map(|given| given.take_own(&mut cache.store, pool, blocks));
                // A shared prefix keeps the highest priority that a request gave it by resuming from it.
                let least = self.priority(cache, lives, worth);
                cache.store.raise_priorities(pool, blocks, least);
                left.extend(own.into_iter().flatten().map(|block| {
                    let priority = cache.store.priority(pool, block);
                    LeftBlock { pool, block, worth, priority }
                }));
                first = end;
            }
        }
        left
    }

    /// Gives the checkpoints at `lengths` their priorities, by what each is likely to save beside
    /// the others. Returns what each is worth, and leaves those that are there in `lengths`,
    /// ascending.
    fn score_checkpoints<S: Store>(
        &mut self,
        cache: &mut Cache<S>,
        visit: &Departing<'_>,
        lengths: &mut Vec<u32>,
        (lives, is_over): (f64, bool),
    ) -> Vec<f64> {
        self.scored.clear();
        let (windows, end) = (self.counts_windows(cache), self.traffic.end(visit.num_computed));
        if windows {
            let planned = visit.plan.lengths.as_slice().iter();
            lengths.extend(planned.filter(|&&length| length <= end));
            lengths.push(end);
        }
        lengths.sort_unstable();
        lengths.dedup();
        lengths.retain(|&length| {
            if windows {
                length > 0 && blocks_at(cache, visit.digests, length).is_some()
            } else {
                self.counted(cache, visit, length).is_some()
            }
        });
        self.traffic.on_end(&visit.plan, visit.start, visit.num_computed, lengths);
        let counted = |length| self.counted(cache, visit, length);
        let mut worth = self.traffic.worth(&visit.plan, lengths, counted);
        if windows && !is_over && lengths.last() == Some(&end) {
            // A request that is not over continues from there itself.
            worth[lengths.len() - 1] = 1.0;
        }
        let groups = cache.state_groups();
        for (&length, &worth) in lengths.iter().zip(&worth) {
            let counted = self.counted(cache, visit, length);
            let priority = self.priority(cache, lives, worth);
            for group in &groups {
                let Some(block) = visit.checkpoint(cache, group, length) else { continue };
                let others = if self.is_of_others(visit, group, block, length) {
                    cache.store.priority(group.kept, block)
                } else {
                    self.kept_for_others(cache, counted, group, block)
                };
                self.keep_checkpoint(cache, group, block, priority.max(others));
                if others == 0 {
                    let pool = group.kept;
                    self.scored.push(LeftBlock { pool, block, worth, priority });
                }
            }
        }
        self.score_windows(cache, visit, lengths, (&worth, lives));
        if let &[.., spare, last] = lengths.as_slice()
            && let Some(block) = self.counted(cache, visit, last)
        {
            self.traffic.history.set_spare(block, spare);
        }
        worth
    }

    /// Whether checkpoints are windows alone.
    fn counts_windows<S: Store>(&self, cache: &Cache<S>) -> bool {
        self.traffic.counted().is_some_and(|group| cache.groups[group].is_placed)
    }

    /// Gives the windows before each of `lengths` the priority of what they are `worth`; what a
    /// request holds of its windows beside those is evicted first.
    fn score_windows<S: Store>(
        &mut self,
        cache: &mut Cache<S>,
        visit: &Departing<'_>,
        lengths: &[u32],
        (worth, lives): (&[f64], f64),
    ) {
        if !cache.groups.iter().any(|group| group.is_placed) {
            return;
        }
        let mut needed: Vec<(Needed, u64)> = Vec::new();
        for (&length, &worth) in lengths.iter().zip(worth) {
            let own = self.priority(cache, lives, worth);
            let counted = self.counted(cache, visit, length);
            for one in blocks_at(cache, visit.digests, length).unwrap_or_default() {
                let group = cache.groups[one.group];
                let others = if self.is_of_others(visit, &group, one.block, length) {
                    cache.store.priority(group.kept, one.block)
                } else {
                    self.kept_for_others(cache, counted, &group, one.block)
                };
                if others == 0 {
                    let (pool, block) = (group.kept, one.block);
                    self.scored.push(LeftBlock { pool, block, worth, priority: own });
                }
                needed.push((one, own.max(others)));
            }
        }
        needed.sort_unstable_by_key(|&(one, priority)| (one, Reverse(priority)));
        needed.dedup_by_key(|(one, _)| *one);
        // The end of a window goes before its start.
        for &(Needed { group, block, .. }, priority) in needed.iter().rev() {
            let group = cache.groups[group];
            self.keep_checkpoint(cache, &group, block, priority);
        }
        let (plan, start) = (visit.plan, visit.start);
        let places = Places { plan, start, end: self.traffic.end(visit.num_computed) };
        for (number, table) in visit.tables.iter().enumerate() {
            let group = cache.groups[number];
            let held = table.blocks.iter().zip(0..).skip(table.num_skipped as usize);
            for (&block, position) in held.filter(|_| group.is_placed) {
                let one = Needed { group: number, position, block };
                if needed.binary_search_by_key(&one, |&(it, _)| it).is_ok() {
                    continue;
                }
                if places.need(&group, position) {
                    cache.store.raise_to_default(group.kept, &[block]);
                } else {
                    cache.store.spend(group.kept, block);
                }
            }
        }
    }

    /// Gives a checkpoint a priority, as if it had been used now.
    pub(crate) fn keep_checkpoint<S: Store>(
        &mut self,
        cache: &mut Cache<S>,
        group: &Group,
        block: BlockId,
        priority: u64,
    ) {
        cache.store.set_priority(group.kept, block, priority);
        cache.store.refresh(group.kept, block);
        if self.traffic.counts(group.id.index()) {
            self.traffic.history.touch(block, self.traffic.pressure.now());
        }
    }

    /// Scores what a session that ended left behind as if `hint` had been said before. Returns
    /// whether its end is remembered.
    pub(crate) fn on_hint<S: Store>(&mut self, store: &mut S, session: u64, hint: Hint) -> bool {
        if !self.is_hinted {
            return false;
        }
        let Some(mut end) = self.sessions.take_end(session, hint) else { return false };
        // A block that was taken since, or that others need, has another priority.
        end.left.retain(|it| store.priority(it.pool, it.block) == it.priority);
        let lives = hinted_lives(&self.sessions.turns, end.class);
        for it in &mut end.left {
            it.priority = priority(end.at, it.worth * lives);
        }
        for left in end.left.chunk_by(|one, other| one.pool == other.pool) {
            let first = left[0];
            // The end of a prefix goes before its start.
            let left = left.iter().rev();
            store.reprioritize(first.pool, left.map(|it| (it.block, it.priority)));
        }
        self.sessions.ends.insert(session, end);
        true
    }

    /// The checkpoint of the group whose checkpoints stand for those of all, if there is one.
    fn counted<S: Store>(
        &self,
        cache: &Cache<S>,
        visit: &Departing<'_>,
        num_tokens: u32,
    ) -> Option<BlockId> {
        visit.checkpoint(cache, &cache.groups[self.traffic.counted()?], num_tokens)
    }

    /// The priority that a block of a checkpoint has because several requests resumed from it, else 0: whether
    /// one conversation ends says nothing of the others.
    fn kept_for_others<S: Store>(
        &self,
        cache: &Cache<S>,
        counted: Option<BlockId>,
        group: &Group,
        block: BlockId,
    ) -> u64 {
        let is_shared = counted.is_some_and(|block| self.traffic.history.is_shared(block));
        if is_shared { cache.store.priority(group.kept, block) } else { 0 }
    }

    /// Whether a hint was given of a request that resumed from a checkpoint which its session did not leave.
    fn is_of_others(
        &mut self,
        visit: &Departing<'_>,
        group: &Group,
        block: BlockId,
        num_tokens: u32,
    ) -> bool {
        let is_left = |end: &mut SessionEnd| {
            end.left.iter().any(|it| it.pool == group.kept && it.block == block)
        };
        visit.class.hint() != Hint::None
            && num_tokens <= visit.start
            && !self.sessions.ends.get_mut(visit.session).is_some_and(is_left)
    }

    /// For how many lives content of mean worth is kept that a request leaves.
    fn lives(&self, visit: &Departing<'_>) -> f64 {
        // A hint of the client outweighs the habits of other conversations.
        if self.is_hinted && visit.class.hint() != Hint::None {
            hinted_lives(&self.sessions.turns, visit.class)
        } else {
            self.sessions.kept_share.lives(visit.rank)
        }
    }

    /// The priority of what is kept from now on, for `lives` if it is worth 1.
    fn priority<S: Store>(&self, cache: &Cache<S>, lives: f64, worth: f64) -> u64 {
        priority(self.now(cache), worth * lives)
    }

    /// The time, in lives and in ticks.
    fn now<S: Store>(&self, cache: &Cache<S>) -> (f64, u64) {
        (self.traffic.pressure.now(), cache.store.now())
    }
}

/// Worth of the attention up to each of `lengths`, ascending, and of all attention behind them, as [`u32::MAX`].
/// Attention is worth as much as the most valuable checkpoint that needs it, and at least `least`.
fn needed_by(lengths: &[u32], worth: &[f64], least: f64) -> Vec<(u32, f64)> {
    let (mut most, mut needed) = (least, vec![(u32::MAX, least)]);
    for (&length, &worth) in lengths.iter().zip(worth).rev() {
        most = most.max(worth);
        needed.push((length, most));
    }
    needed.reverse();
    needed
}

/// For how many lives content of mean worth is kept that a request of `class` leaves, by the chance that a prompt resumes there:
/// 1 without a hint.
fn hinted_lives(turns: &Turns, class: WorthClass) -> f64 {
    if class.hint() == Hint::None {
        return 1.0;
    }
    (1.0 + HINT_WEIGHT * (turns.relative_chance(class) - 1.0)).max(0.0)
}

/// Whether a group keeps blocks of all tokens, not checkpoints.
fn is_attention(group: &Group) -> bool {
    !group.kind().is_constant() && !group.kind().is_recurrent() && !group.is_placed
}

/// The priority of content to keep for a number of lives from a time on, in lives and in ticks.
fn priority((now, tick): (f64, u64), lives: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "neither is negative"
    )]
    let parts = ((now + lives) * PARTS_A_LIFE) as u64;
    // Until something is evicted, only the ticks pass. 0 stands for no priority.
    ((parts << TICK_BITS) | (tick & ((1 << TICK_BITS) - 1))).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::outbox::Outbox;
    use crate::group::GroupSpec;
    use crate::store::SlabStore;
    use crate::{GroupKind, PoolId};

    #[test]
    fn turns_are_noted_once_something_was_evicted_or_a_hint_came() {
        let spec = GroupSpec { kind: GroupKind::Full, block_size: 2, pool: PoolId(0) };
        let store = SlabStore::new(4, &[4]).unwrap();
        let cache = Cache::new(store, std::iter::once(spec), 2, true, Outbox::default()).unwrap();
        let mut keeper = Keeper::new(&cache, 2);
        assert!(!keeper.knows_turns());
        keeper.traffic.pressure.on_evicted(0.5, 0.25);
        assert!(keeper.knows_turns());
        let mut listening = Keeper::new(&cache, 2);
        listening.listen();
        assert!(listening.knows_turns());
    }

    #[test]
    fn content_with_a_hint_lives_the_longer_the_likelier_it_is_gone_on_from() {
        let turns = Turns::default();
        let [done, plain, paused] =
            [Hint::Done, Hint::None, Hint::Paused].map(|hint| WorthClass::new(0, hint));
        let [done, mean, paused] = [done, plain, paused].map(|class| hinted_lives(&turns, class));
        assert!(0.0 <= done && done < mean && 2.0 * mean < paused, "{done} {mean} {paused}");
        assert!((mean - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn attention_is_worth_as_much_as_the_best_checkpoint_that_needs_it() {
        let needed = needed_by(&[64, 128, 256], &[0.2, 1.0, 0.5], 0.25);
        assert_eq!(needed, [(64, 1.0), (128, 1.0), (256, 0.5), (u32::MAX, 0.25)]);
        assert_eq!(needed_by(&[64], &[0.1], 0.25), [(64, 0.25), (u32::MAX, 0.25)]);
    }

    #[test]
    fn priorities_order_by_lives_then_by_ticks_and_none_is_0() {
        let last = (1 << TICK_BITS) - 1;
        let ordered = [
            priority((0.0, 0), 0.0),
            priority((0.0, 2), 0.0),
            priority((0.0, last), 0.0),
            priority((0.25, 3), 0.5),
            priority((0.5, 4), 0.25),
            priority((0.5, 0), 1.0),
        ];
        assert!(ordered[0] > 0 && ordered.is_sorted_by(|one, other| one < other), "{ordered:?}");
    }
}
