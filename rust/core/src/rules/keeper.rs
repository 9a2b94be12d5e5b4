//! [`Keeper`]: for how long content is kept that requests use and leave: its priority, by what it is worth. What
//! has the lowest is evicted first. Both sets of rules ask it.

use super::checkpoint_policy::CheckpointPlan;
use super::sessions::{Hint, LeftBlock, SessionEnd, Sessions, Turns, WorthClass};
use super::traffic::Traffic;
use crate::digest::Digest;
use crate::engine::cache::Cache;
use crate::group::{Group, Table};
use crate::ids::BlockId;
use crate::prefix_index::Key;
use crate::store::{EvictionOrder, Store};

/// Parts of a life that are told apart.
const PARTS_A_LIFE: f64 = 65_536.0;

/// Bits of a priority below the parts of a life: ticks, for content of the same part.
const TICK_BITS: u32 = 24;

/// For how many lives content of mean worth is kept, by its chance to be gone on from. A chance counts in mean
/// chances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Chances {
    /// `All(alpha)`: `1 + alpha * chance`.
    All(f64),
    /// `Hinted(alpha)`: 1 where nothing is said of the content, else `1 + alpha * (chance - 1)`, at least 0.
    Hinted(f64),
}

impl Chances {
    /// For content that a request of `class` leaves.
    fn lives(self, turns: &Turns, class: WorthClass) -> f64 {
        match self {
            Self::All(alpha) => 1.0 + alpha * turns.lives(class),
            Self::Hinted(_) if class.hint() == Hint::None => 1.0,
            Self::Hinted(alpha) => (1.0 + alpha * (turns.lives(class) - 1.0)).max(0.0),
        }
    }

    /// For content of the mean chance.
    fn mean_lives(self) -> f64 {
        match self {
            Self::All(alpha) => 1.0 + alpha,
            Self::Hinted(_) => 1.0,
        }
    }
}

/// What is learned of requests, and what the content that they leave is worth because of it.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) traffic: Traffic,
    pub(crate) sessions: Sessions,
    /// `None` where all content has the same chance; then no turn is noted.
    pub(crate) chances: Option<Chances>,
    /// Checkpoints that the request at hand leaves, and nobody else is known to need.
    scored: Vec<LeftBlock>,
}

/// A request, as far as it matters for what it uses and leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit<'a> {
    /// By group.
    pub(crate) tables: &'a [Table],
    pub(crate) digests: &'a [Digest],
    pub(crate) plan: CheckpointPlan,
    /// Tokens that it went on from.
    pub(crate) start: u32,
    pub(crate) num_computed: u32,
    /// In which turn of a conversation it is, and what was said of that.
    pub(crate) class: WorthClass,
    /// A number of its session, 0 if none is known.
    pub(crate) session: u64,
}

impl Visit<'_> {
    /// The checkpoint of a group after `num_tokens` tokens, if there is one.
    fn checkpoint<S: Store>(
        &self,
        cache: &Cache<S>,
        group: &Group,
        num_tokens: u32,
    ) -> Option<BlockId> {
        let last = (num_tokens / cache.hash_block_size).checked_sub(1)?;
        let key = Key { digest: *self.digests.get(last as usize)?, group: group.id };
        cache.store.get(group.spec.pool, &key)
    }
}

impl Keeper {
    /// Nothing learned so far. `alignment` is what the length of a hit is a multiple of, and `quadratic` what
    /// `TokenCosts` says.
    pub(crate) fn new<S: Store>(cache: &Cache<S>, alignment: u32, quadratic: f64) -> Self {
        Self {
            traffic: Traffic::new(cache, alignment, quadratic),
            sessions: Sessions::new(&cache.store),
            chances: None,
            scored: Vec::new(),
        }
    }

    /// A step begins. What is cached in it without a word gets the priority of content of mean worth.
    pub(crate) fn start_step<S: Store>(&mut self, store: &mut S) {
        self.traffic.measure(store);
        let at = (self.traffic.pressure.now(), store.now());
        let lives = self.chances.map_or(1.0, Chances::mean_lives);
        store.set_default_priority(priority(at, lives));
    }

    /// A prompt arrived for the first time. Returns the earlier turns of its conversation, as far as they are
    /// known.
    pub(crate) fn on_arrival(&mut self, session: u64, digests: &[Digest]) -> u8 {
        if self.chances.is_none() {
            return 0;
        }
        self.sessions.turns.on_arrival(session, digests).num_earlier
    }

