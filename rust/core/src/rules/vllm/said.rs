//! Priorities that a caller gives to content, for [`Policy::Explicit`].

use super::KvCacheManager;
use super::call::Call;
use crate::engine::Engine;
use crate::engine::requests::Row;
use crate::error::Error;
use crate::prefix_index::Key;
use crate::rules::policy::Policy;
use crate::store::{EvictionOrder, Store};

impl<S: Store> KvCacheManager<S> {
    /// Gives each of a request's hash blocks a priority, which counts once no request holds the
    /// block. For [`Policy::Explicit`]; other blocks have the lowest, 0.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn set_priorities(&mut self, handle: u64, priorities: Vec<u64>) -> Result<(), Error> {
        let row = self.engine.requests.row(handle)?;
        self.engine.requests.rows[row].rest.priorities = priorities;
        Ok(())
    }

    /// Gives what a request holds, and its checkpoints, the caller's priorities.
    ///
    /// A checkpoint gets the lowest where a longer one has as high a priority: who needs the one takes the other.
    pub(super) fn score_as_said(&mut self, row: usize) {
        let (hash_block, grain) = (self.config.hash_block_size, self.config.hit_alignment());
        let Some(keeper) = self.keeper.as_deref_mut() else { return };
        let Engine { cache, requests, .. } = &mut self.engine;
        let (Row { digests, rest, .. }, tables) = requests.split_mut(row);
        let said = &rest.priorities;
        for (group, table) in cache.groups.iter().zip(tables) {
            if group.kind().is_constant() || group.kind().is_recurrent() {
                continue;
            }
            for (end, &block) in (1..).map(|at| at * group.spec.block_size).zip(&table.blocks) {
                let priority = said_at(said, hash_block, end);
                cache.store.set_priority(group.kept, block, priority);
            }
        }
        let known = digests.len() as u32 * hash_block;
        for group in cache.state_groups() {
            let mut longer = 0;
            for num_tokens in (1..=known / grain).rev().map(|at| at * grain) {
                let digest = digests[(num_tokens / hash_block) as usize - 1];
                let key = Key { digest, group: group.id };
                let Some(block) = cache.store.get(group.kept, &key) else { continue };
                let priority = said_at(said, hash_block, num_tokens);
                let kept = if priority <= longer { 0 } else { priority };
                keeper.keep_checkpoint(cache, &group, block, kept);
                longer = longer.max(priority);
            }
        }
    }
}

impl<S: Store> Call<'_, S> {
    /// Whether a caller says what goes first.
    pub(super) fn is_said(&self) -> bool {
        self.config.policy == Policy::Explicit
    }

    /// Gives the checkpoint after `num_tokens` tokens the caller's priority.
    pub(super) fn score_checkpoint_as_said(&mut self, num_tokens: u32) {
        let priority = said_at(&self.request.priorities, self.config.hash_block_size, num_tokens);
        for group in self.cache.state_groups() {
            let Ok(key) = self.key(group.id.index(), num_tokens) else { continue };
            if let Some(block) = self.cache.store.get(group.kept, &key) {
                self.cache.store.reprioritize(group.kept, [(block, priority)].into_iter());
            }
        }
    }
}

/// The caller's priority of the hash block that `num_tokens` end in; 0 where it gave none.
fn said_at(said: &[u64], hash_block_size: u32, num_tokens: u32) -> u64 {
    let last = (num_tokens / hash_block_size).saturating_sub(1) as usize;
    said.get(last).copied().unwrap_or(0)
}
