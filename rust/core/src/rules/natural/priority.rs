//! The priority of the content that a request leaves behind: what has the lowest is evicted first.

use super::BlockManager;
use super::config::Config;
use super::lookup::Lengths;
use super::policy::Policy;
use crate::error::Error;
use crate::group::Group;
use crate::ids::BlockId;
use crate::rules::sessions::{Hint, LeftBlock, SessionEnd, Turns, WorthClass};
use crate::store::{EvictionOrder, Store};

/// Parts of a life that are told apart.
const PARTS_A_LIFE: f64 = 65_536.0;

/// Bits of a priority below the parts of a life: ticks, for content of the same part.
const TICK_BITS: u32 = 24;

impl BlockManager {
    /// Say what priority the content of each of a request's hash blocks has once nobody holds it. For
    /// [`Policy::Explicit`]; content that nothing was said of has the lowest, 0.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_priorities(&mut self, handle: u64, priorities: Vec<u64>) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        self.engine.requests.rows[row].rest.priorities = priorities;
        Ok(())
    }

    /// By how many lives content of mean worth seems younger, for [`Policy::FlopAware`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] under another policy.
    pub fn set_alpha(&mut self, alpha: f64) -> Result<(), Error> {
        match &mut self.config.policy {
            Policy::FlopAware(model) => {
                model.alpha = alpha;
                Ok(())
            }
            _ => Err(Error::InvalidArgument(
                "only the FLOP-aware policy has an alpha; make the manager with that policy"
                    .to_owned(),
            )),
        }
    }

    /// Give what a request holds a priority before it is released, and the checkpoints that it used
    /// or left.
    pub(super) fn score_released(&mut self, row: usize) {
        if !self.config.enable_caching || !self.engine.requests.progress(row).running {
            return;
        }
        let mut lengths = std::mem::take(&mut self.engine.requests.rows[row].rest.checkpoints);
        if matches!(self.config.policy, Policy::FlopAware(_)) {
            self.note_end(row);
        }
        let session = self.engine.requests.rows[row].rest.session;
        let left = self.listens_to(session).then(|| self.own_blocks(row, session));
        if self.is_by_priority() {
            self.score_blocks(row);
        }
        if self.config.policy == Policy::Explicit {
            // What was said of any state on the way may be out of date by now.
            let alignment = self.lengths.alignment;
            let num_digests = self.engine.requests.rows[row].digests.len() as u32;
            let known = num_digests * self.config.hash_block_size;
            lengths = (1..=known / alignment).map(|i| i * alignment).collect();
            for group in self.state_groups() {
                self.score_explicit(row, &group, &lengths);
            }
        } else {
            self.score_checkpoints(row, &mut lengths);
            if let Some(left) = left {
                self.remember_end(row, session, left);
            }
        }
        lengths.clear();
        self.engine.requests.rows[row].rest.checkpoints = lengths;
    }

    /// The groups that keep recurrent states.
    pub(super) fn state_groups(&self) -> Vec<Group> {
        let groups = self.engine.cache.groups.iter();
        groups.filter(|group| group.kind().is_state()).copied().collect()
    }

    fn score_blocks(&mut self, row: usize) {
        let said = (self.config.policy == Policy::Explicit)
            .then(|| &self.engine.requests.rows[row].rest.priorities);
        let least = self.worth_of(row, 1.0);
        let (cache, requests) = (&mut self.engine.cache, &self.engine.requests);
        for group in cache.groups.iter().filter(|group| !group.kind().is_constant()) {
            let pool = group.spec.pool;
            let blocks = &requests.table(row, group.id).blocks;
            let Some(said) = said else {
                // A shared prefix keeps the highest priority that a request which went on from it gave it.
                cache.store.raise_priorities(pool, blocks, least);
                continue;
            };
            for (end, &block) in (1..).map(|it| it * group.spec.block_size).zip(blocks) {
                let priority = said_at(said, self.config.hash_block_size, end);
                cache.store.set_priority(pool, block, priority);
            }
        }
    }

    /// The checkpoint of a group after `num_tokens` tokens of a request, if there is one.
    fn checkpoint(&self, row: usize, group: &Group, num_tokens: u32) -> Option<BlockId> {
        let key = group.key_at(&self.engine.requests.rows[row].digests, num_tokens)?;
        self.engine.cache.store.get(group.spec.pool, &key)
    }

    /// Give the checkpoints at `lengths`, which the request used or left, their priorities, by what each is
    /// likely to save beside the others.
    fn score_checkpoints(&mut self, row: usize, lengths: &mut Vec<u32>) {
        self.scored.clear();
        let states = self.state_groups();
        let Some(first) = states.first() else { return };
        lengths.sort_unstable();
        lengths.dedup();
        lengths.retain(|&num_tokens| self.checkpoint(row, first, num_tokens).is_some());
        let num_computed = self.engine.requests.progress(row).num_computed;
        let request = &self.engine.requests.rows[row].rest;
        let (plan, start) = (request.plan, request.start);
        self.traffic.on_end(&plan, start, num_computed, lengths);
        let worth = self.traffic.worth(&plan, lengths, |at| self.checkpoint(row, first, at));
        for group in &states {
            for (&num_tokens, &worth) in lengths.iter().zip(&worth) {
                if let Some(block) = self.checkpoint(row, group, num_tokens) {
                    let others = self.kept_for_others(row, group, block, num_tokens);
                    let priority = self.worth_of(row, worth);
                    self.keep_checkpoint(group, block, priority.max(others));
                    if others == 0 {
                        let pool = group.spec.pool;
                        self.scored.push(LeftBlock { pool, block, worth, priority });
                    }
                }
            }
        }
        if let &[.., spare, last] = lengths.as_slice()
            && let Some(block) = self.checkpoint(row, first, last)
        {
            self.traffic.history.set_spare(block, spare);
        }
    }

    /// Give a checkpoint that a request uses or leaves its priority, beside those that it used, left or is
    /// to leave.
    pub(super) fn score_checkpoint(
        &mut self,
        row: usize,
        group: &Group,
        block: BlockId,
        num_tokens: u32,
    ) {
        let priority = if self.config.policy == Policy::Explicit {
            self.said_priority(row, num_tokens)
        } else {
            let request = &self.engine.requests.rows[row].rest;
            let planned = request.plan.lengths.as_slice().iter();
            let mut lengths: Vec<u32> = planned.chain(&request.checkpoints).copied().collect();
            lengths.push(num_tokens);
            lengths.sort_unstable();
            lengths.dedup();
            let at = lengths.partition_point(|&length| length < num_tokens);
            let first = self.lengths.first_state.map_or(group, |at| &self.engine.cache.groups[at]);
            let worth = self.traffic.worth(&request.plan, &lengths, |at| {
                (at == num_tokens).then(|| self.checkpoint(row, first, at))?
            });
            let others = self.kept_for_others(row, group, block, num_tokens);
            self.worth_of(row, worth[at]).max(others)
        };
        self.engine.cache.store.set_priority(group.spec.pool, block, priority);
    }

    /// The priority that a checkpoint has because several requests went on from it, else 0: whether one
    /// conversation ends says nothing of the others.
    fn kept_for_others(&self, row: usize, group: &Group, block: BlockId, num_tokens: u32) -> u64 {
        let first = self.lengths.first_state.map_or(group, |at| &self.engine.cache.groups[at]);
        let counted = self.checkpoint(row, first, num_tokens);
        let is_shared = counted.is_some_and(|block| self.traffic.history.is_shared(block));
        if is_shared { self.engine.cache.store.priority(group.spec.pool, block) } else { 0 }
    }

    fn keep_checkpoint(&mut self, group: &Group, block: BlockId, priority: u64) {
        self.engine.cache.store.set_priority(group.spec.pool, block, priority);
        self.engine.cache.store.refresh(group.spec.pool, block);
        if self.traffic.counts_states_of(group.id.index()) {
            self.traffic.history.touch(block, self.traffic.pressure.now());
        }
    }

    /// Give the checkpoints of a group at `lengths`, ascending, the priorities that were said. One gets the
    /// lowest where a longer one has as high a priority: who needs the one takes the other.
    fn score_explicit(&mut self, row: usize, group: &Group, lengths: &[u32]) {
        let mut longer = 0;
        for &num_tokens in lengths.iter().rev() {
            let Some(block) = self.checkpoint(row, group, num_tokens) else { continue };
            let priority = self.said_priority(row, num_tokens);
            self.keep_checkpoint(group, block, if priority <= longer { 0 } else { priority });
            longer = longer.max(priority);
        }
    }

    /// Remember where the next turn of a request that ends may go on.
    fn note_end(&mut self, row: usize) {
        let num_computed = self.engine.requests.progress(row).num_computed;
        let class = self.class_of(row);
        let request = &self.engine.requests.rows[row];
        let end = num_computed / self.lengths.alignment * self.lengths.alignment;
        let planned = request.rest.plan.lengths.as_slice().iter().copied();
        let places = planned.chain([end]).filter(|&length| length <= num_computed);
        let hash_block = self.config.hash_block_size;
        let last = places.filter_map(|length| (length / hash_block).checked_sub(1));
        let digests = last.filter_map(|at| request.digests.get(at as usize));
        self.sessions.turns.on_end(class, request.rest.session, digests);
    }

    /// Whether it matters what is said of a session.
    fn listens_to(&self, session: u64) -> bool {
        session > 0 && matches!(self.config.policy, Policy::FlopAware(_))
    }

    /// The attention blocks of a request that nobody but its session is known to need, before they are
    /// scored: those that have no priority yet, or the one that the session gave them. It is taken from
    /// them: the last word on a session counts.
    fn own_blocks(&mut self, row: usize, session: u64) -> Vec<LeftBlock> {
        let given = self.sessions.ends.get_mut(session).map_or(0, |end| end.priority);
        let (cache, requests) = (&mut self.engine.cache, &self.engine.requests);
        let mut own = Vec::new();
        for group in cache.groups.iter().filter(|group| !group.kind().is_constant()) {
            let pool = group.spec.pool;
            for &block in &requests.table(row, group.id).blocks {
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
    fn remember_end(&mut self, row: usize, session: u64, mut left: Vec<LeftBlock>) {
        let priority = self.worth_of(row, 1.0);
        for block in &mut left {
            block.priority = priority;
        }
        left.extend_from_slice(&self.scored);
        let class = self.class_of(row);
        let at = (self.traffic.pressure.now(), self.engine.cache.store.now());
        self.sessions.ends.insert(session, SessionEnd { class, at, priority, left });
    }

    /// Score what a session that ended left behind as if `hint` had been said before. Returns whether
    /// its end is remembered.
    pub(super) fn score_ended(&mut self, session: u64, hint: Hint) -> bool {
        let Some(mut end) = self.sessions.take_end(session, hint) else { return false };
        let class = end.class;
        let store = &mut self.engine.cache.store;
        // What was taken, or needed by others, since has another priority.
        end.left.retain(|it| store.priority(it.pool, it.block) == it.priority);
        let (config, turns) = (&self.config, &self.sessions.turns);
        let priority = |of| priority_at(config, turns, end.at, class, of);
        end.priority = priority(1.0);
        for it in &mut end.left {
            it.priority = priority(it.worth);
        }
        for left in end.left.chunk_by(|one, other| one.pool == other.pool) {
            store.reprioritize(left[0].pool, left.iter().map(|it| (it.block, it.priority)));
        }
        self.sessions.ends.insert(session, end);
        true
    }

    /// The priority that was said of a request's content up to `num_tokens`.
    fn said_priority(&self, row: usize, num_tokens: u32) -> u64 {
        let said = &self.engine.requests.rows[row].rest.priorities;
        said_at(said, self.config.hash_block_size, num_tokens)
    }

    fn class_of(&self, row: usize) -> WorthClass {
        let request = &self.engine.requests.rows[row].rest;
        WorthClass::new(request.num_turns, request.hint)
    }

    /// Find out which turn of a conversation a request is that is admitted for the first time.
    pub(super) fn note_return(&mut self, row: usize) {
        let request = &mut self.engine.requests.rows[row];
        let session = request.rest.session;
        let turn = self.sessions.turns.on_arrival(session, &request.digests);
        request.rest.num_turns = turn.num_earlier;
    }

    /// The priority of what a request leaves behind now, where content of mean worth is worth 1: how long
    /// it is to be kept, in lives.
    fn worth_of(&self, row: usize, worth: f64) -> u64 {
        let at = (self.traffic.pressure.now(), self.engine.cache.store.now());
        priority_at(&self.config, &self.sessions.turns, at, self.class_of(row), worth)
    }

    /// Whether what has the lowest priority is evicted first. Where states are kept, they are worth more or
    /// less than attention of the same age.
    pub(super) fn is_by_priority(&self) -> bool {
        let Lengths { has_windows, .. } = self.lengths;
        self.config.policy != Policy::Lru
            || (self.store().is_slabbed() && self.lengths.has_states() && !has_windows)
    }
}

/// What was said of the hash block that `num_tokens` end in; 0 where nothing was.
fn said_at(said: &[u64], hash_block_size: u32, num_tokens: u32) -> u64 {
    let last = (num_tokens / hash_block_size).saturating_sub(1) as usize;
    said.get(last).copied().unwrap_or(0)
}

/// The priority of what a request of a class left behind `at` a time, in lives and in ticks.
fn priority_at(
    config: &Config,
    turns: &Turns,
    at: (f64, u64),
    class: WorthClass,
    worth: f64,
) -> u64 {
    let mut lives = 1.0;
    if let Policy::FlopAware(model) = &config.policy {
        lives += model.alpha * turns.lives(class);
    }
    let (now, tick) = at;
    #[expect(clippy::cast_sign_loss, reason = "neither time nor worth is negative")]
    let priority = (((now + worth * lives) * PARTS_A_LIFE) as u64) << TICK_BITS;
    // Until something is evicted, only the ticks pass.
    priority | (tick & ((1 << TICK_BITS) - 1))
}
