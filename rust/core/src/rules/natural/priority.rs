//! The priority of the content that a request leaves behind: what a caller said, or else what it is worth.

use super::BlockManager;
use crate::engine::Engine;
use crate::engine::requests::Row;
use crate::error::Error;
use crate::group::Group;
use crate::ids::BlockId;
use crate::rules::policy::Policy;
use crate::store::{EvictionOrder, Store};

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

    /// How much the chance to be gone on from counts, for [`Policy::FlopAware`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] under another policy.
    pub fn set_alpha(&mut self, alpha: f64) -> Result<(), Error> {
        match &mut self.config.policy {
            Policy::FlopAware(model) => {
                model.alpha = alpha;
                self.keeper.chances = self.config.policy.chances();
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
    pub(super) fn score_released(&mut self, row: usize, is_over: bool) {
        if !self.config.enable_caching || !self.engine.requests.progress(row).running {
            return;
        }
        if self.config.policy == Policy::Explicit {
            self.score_as_said(row);
            self.engine.requests.rows[row].rest.trail.lengths.clear();
            return;
        }
        let num_computed = self.engine.requests.progress(row).num_computed;
        let Self { keeper, engine: Engine { cache, requests, .. }, .. } = self;
        let (Row { digests, rest, .. }, tables) = requests.split_mut(row);
        rest.trail.score_left(keeper, cache, (tables, digests), num_computed, is_over);
    }

    /// Give what a request holds, and its checkpoints, the priorities that were said.
    fn score_as_said(&mut self, row: usize) {
        let hash_block = self.config.hash_block_size;
        let (cache, requests) = (&mut self.engine.cache, &self.engine.requests);
        let said = &requests.rows[row].rest.priorities;
        for group in cache.groups.iter().filter(|group| !group.kind().is_constant()) {
            let blocks = &requests.table(row, group.id).blocks;
            for (end, &block) in (1..).map(|it| it * group.spec.block_size).zip(blocks) {
                cache.store.set_priority(group.spec.pool, block, said_at(said, hash_block, end));
            }
        }
        // What was said of any state on the way may be out of date by now.
        let alignment = self.lengths.alignment;
        let known = requests.rows[row].digests.len() as u32 * hash_block;
        let lengths: Vec<u32> = (1..=known / alignment).map(|at| at * alignment).collect();
        for group in self.engine.cache.state_groups() {
            self.score_explicit(row, &group, &lengths);
        }
    }

    /// Give the checkpoint where a request is, which it uses or leaves, its priority.
    pub(super) fn score_checkpoint(&mut self, row: usize) {
        let num_tokens = self.engine.requests.progress(row).num_computed;
        if self.config.policy == Policy::Explicit {
            let priority = self.said_priority(row, num_tokens);
            for group in self.engine.cache.state_groups() {
                if let Some(block) = self.checkpoint(row, &group, num_tokens) {
                    let said = [(block, priority)].into_iter();
                    self.engine.cache.store.reprioritize(group.spec.pool, said);
                }
            }
            return;
        }
        let Self { keeper, engine: Engine { cache, requests, .. }, .. } = self;
        let (Row { digests, rest, .. }, tables) = requests.split_mut(row);
        rest.trail.score_checkpoint(keeper, cache, (tables, digests), num_tokens, num_tokens);
    }

    /// The checkpoint of a group after `num_tokens` tokens of a request, if there is one.
    fn checkpoint(&self, row: usize, group: &Group, num_tokens: u32) -> Option<BlockId> {
        let key = group.key_at(&self.engine.requests.rows[row].digests, num_tokens)?;
        self.engine.cache.store.get(group.spec.pool, &key)
    }

    /// Give the checkpoints of a group at `lengths`, ascending, the priorities that were said. One gets the
    /// lowest where a longer one has as high a priority: who needs the one takes the other.
    fn score_explicit(&mut self, row: usize, group: &Group, lengths: &[u32]) {
        let mut longer = 0;
        for &num_tokens in lengths.iter().rev() {
            let Some(block) = self.checkpoint(row, group, num_tokens) else { continue };
            let said = self.said_priority(row, num_tokens);
            let priority = if said <= longer { 0 } else { said };
            self.keeper.keep_checkpoint(&mut self.engine.cache, group, block, priority);
            longer = longer.max(said);
        }
    }

    /// The priority that was said of a request's content up to `num_tokens`.
    fn said_priority(&self, row: usize, num_tokens: u32) -> u64 {
        let said = &self.engine.requests.rows[row].rest.priorities;
        said_at(said, self.config.hash_block_size, num_tokens)
    }

    /// Whether what has the lowest priority is evicted first. Where states are kept, they are worth more or
    /// less than attention of the same age.
    pub(super) fn is_by_priority(&self) -> bool {
        self.config.policy != Policy::Lru
            || (self.store().is_slabbed()
                && (self.lengths.has_states() || self.keeper.traffic.counted().is_some()))
    }
}

/// What was said of the hash block that `num_tokens` end in; 0 where nothing was.
fn said_at(said: &[u64], hash_block_size: u32, num_tokens: u32) -> u64 {
    let last = (num_tokens / hash_block_size).saturating_sub(1) as usize;
    said.get(last).copied().unwrap_or(0)
}
