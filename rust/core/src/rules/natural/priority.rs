//! The priority of the content that a request leaves behind: what has the lowest is evicted first.

use super::BlockManager;
use super::policy::Policy;
use super::returns::tag_of;
use super::worth::WorthClass;
use crate::error::Error;
use crate::group::Group;
use crate::ids::BlockId;
use crate::store::Store;

/// Parts of a life that are told apart.
const PARTS_A_LIFE: f64 = 65_536.0;

/// Bits of a priority below the parts of a life: ticks, for content of the same part.
const TICK_BITS: u32 = 24;

/// Checkpoints of a request that are not superseded when it ends.
const NUM_KEPT: usize = 2;

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
            other => Err(Error::InvalidArgument(format!("the policy {other:?} has no alpha"))),
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
        if self.config.policy != Policy::Lru {
            self.score_blocks(row);
        }
        match self.config.policy {
            Policy::Lru | Policy::FlopAware(_) => self.demote_superseded(row, &mut lengths),
            // What was said of any state on the way may be out of date by now.
            Policy::Explicit => {
                let alignment = self.lengths.alignment;
                let num_digests = self.engine.requests.rows[row].digests.len() as u32;
                let known = num_digests * self.config.hash_block_size;
                lengths = (1..=known / alignment).map(|i| i * alignment).collect();
            }
        }
        for group in self.state_groups() {
            self.score_states(row, group, &lengths);
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
        for at in 0..self.engine.cache.groups.len() {
            let group = self.engine.cache.groups[at];
            if group.kind().is_constant() {
                continue;
            }
            for position in 0..self.engine.requests.table(row, group.id).blocks.len() {
                let block = self.engine.requests.table(row, group.id).blocks[position];
                let num_tokens = (position as u32 + 1) * group.spec.block_size;
                self.prioritize(row, &group, block, num_tokens);
            }
        }
    }

    /// Give a block that holds the content up to `num_tokens` of a request its priority.
    pub(super) fn prioritize(
        &mut self,
        row: usize,
        group: &Group,
        block: BlockId,
        num_tokens: u32,
    ) {
        let priority = self.priority(row, group, block, num_tokens);
        self.engine.cache.store.set_priority(group.spec.pool, block, priority);
    }

    /// The checkpoint of a group after `num_tokens` tokens of a request, if there is one.
    fn checkpoint(&self, row: usize, group: &Group, num_tokens: u32) -> Option<BlockId> {
        let key = group.key_at(&self.engine.requests.rows[row].digests, num_tokens)?;
        self.engine.cache.store.get(group.spec.pool, &key)
    }

    /// Let the checkpoints go first that the request has left behind, and keep the rest of `lengths`,
    /// ascending. The last one is where the next turn goes on, the one before is for when that turn
    /// does not repeat everything, and shared ones serve others.
    fn demote_superseded(&mut self, row: usize, lengths: &mut Vec<u32>) {
        let states = self.state_groups();
        let Some(first) = states.first() else { return };
        lengths.retain(|&num_tokens| self.checkpoint(row, first, num_tokens).is_some());
        let left_behind = lengths.len().saturating_sub(NUM_KEPT);
        for num_tokens in lengths.drain(..left_behind) {
            let checkpoint = self.checkpoint(row, first, num_tokens);
            if checkpoint.is_some_and(|block| self.traffic.history.is_shared(block)) {
                continue;
            }
            for group in &states {
                if let Some(block) = self.checkpoint(row, group, num_tokens) {
                    self.engine.cache.store.demote(group.spec.pool, block);
                }
            }
        }
        if let &mut [spare, last] = lengths.as_mut_slice()
            && let Some(block) = self.checkpoint(row, first, last)
        {
            self.traffic.history.set_spare(block, spare);
        }
    }

    /// Give the checkpoints of a group at `lengths`, ascending, their priorities. Under
    /// [`Policy::Explicit`] one gets the lowest where a longer one has as high a priority: who needs
    /// the one takes the other.
    fn score_states(&mut self, row: usize, group: Group, lengths: &[u32]) {
        let mut longer = 0;
        for &num_tokens in lengths.iter().rev() {
            let Some(block) = self.checkpoint(row, &group, num_tokens) else { continue };
            let mut priority = self.priority(row, &group, block, num_tokens);
            if self.config.policy == Policy::Explicit {
                let superseded = priority <= longer;
                longer = longer.max(priority);
                if superseded {
                    priority = 0;
                }
            }
            self.engine.cache.store.set_priority(group.spec.pool, block, priority);
            self.engine.cache.store.refresh(group.spec.pool, block);
            if self.traffic.counts_states_of(group.id.index()) {
                self.traffic.history.touch(block, self.traffic.pressure.now());
            }
        }
    }

    /// Remember where the next turn of a request that ends may go on.
    fn note_end(&mut self, row: usize) {
        let num_computed = self.engine.requests.progress(row).num_computed;
        let request = &self.engine.requests.rows[row];
        let class = WorthClass::new(request.rest.num_turns, request.rest.hint);
        self.worth.on_end(class);
        if request.rest.session > 0 {
            self.returns.insert(request.rest.session, class);
        }
        let end = num_computed / self.lengths.alignment * self.lengths.alignment;
        let planned = request.rest.plan.lengths.as_slice().iter().copied();
        for length in planned.chain([end]).filter(|&length| length <= num_computed) {
            let last = (length / self.config.hash_block_size).checked_sub(1);
            if let Some(digest) = last.and_then(|at| request.digests.get(at as usize)) {
                self.returns.insert(tag_of(digest), class);
            }
        }
    }

    /// Find out which turn of a conversation a request is that is admitted for the first time.
    pub(super) fn note_return(&mut self, row: usize) {
        let request = &mut self.engine.requests.rows[row];
        if let Some((class, true)) = self.returns.take(request.rest.session, &request.digests) {
            self.worth.on_continued(class);
            request.rest.num_turns = class.num_turns() + 1;
        }
    }

    /// The priority of a block that holds the content up to `num_tokens` of a request.
    fn priority(&self, row: usize, group: &Group, block: BlockId, num_tokens: u32) -> u64 {
        let request = &self.engine.requests.rows[row].rest;
        match &self.config.policy {
            Policy::Lru => 0,
            // A shared prefix stays at least as long as the longest sequence that goes on from it.
            Policy::FlopAware(model) => {
                let class = WorthClass::new(request.num_turns, request.hint);
                let lives = self.worth.lives(class);
                let store = &self.engine.cache.store;
                let until = self.traffic.pressure.now() + model.alpha * lives;
                #[expect(clippy::cast_sign_loss, reason = "the cast of a negative float gives 0")]
                let priority = ((until * PARTS_A_LIFE) as u64) << TICK_BITS;
                // Until something is evicted, only the ticks pass.
                let tick = store.now() & ((1 << TICK_BITS) - 1);
                (priority | tick).max(store.priority(group.spec.pool, block))
            }
            Policy::Explicit => {
                let last = (num_tokens / self.config.hash_block_size).saturating_sub(1) as usize;
                request.priorities.get(last).copied().unwrap_or(0)
            }
        }
    }
}
