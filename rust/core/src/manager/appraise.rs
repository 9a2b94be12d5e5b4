//! What the content that a request leaves behind is worth.

use super::Manager;
use crate::error::Error;
use crate::group::Group;
use crate::ids::BlockId;
use crate::policy::Policy;
use crate::store::{BlockStore, Store};

/// Checkpoints of a request that are not superseded when it ends.
const NUM_KEPT: usize = 2;

impl Manager {
    /// Say what the content of each of a request's hash blocks is worth once nobody holds it. For
    /// [`Policy::Explicit`]; content that nothing was said of is worth nothing.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_priority(&mut self, handle: u64, priority: Vec<u64>) -> Result<(), Error> {
        let row = self.requests.row(handle)?;
        self.requests.rows[row].priority = priority;
        Ok(())
    }

    /// How many ticks younger content of the highest efficiency seems, for [`Policy::FlopAware`].
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

    /// Value what a request holds before it gives it back, and the checkpoints that it used or left.
    pub(super) fn appraise(&mut self, row: usize) {
        if !self.config.enable_caching || !self.requests.progress[row].running {
            return;
        }
        let request = &mut self.requests.rows[row];
        let mut lengths = std::mem::take(&mut request.checkpoints);
        if self.config.policy != Policy::Lru {
            for group in self.coordinator.groups().iter().filter(|group| !group.is_constant()) {
                let table = self.requests.table(row, group.id);
                for (position, &block) in table.blocks.iter().enumerate() {
                    let num_tokens = (position as u32 + 1) * group.spec.block_size;
                    let priority = self.priority(row, group, block, num_tokens);
                    self.store.set_priority(group.spec.pool, block, priority);
                }
            }
        }
        match self.config.policy {
            Policy::Lru | Policy::FlopAware(_) => self.demote_superseded(row, &mut lengths),
            // What was said of any state on the way may be out of date by now.
            Policy::Explicit => {
                let (alignment, request) = (self.coordinator.alignment(), &self.requests.rows[row]);
                let known = request.digests.len() as u32 * self.config.hash_block_size;
                lengths = (1..=known / alignment).map(|i| i * alignment).collect();
            }
        }
        for index in 0..self.coordinator.groups().len() {
            let group = self.coordinator.groups()[index];
            if group.is_state() {
                self.appraise_states(row, group, &lengths);
            }
        }
        lengths.clear();
        self.requests.rows[row].checkpoints = lengths;
    }

    /// Let the checkpoints go first that the request has left behind, and keep the rest of `lengths`,
    /// ascending: the last one is where the next turn goes on, the one before is for when that turn
    /// does not repeat everything, and shared ones serve others.
    fn demote_superseded(&mut self, row: usize, lengths: &mut Vec<u32>) {
        let Some(&first) = self.coordinator.first_state() else { return };
        let digests = &self.requests.rows[row].digests;
        let find = |group: &Group, num_tokens: u32, store: &BlockStore| {
            store.get(group.spec.pool, &group.state_key(digests, num_tokens)?)
        };
        lengths.retain(|&num_tokens| find(&first, num_tokens, &self.store).is_some());
        let left_behind = lengths.len().saturating_sub(NUM_KEPT);
        for num_tokens in lengths.drain(..left_behind) {
            if find(&first, num_tokens, &self.store).is_some_and(|at| self.lineage.is_shared(at)) {
                continue;
            }
            for group in self.coordinator.groups().iter().filter(|group| group.is_state()) {
                if let Some(block) = find(group, num_tokens, &self.store) {
                    self.store.demote(group.spec.pool, block);
                }
            }
        }
        if let &mut [spare, last] = lengths.as_mut_slice()
            && let Some(block) = find(&first, last, &self.store)
        {
            self.lineage.set_spare(block, spare);
        }
    }

    /// Value the checkpoints of a group at `lengths`, ascending. Under [`Policy::Explicit`] one is
    /// worth nothing where a longer one is worth as much: who needs the one takes the other.
    fn appraise_states(&mut self, row: usize, group: Group, lengths: &[u32]) {
        let mut longer = 0;
        for &num_tokens in lengths.iter().rev() {
            let digests = &self.requests.rows[row].digests;
            let found = group
                .state_key(digests, num_tokens)
                .and_then(|key| self.store.get(group.spec.pool, &key));
            let Some(block) = found else { continue };
            let mut priority = self.priority(row, &group, block, num_tokens);
            if self.config.policy == Policy::Explicit {
                let superseded = priority <= longer;
                longer = longer.max(priority);
                if superseded {
                    priority = 0;
                }
            }
            self.store.set_priority(group.spec.pool, block, priority);
            self.store.refresh(group.spec.pool, block);
        }
    }

    /// What a block is worth that holds the content up to `num_tokens` of a request.
    pub(super) fn priority(
        &self,
        row: usize,
        group: &Group,
        block: BlockId,
        num_tokens: u32,
    ) -> u64 {
        let request = &self.requests.rows[row];
        match &self.config.policy {
            Policy::Lru => 0,
            // A shared prefix stays at least as long as the longest sequence that goes on from it.
            Policy::FlopAware(model) => {
                let length = self.requests.progress[row].num_computed;
                let bonus = model.bonus(length, request.num_turns, self.max_request_tokens);
                (self.store.now() + bonus).max(self.store.priority(group.spec.pool, block))
            }
            Policy::Explicit => {
                let last = (num_tokens / self.config.hash_block_size).saturating_sub(1) as usize;
                request.priority.get(last).copied().unwrap_or(0)
            }
        }
    }
}