    /// A request is over: remember where the next turn of its conversation may go on.
    fn on_end<S: Store>(&mut self, cache: &Cache<S>, visit: &Visit<'_>) {
        if self.chances.is_none() {
            return;
        }
        let num_computed = visit.num_computed;
        let end = num_computed / self.traffic.alignment() * self.traffic.alignment();
        let planned = visit.plan.lengths.as_slice().iter().copied();
        let places = planned.chain([end]).filter(|&length| length <= num_computed);
        let last = places.filter_map(|length| (length / cache.hash_block_size).checked_sub(1));
        let digests = last.filter_map(|at| visit.digests.get(at as usize));
        self.sessions.turns.on_end(visit.class, visit.session, digests);
    }

    /// Give the checkpoint after `num_tokens` tokens, which a request uses or leaves, its priority in all groups,
    /// beside those that it used, left or is to leave. `lengths` are those of the first two.
    pub(crate) fn score_checkpoint<S: Store>(
        &self,
        cache: &mut Cache<S>,
        visit: &Visit<'_>,
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
        let own = self.priority(cache, visit.class, worth[at]);
        for group in cache.state_groups() {
            if let Some(block) = visit.checkpoint(cache, &group, num_tokens) {
                let priority = own.max(self.kept_for_others(cache, counted, &group, block));
                // A group may have had one already, which nobody owns.
                cache.store.reprioritize(group.spec.pool, [(block, priority)].into_iter());
            }
        }
    }

    /// Give what a request holds its priority before it is given back, and the checkpoints at `lengths`, which
    /// it used or left. One that is over is remembered as the end of its session.
    pub(crate) fn on_left<S: Store>(
        &mut self,
        cache: &mut Cache<S>,
        visit: &Visit<'_>,
        lengths: &mut Vec<u32>,
        is_over: bool,
    ) {
        if is_over {
            self.on_end(cache, visit);
        }
        let remembers = is_over && visit.session > 0 && self.chances.is_some();
        let left = remembers.then(|| self.own_blocks(cache, visit));
        let least = self.priority(cache, visit.class, 1.0);
        for (group, table) in cache.groups.iter().zip(visit.tables) {
            if is_attention(group) {
                // A shared prefix keeps the highest priority that a request which went on from it gave it.
                cache.store.raise_priorities(group.spec.pool, &table.blocks, least);
            }
        }
        self.score_checkpoints(cache, visit, lengths);
        if let Some(left) = left {
            self.remember_end(cache, visit, left);
        }
    }

    /// Give the checkpoints at `lengths` their priorities, by what each is likely to save beside the others.
    fn score_checkpoints<S: Store>(
        &mut self,
        cache: &mut Cache<S>,
        visit: &Visit<'_>,
        lengths: &mut Vec<u32>,
    ) {
        self.scored.clear();
        lengths.sort_unstable();
        lengths.dedup();
        lengths.retain(|&length| self.counted(cache, visit, length).is_some());
        self.traffic.on_end(&visit.plan, visit.start, visit.num_computed, lengths);
        let counted = |length| self.counted(cache, visit, length);
        let worth = self.traffic.worth(&visit.plan, lengths, counted);
        let groups = cache.state_groups();
        for (&length, &worth) in lengths.iter().zip(&worth) {
            let counted = self.counted(cache, visit, length);
            let priority = self.priority(cache, visit.class, worth);
            for group in &groups {
                let Some(block) = visit.checkpoint(cache, group, length) else { continue };
                let others = if self.is_of_others(visit, group, block, length) {
                    cache.store.priority(group.spec.pool, block)
                } else {
                    self.kept_for_others(cache, counted, group, block)
                };
                self.keep_checkpoint(cache, group, block, priority.max(others));
                if others == 0 {
                    let pool = group.spec.pool;
                    self.scored.push(LeftBlock { pool, block, worth, priority });
                }
            }
        }
        if let &[.., spare, last] = lengths.as_slice()
            && let Some(block) = self.counted(cache, visit, last)
        {
            self.traffic.history.set_spare(block, spare);
        }
    }

    /// Give a checkpoint a priority, as if it had been used now.
    pub(crate) fn keep_checkpoint<S: Store>(
        &mut self,
        cache: &mut Cache<S>,
        group: &Group,
        block: BlockId,
        priority: u64,
    ) {
        cache.store.set_priority(group.spec.pool, block, priority);
        cache.store.refresh(group.spec.pool, block);
        if self.traffic.counts_states_of(group.id.index()) {
            self.traffic.history.touch(block, self.traffic.pressure.now());
        }
    }

