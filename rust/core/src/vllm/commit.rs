//! Entering computed blocks into the prefix cache.

use crate::error::Error;
use crate::ids::{BlockId, GroupId};
use crate::prefix_index::Key;

use super::cache::{BoundaryState, Cache, POOL};
use super::checkpoint::checkpoint_position;
use super::config::GroupConfig;
use super::event::CacheEvent;
use super::request::{Facts, Request};
use super::retention::mask;

impl Cache<'_> {
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

    /// Enter what `num_computed` tokens complete, in every group.
    pub(crate) fn commit(
        &mut self,
        request: &mut Request,
        request_id: &str,
        facts: &Facts,
        num_computed: u32,
    ) -> Result<(), Error> {
        if !self.config.enable_caching() {
            return Ok(());
        }
        for group in 0..self.config.groups.len() {
            let config = self.group(group);
            let num_tokens = self.num_cacheable(num_computed, &config);
            let before = request.tables[group].num_cached.unwrap_or(0);
            self.commit_full(request, group, facts, num_tokens)?;
            if config.kind.is_full() && config.block_size != self.config.hash_block_size {
                self.commit_prompt_tail(request, group, facts, num_tokens)?;
            } else if config.kind.is_mamba() {
                let after = request.tables[group].num_cached.unwrap_or(0);
                if config.kind.is_aligned() {
                    self.commit_state_tail(request, group, facts, num_tokens)?;
                }
                self.announce_states(request, request_id, group, before..after);
            }
        }
        Ok(())
    }

    fn commit_full(
        &mut self,
        request: &mut Request,
        group: usize,
        facts: &Facts,
        num_tokens: u32,
    ) -> Result<(), Error> {
        let config = self.group(group);
        let block_size = config.block_size;
        let hash_block = self.config.hash_block_size;
        let start = request.tables[group].num_cached.unwrap_or(0);
        let num_hashed = request.digests.len() as u32 * hash_block;
        let end = num_tokens.min(num_hashed) / block_size;
        if start >= end {
            return Ok(());
        }
        let mask = mask(self.config, &config, config.use_eagle, (start, end), Some(facts));
        let Request { digests, tables, .. } = &*request;
        let blocks = &tables[group].blocks;
        let is_wanted =
            |position: u32| mask.as_ref().is_none_or(|mask| mask[(position - start) as usize]);
        let wanted = (start..end)
            .zip(blocks.iter().copied().skip(start as usize))
            .filter(|&(position, block)| !block.is_null() && is_wanted(position));
        for (position, block) in wanted.clone() {
            if self.store.pool(POOL).is_keyed(block) {
                self.drop_partial(block, (position + 1) * block_size)?;
            }
        }
        let group_id = GroupId(group as u32);
        let per_block = (block_size / hash_block) as usize;
        let entries = wanted.clone().map(|(position, block)| {
            let digest = digests[(position as usize + 1) * per_block - 1];
            (block, Key { digest, group: group_id }, (position + 1) * block_size)
        });
        let before = start.checked_sub(1).and_then(|before| blocks.get(before as usize).copied());
        self.store.insert_run(POOL, before.filter(|block| !block.is_null()), entries);
        let stored = if self.config.enable_events {
            wanted.map(|(position, _)| position).collect()
        } else {
            Vec::new()
        };
        self.note(|| CacheEvent::Stored {
            group: group_id,
            first_block: start,
            end_block: end,
            stored,
        });
        request.tables[group].num_cached = Some(end);
        Ok(())
    }

    /// Forget that a block, now full, held a part of its content.
    fn drop_partial(&mut self, block: BlockId, num_tokens: u32) -> Result<(), Error> {
        let keyed_tokens = self.first_key(block).map_or(0, |(_, keyed)| keyed);
        if keyed_tokens >= num_tokens {
            return Err(Error::InvalidArgument(format!(
                "block {block} is full with {num_tokens} tokens but was cached with {keyed_tokens}"
            )));
        }
        self.drop_own_keys(block);
        Ok(())
    }

    fn key(&self, request: &Request, group: usize, num_tokens: u32) -> Result<Key, Error> {
        let at = (num_tokens / self.config.hash_block_size) as usize;
        at.checked_sub(1)
            .and_then(|at| request.digests.get(at))
            .map(|&digest| Key { digest, group: GroupId(group as u32) })
            .ok_or_else(|| {
                Error::InvalidArgument(format!(
                    "{num_tokens} tokens are to be cached, but {} hash blocks of {} are hashed",
                    request.digests.len(),
                    self.config.hash_block_size
                ))
            })
    }

    /// A prompt that ends inside a block of full attention can be hit up to its last hash block.
    fn commit_prompt_tail(
        &mut self,
        request: &mut Request,
        group: usize,
        facts: &Facts,
        num_tokens: u32,
    ) -> Result<(), Error> {
        let config = self.group(group);
        let boundary = self.prompt_tail(&config, facts, request.digests.len());
        if boundary == 0 || boundary > num_tokens || boundary.is_multiple_of(config.block_size) {
            return Ok(());
        }
        let position = (boundary / config.block_size) as usize;
        let Some(&block) = request.tables[group].blocks.get(position) else { return Ok(()) };
        self.key_tail(request, group, block, boundary, false).map(drop)
    }

    /// The last hash block's end in the prompt that a later request can match.
    pub(crate) fn prompt_tail(
        &self,
        config: &GroupConfig,
        facts: &Facts,
        num_digests: usize,
    ) -> u32 {
        let limit = facts.num_prompt.saturating_sub(u32::from(!config.use_eagle));
        let hash_block = self.config.hash_block_size;
        (limit / hash_block).min(num_digests as u32) * hash_block
    }

    /// Let `block` be hit up to `num_tokens`, beside or instead of what it was known for.
    fn key_tail(
        &mut self,
        request: &Request,
        group: usize,
        block: BlockId,
        num_tokens: u32,
        is_rewritten: bool,
    ) -> Result<Option<Key>, Error> {
        if block.is_null() {
            return Ok(None);
        }
        let key = self.key(request, group, num_tokens)?;
        let grew = self.first_key(block).is_some_and(|(_, keyed)| keyed < num_tokens);
        let is_new = is_rewritten || !self.store.prefix_index(POOL).contains(&key, block);
        if is_rewritten || (is_new && grew) {
            self.drop_own_keys(block);
        }
        self.store.insert_key(POOL, block, &key, num_tokens);
        if is_new {
            self.note(|| CacheEvent::StoredTail { group: GroupId(group as u32), num_tokens });
        }
        Ok(Some(key))
    }

    /// A state at a hash block's end, inside or at the end of its block.
    fn commit_state_tail(
        &mut self,
        request: &mut Request,
        group: usize,
        facts: &Facts,
        num_tokens: u32,
    ) -> Result<(), Error> {
        let key = match request.tables[group].aligned.checkpoint {
            Some(checkpoint) => self.commit_checkpoint(request, group, facts, checkpoint)?,
            None => self.commit_running_state(request, group, facts, num_tokens)?,
        };
        if let Some(key) = key {
            self.outboxes[group].cached_this_step.insert(key.digest);
        }
        Ok(())
    }

    fn commit_checkpoint(
        &mut self,
        request: &mut Request,
        group: usize,
        facts: &Facts,
        (num_tokens, position): (u32, u32),
    ) -> Result<Option<Key>, Error> {
        let config = self.group(group);
        let Some(&block) = request.tables[group].blocks.get(position as usize) else {
            return Err(Error::InvalidArgument(format!(
                "the checkpoint's position {position} is past the end of group {group}'s table"
            )));
        };
        let drops_eagle = self.config.drops_eagle_checkpoint;
        let ends_prompt = num_tokens
            == checkpoint_position(
                facts.num_prompt,
                self.config.hit_alignment(),
                drops_eagle,
                self.config.num_hash_lookahead,
            );
        let is_retained = num_tokens.is_multiple_of(config.block_size) && {
            let at = num_tokens / config.block_size - 1;
            mask(self.config, &config, drops_eagle, (at, at + 1), None).is_none_or(|mask| mask[0])
        };
        if !ends_prompt && !is_retained && num_tokens != facts.shared_prefix_boundary {
            // The slot holds a state that nobody can resume from.
            self.drop_own_keys(block);
            return Ok(None);
        }
        if self.first_key(block).is_some_and(|(_, keyed)| keyed == num_tokens) {
            return Ok(None);
        }
        self.key_tail(request, group, block, num_tokens, true)
    }

    fn commit_running_state(
        &mut self,
        request: &mut Request,
        group: usize,
        facts: &Facts,
        num_tokens: u32,
    ) -> Result<Option<Key>, Error> {
        let config = self.group(group);
        let hash_block = self.config.hash_block_size;
        if num_tokens == 0 || !num_tokens.is_multiple_of(hash_block) {
            return Ok(None);
        }
        let prompt_end = checkpoint_position(
            facts.num_prompt,
            hash_block,
            self.config.drops_eagle_checkpoint,
            self.config.num_hash_lookahead,
        );
        let ends_junction = self.config.shared_prefix_checkpoint
            && num_tokens == facts.shared_prefix_boundary
            && facts.num_computed < num_tokens
            && num_tokens <= facts.num_prompt;
        if num_tokens != prompt_end && !ends_junction {
            return Ok(None);
        }
        let position = num_tokens.div_ceil(config.block_size) - 1;
        let Some(&block) = request.tables[group].blocks.get(position as usize) else {
            return Ok(None);
        };
        let is_keyed = self.config.release.rules().keys_running_state_once
            && self.first_key(block).is_some_and(|(_, keyed)| keyed == num_tokens);
        if block.is_null() || is_keyed {
            return Ok(None);
        }
        let key = self.key_tail(request, group, block, num_tokens, false)?;
        if key.is_some() && !num_tokens.is_multiple_of(config.block_size) {
            // The next step writes on into this block: its content must be copied before.
            let table = &mut request.tables[group];
            table.partial_hit = Some((position, block));
            table.num_cached = Some(position);
            table.aligned.producer_tail = Some((block, num_tokens));
        }
        Ok(key)
    }

    /// States entered now are there once this step has run; a connector may save them then.
    fn announce_states(
        &mut self,
        request: &Request,
        request_id: &str,
        group: usize,
        positions: std::ops::Range<u32>,
    ) {
        let is_aligned = self.group(group).kind.is_aligned();
        for position in positions {
            let block = request.tables[group].blocks.get(position as usize);
            let Some((&block, (key, num_tokens))) =
                block.and_then(|block| Some((block, self.first_key(*block)?)))
            else {
                continue;
            };
            let outbox = &mut self.outboxes[group];
            outbox.cached_this_step.insert(key.digest);
            if is_aligned {
                outbox.boundary_states.push(BoundaryState {
                    request_id: request_id.to_owned(),
                    group: GroupId(group as u32),
                    block,
                    num_tokens,
                });
            }
        }
    }
}
