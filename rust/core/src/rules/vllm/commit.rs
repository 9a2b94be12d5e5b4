//! Entering computed blocks into the prefix cache.

use super::call::{BoundaryState, Call};
use super::config::GroupConfig;
use super::retention::mask;
use crate::engine::{CacheEvent, Residency};
use crate::error::Error;
use crate::ids::{BlockId, GroupId};
use crate::prefix_index::Key;
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    /// Tokens of the first `num_computed` that a later request could match in a group.
    pub(crate) fn num_cacheable(&self, num_computed: u32, config: &GroupConfig) -> u32 {
        let final_tokens = num_computed.saturating_sub(self.config.num_reprefillable);
        if !self.config.is_hybrid() {
            return final_tokens;
        }
        let cacheable = self.align(num_computed);
        if config.use_eagle && cacheable > 0 {
            // A drafter's group matches one block more, which it then drops.
            return final_tokens.min(self.align(final_tokens) + config.block_size);
        }
        cacheable
    }

    fn align(&self, num_tokens: u32) -> u32 {
        if self.config.is_fine_grained() {
            num_tokens
        } else {
            num_tokens / self.config.scheduler_block_size * self.config.scheduler_block_size
        }
    }

    /// Enters what `num_computed` tokens complete, in every group.
    pub(crate) fn commit(&mut self, num_computed: u32) -> Result<(), Error> {
        if !self.cache.enable_caching {
            return Ok(());
        }
        for group in 0..self.tables.len() {
            let config = self.config_of(group);
            if !config.is_cacheable() {
                continue;
            }
            let num_tokens = self.num_cacheable(num_computed, config);
            let before = self.tables[group].num_cached().unwrap_or(0);
            self.commit_full(group, num_tokens)?;
            if config.kind.is_full() && config.block_size != self.config.hash_block_size {
                self.commit_prompt_tail(group, num_tokens)?;
            } else if config.kind.is_mamba() {
                let after = self.tables[group].num_cached().unwrap_or(0);
                if config.kind.is_aligned() && self.config.checkpoints.is_none() {
                    self.commit_state_tail(group, num_tokens)?;
                }
                self.announce_states(group, before..after);
            }
        }
        Ok(())
    }

    fn commit_full(&mut self, group: usize, num_tokens: u32) -> Result<(), Error> {
        let config = self.config_of(group);
        let start = self.tables[group].num_cached().unwrap_or(0);
        let num_hashed = self.digests.len() as u32 * self.config.hash_block_size;
        let end = num_tokens.min(num_hashed) / config.block_size;
        if start >= end {
            return Ok(());
        }
        let mask = mask(self.config, config, config.use_eagle, (start, end), Some(&self.progress));
        if let Some(keeper) = self.keeper.as_deref_mut() {
            let new = self.tables[group].blocks.get(start as usize..end as usize);
            let (traffic, new) = (&mut keeper.traffic, new.unwrap_or_default());
            self.request.trail.compute(traffic, &self.cache.groups[group], start, new);
        }
        let (digests, table) = (self.digests, &mut self.tables[group]);
        self.cache.commit_full(self.handle, group, digests, table, end, mask.as_deref())
    }

    pub(crate) fn key(&self, group: usize, num_tokens: u32) -> Result<Key, Error> {
        let at = (num_tokens / self.config.hash_block_size) as usize;
        at.checked_sub(1)
            .and_then(|at| self.digests.get(at))
            .map(|&digest| Key { digest, group: GroupId(group as u32) })
            .ok_or_else(|| {
                Error::InvalidArgument(format!(
                    "{num_tokens} tokens are to be cached, but {} hash blocks of {} are hashed",
                    self.digests.len(),
                    self.config.hash_block_size
                ))
            })
    }

    /// A prompt that ends inside a block of full attention can be hit up to its last hash block.
    fn commit_prompt_tail(&mut self, group: usize, num_tokens: u32) -> Result<(), Error> {
        let config = self.config_of(group);
        let boundary = self.prompt_tail(config);
        if boundary == 0 || boundary > num_tokens || boundary.is_multiple_of(config.block_size) {
            return Ok(());
        }
        let position = (boundary / config.block_size) as usize;
        let Some(&block) = self.tables[group].blocks.get(position) else { return Ok(()) };
        self.key_tail(group, block, boundary, false).map(drop)
    }

    /// The last hash block's end in the prompt that a later request can match.
    pub(crate) fn prompt_tail(&self, config: &GroupConfig) -> u32 {
        let leaves_one = self.config.release.leaves_last_token && !config.use_eagle;
        let limit = self.progress.num_prompt.saturating_sub(u32::from(leaves_one));
        let hash_block = self.config.hash_block_size;
        (limit / hash_block).min(self.digests.len() as u32) * hash_block
    }

    /// Lets `block` be hit up to `num_tokens`, beside or instead of what it was known for.
    pub(crate) fn key_tail(
        &mut self,
        group: usize,
        block: BlockId,
        num_tokens: u32,
        is_rewritten: bool,
    ) -> Result<Option<Key>, Error> {
        if block.is_null() {
            return Ok(None);
        }
        let (pool, key) = (self.kept(group), self.key(group, num_tokens)?);
        let grew = self.first_key(group, block).is_some_and(|(_, hashed)| hashed < num_tokens);
        let is_new = is_rewritten || !self.cache.store.prefix_index(pool).contains(&key, block);
        if is_rewritten || (is_new && grew) {
            self.drop_own_keys(group, block);
        }
        self.cache.store.insert_key(pool, block, &key, num_tokens);
        if is_new {
            let handle = self.handle;
            let block_size = self.config.groups[group].block_size;
            self.cache.note(|| CacheEvent::StoredTail {
                handle,
                group: key.group,
                block_size,
                num_tokens,
                digest: key.digest,
            });
        }
        Ok(Some(key))
    }

    /// A state at a hash block's end, inside or at the end of its block.
    fn commit_state_tail(&mut self, group: usize, num_tokens: u32) -> Result<(), Error> {
        let key = match self.tables[group].moving().checkpoint {
            Some(checkpoint) => self.commit_checkpoint(group, checkpoint, num_tokens)?,
            None => self.commit_running_state(group, num_tokens)?,
        };
        if let Some(key) = key {
            self.outputs[group].cached_this_step.insert(key.digest);
        }
        Ok(())
    }

    fn commit_checkpoint(
        &mut self,
        group: usize,
        (num_tokens, position): (u32, u32),
        num_committed: u32,
    ) -> Result<Option<Key>, Error> {
        let config = self.config_of(group);
        let Some(&block) = self.tables[group].blocks.get(position as usize) else {
            return Err(Error::InvalidArgument(format!(
                "the checkpoint's position {position} is past the end of group {group}'s table"
            )));
        };
        let num_prompt = self.progress.num_prompt;
        let ends_prompt = num_tokens == self.config.checkpoint_inside(num_prompt);
        let is_retained = if !self.config.release.retains_checkpoints_by_interval {
            self.config.retention_interval != Some(0) || num_committed >= num_prompt
        } else if !num_tokens.is_multiple_of(config.block_size) {
            false
        } else {
            let at = num_tokens / config.block_size - 1;
            let drops_eagle = self.config.drops_eagle_checkpoint;
            mask(self.config, config, drops_eagle, (at, at + 1), None).is_none_or(|mask| mask[0])
        };
        if !ends_prompt && !is_retained && num_tokens != self.progress.shared_prefix_boundary {
            // The slot holds a state that no request can resume from.
            self.drop_own_keys(group, block);
            self.cache.outbox.note_residency(Residency::Evicted, [block]);
            return Ok(None);
        }
        if self.first_key(group, block).is_some_and(|(_, hashed)| hashed == num_tokens) {
            return Ok(None);
        }
        self.key_tail(group, block, num_tokens, true)
    }

    fn commit_running_state(
        &mut self,
        group: usize,
        num_tokens: u32,
    ) -> Result<Option<Key>, Error> {
        let config = self.config_of(group);
        let hash_block = self.config.hash_block_size;
        if num_tokens == 0 || !num_tokens.is_multiple_of(hash_block) {
            return Ok(None);
        }
        let at_block_end = num_tokens.is_multiple_of(config.block_size);
        if at_block_end && !self.config.release.keys_states_at_block_ends {
            return Ok(None);
        }
        let prompt_end = self.config.state_tail(self.progress.num_prompt);
        let ends_junction = self.config.shared_prefix_checkpoint
            && num_tokens == self.progress.shared_prefix_boundary
            && self.progress.num_computed < num_tokens
            && num_tokens <= self.progress.num_prompt;
        if num_tokens != prompt_end && !ends_junction {
            return Ok(None);
        }
        let position = num_tokens.div_ceil(config.block_size) - 1;
        let Some(&block) = self.tables[group].blocks.get(position as usize) else {
            return Ok(None);
        };
        let is_hashed = self.config.release.keys_running_state_once
            && self.first_key(group, block).is_some_and(|(_, hashed)| hashed == num_tokens);
        if block.is_null() || is_hashed {
            return Ok(None);
        }
        let key = self.key_tail(group, block, num_tokens, false)?;
        if key.is_some() && !at_block_end {
            // The next step writes on into this block: its content must be copied before.
            let table = &mut self.tables[group];
            table.set_copy_source(position, block);
            table.set_num_cached(position);
            table.moving_mut().producer_tail = Some((block, num_tokens));
        }
        Ok(key)
    }

    /// States entered now are there once this step has run; a connector may save them then.
    fn announce_states(&mut self, group: usize, positions: std::ops::Range<u32>) {
        let is_aligned = self.config_of(group).kind.is_aligned();
        for position in positions {
            let Some(&block) = self.tables[group].blocks.get(position as usize) else { continue };
            let Some((key, num_tokens)) = self.first_key(group, block) else { continue };
            let outputs = &mut self.outputs[group];
            outputs.cached_this_step.insert(key.digest);
            if is_aligned {
                let (handle, group) = (self.handle, key.group);
                outputs.boundary_states.push(BoundaryState { handle, group, block, num_tokens });
            }
        }
    }
}