    /// Score what a session that ended left behind as if `hint` had been said before. Returns whether
    /// its end is remembered.
    pub(crate) fn on_hint<S: Store>(&mut self, store: &mut S, session: u64, hint: Hint) -> bool {
        let Some(chances) = self.chances else { return false };
        let Some(mut end) = self.sessions.take_end(session, hint) else { return false };
        // What was taken, or needed by others, since has another priority.
        end.left.retain(|it| store.priority(it.pool, it.block) == it.priority);
        let lives = chances.lives(&self.sessions.turns, end.class);
        end.priority = priority(end.at, lives);
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
        visit: &Visit<'_>,
        num_tokens: u32,
    ) -> Option<BlockId> {
        visit.checkpoint(cache, &cache.groups[self.traffic.first_state()?], num_tokens)
    }

    /// The priority that a block of a checkpoint has because several requests went on from it, else 0: whether
    /// one conversation ends says nothing of the others.
    fn kept_for_others<S: Store>(
        &self,
        cache: &Cache<S>,
        counted: Option<BlockId>,
        group: &Group,
        block: BlockId,
    ) -> u64 {
        let is_shared = counted.is_some_and(|block| self.traffic.history.is_shared(block));
        if is_shared { cache.store.priority(group.spec.pool, block) } else { 0 }
    }

    /// Whether a hint was given of a request that went on from a checkpoint which its session did not leave.
    fn is_of_others(
        &mut self,
        visit: &Visit<'_>,
        group: &Group,
        block: BlockId,
        num_tokens: u32,
    ) -> bool {
        let is_left = |end: &mut SessionEnd| {
            end.left.iter().any(|it| it.pool == group.spec.pool && it.block == block)
        };
        visit.class.hint() != Hint::None
            && num_tokens <= visit.start
            && !self.sessions.ends.get_mut(visit.session).is_some_and(is_left)
    }

    /// The attention blocks of a request that nobody but its session is known to need, before they are
    /// scored: those that have no priority yet, or the one that the session gave them. It is taken from
    /// them: the last word on a session counts.
    fn own_blocks<S: Store>(&mut self, cache: &mut Cache<S>, visit: &Visit<'_>) -> Vec<LeftBlock> {
        let given = self.sessions.ends.get_mut(visit.session).map_or(0, |end| end.priority);
        let mut own = Vec::new();
        for (group, table) in cache.groups.iter().zip(visit.tables) {
            let pool = group.spec.pool;
            for &block in table.blocks.iter().filter(|_| is_attention(group)) {
                let priority = cache.store.priority(pool, block);
                if !block.is_null() && (priority == 0 || priority == given) {
                    cache.store.set_priority(pool, block, 0);
                    own.push(LeftBlock { pool, block, worth: 1.0, priority: 0 });
                }
            }
        }
        own
    }

    /// Remember what a request of a session left, now that it is scored.
    fn remember_end<S: Store>(
        &mut self,
        cache: &Cache<S>,
        visit: &Visit<'_>,
        mut left: Vec<LeftBlock>,
    ) {
        let Visit { class, session, .. } = *visit;
        let priority = self.priority(cache, class, 1.0);
        for block in &mut left {
            block.priority = priority;
        }
        left.extend_from_slice(&self.scored);
        let at = self.now(cache);
        self.sessions.ends.insert(session, SessionEnd { class, at, priority, left });
    }

    /// The priority of what a request of a class leaves behind now, where content of mean worth is worth 1: how
    /// long it is to be kept, in lives.
    fn priority<S: Store>(&self, cache: &Cache<S>, class: WorthClass, worth: f64) -> u64 {
        let lives = self.chances.map_or(1.0, |it| it.lives(&self.sessions.turns, class));
        priority(self.now(cache), worth * lives)
    }

    /// The time, in lives and in ticks.
    fn now<S: Store>(&self, cache: &Cache<S>) -> (f64, u64) {
        (self.traffic.pressure.now(), cache.store.now())
    }
}

/// Whether a group keeps blocks of tokens, not states.
fn is_attention(group: &Group) -> bool {
    !group.kind().is_constant() && !group.kind().is_recurrent()
}

/// The priority of what is to be kept for so many lives from a time on, in lives and in ticks.
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

    #[test]
    fn content_lives_the_longer_the_likelier_it_is_gone_on_from() {
        let turns = Turns::default();
        let [done, plain, paused] =
            [Hint::Done, Hint::None, Hint::Paused].map(|hint| WorthClass::new(0, hint));
        for chances in [Chances::All(2.0), Chances::Hinted(2.0)] {
            let [done, mean, paused] =
                [chances.lives(&turns, done), chances.mean_lives(), chances.lives(&turns, paused)];
            assert!(0.0 <= done && done < mean && 2.0 * mean < paused, "{chances:?}");
        }
        assert!(Chances::All(2.0).lives(&turns, plain) < Chances::All(2.0).mean_lives());
        let hinted = Chances::Hinted(2.0);
        assert!((hinted.lives(&turns, plain) - hinted.mean_lives()).abs() < f64::EPSILON);
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
