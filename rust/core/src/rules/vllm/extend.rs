//! New blocks for new tokens.

use super::call::{BoundaryState, Call};
use super::progress::TokenCounts;
use crate::engine::BlockCopy;
use crate::error::Error;
use crate::group::GroupKind;
use crate::ids::{BlockId, GroupId, PoolId};
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    /// Gives a group room for the counted tokens. `new` gets the blocks that the worker does not know of yet.
    pub(crate) fn extend(
        &mut self,
        group: usize,
        counts: TokenCounts,
        new: &mut Vec<BlockId>,
    ) -> Result<(), Error> {
        let TokenCounts { num_tokens, num_main, num_encoder, .. } = counts;
        match self.config_of(group).kind {
            GroupKind::Cross { .. } => self.extend_for_encoder(group, num_encoder, new),
            GroupKind::MambaAligned { num_speculative, .. } => {
                self.extend_aligned(group, num_speculative as usize, num_main, new)
            }
            _ => self.extend_positional(group, num_tokens, new),
        }
    }

    fn extend_for_encoder(
        &mut self,
        group: usize,
        num_encoder: u32,
        new: &mut Vec<BlockId>,
    ) -> Result<(), Error> {
        self.take(group, self.num_missing_for_encoder(group, num_encoder), new)?;
        self.tables[group].blocks.extend_from_slice(new);
        if self.config.groups[group].zeroes_new_blocks {
            self.outputs[group].new_blocks.extend_from_slice(new);
        }
        Ok(())
    }

    fn extend_positional(
        &mut self,
        group: usize,
        num_tokens: u32,
        new: &mut Vec<BlockId>,
    ) -> Result<(), Error> {
        if let Some((position, source)) = self.tables[group].take_copy_source() {
            self.take(group, 1, new)?;
            self.redirect(group, position, source, new[0])?;
            self.outputs[group].new_blocks.push(new[0]);
        }
        let added = self.cache.extend(group, &mut self.tables[group], num_tokens)?;
        let added = &self.tables[group].blocks[added];
        if self.config.groups[group].zeroes_new_blocks {
            self.outputs[group].new_blocks.extend_from_slice(added);
        }
        new.extend_from_slice(added);
        Ok(())
    }

    /// Replaces a shared block that ends a hit by a private copy of it. Both stay owned until the
    /// copy has run.
    fn redirect(
        &mut self,
        group: usize,
        position: u32,
        source: BlockId,
        copy: BlockId,
    ) -> Result<(), Error> {
        let (from, to) = (self.kept(group), self.pool(group));
        self.copy(group, position, (from, source), (to, copy))?;
        self.tables[group].blocks[position as usize] = copy;
        let pool = self.pool(group);
        self.cache.store.touch(pool, copy)
    }

    /// Has the block at a position of the table copied. Both blocks stay owned until the copier
    /// frees them.
    pub(crate) fn copy(
        &mut self,
        group: usize,
        position: u32,
        (src_pool, src): (PoolId, BlockId),
        (dst_pool, dst): (PoolId, BlockId),
    ) -> Result<(), Error> {
        if self.tables[group].blocks.get(position as usize) != Some(&src) {
            return Err(Error::InvalidArgument(format!(
                "block {src} is not at position {position} of group {group}"
            )));
        }
        let group = GroupId(group as u32);
        self.cache.outbox.copies.push(BlockCopy { group, src, dst, src_pool, dst_pool });
        Ok(())
    }

    /// Positions before the state's are null; the state and the blocks for drafts end the table.
    fn extend_aligned(
        &mut self,
        group: usize,
        drafts: usize,
        num_tokens: u32,
        returned: &mut Vec<BlockId>,
    ) -> Result<(), Error> {
        let block_size = self.config_of(group).block_size;
        let required = num_tokens.div_ceil(block_size) as usize + drafts;
        let table = &mut self.tables[group];
        let held = table.blocks.len();
        let source = table.copy_source();
        let moving = table.moving_mut();
        let checkpoint = usize::from(moving.checkpoint.is_some());
        let was_allocated = std::mem::replace(&mut moving.allocated, true);
        if required <= held && source.is_none() && checkpoint == 0 {
            return Ok(());
        }
        let skipped = (required - drafts).saturating_sub(1);
        let null_end = skipped.saturating_sub(checkpoint);
        if held < null_end {
            table.blocks.resize(null_end, BlockId::NULL);
            if table.num_skipped as usize >= held {
                table.num_skipped = null_end as u32;
            }
        }
        if was_allocated && (checkpoint == 0 || self.config.release.moves_drafts_at_checkpoints) {
            for position in held.saturating_sub(drafts)..held.min(null_end) {
                self.move_draft(group, position)?;
            }
        }
        let keeps_apart = was_allocated && self.group(group).keeps_apart();
        let mut missing = required.saturating_sub(self.tables[group].blocks.len()) as u32;
        missing += u32::from(source.is_some() && !keeps_apart);
        let mut new = Vec::with_capacity(missing as usize);
        self.take(group, missing, &mut new)?;
        returned.extend_from_slice(&self.tables[group].blocks[held..]);
        if let Some((position, source)) = source {
            if keeps_apart {
                let copy = self.keep_apart(group, position, source)?;
                self.key_tail(group, copy, self.progress.num_computed, false)?;
                self.note_left(group, copy);
            } else if was_allocated {
                let copy = new.remove(0);
                self.preserve(group, position, source, copy)?;
                self.note_left(group, copy);
            } else {
                let copy = new.remove(0);
                self.redirect(group, position, source, copy)?;
                self.stats.forks += 1;
                self.note_used(group, source);
                returned.insert(0, copy);
            }
        }
        let table = &mut self.tables[group];
        table.blocks.extend_from_slice(&new);
        table.take_copy_source();
        returned.extend_from_slice(&new);
        Ok(())
    }

    /// Moves a draft block to the end of the table, where its request goes on using it.
    fn move_draft(&mut self, group: usize, position: usize) -> Result<(), Error> {
        let (store, pool) = (&self.cache.store, self.pool(group));
        let blocks = &mut self.tables[group].blocks;
        let block = blocks[position];
        if block.is_null()
            || store.pool(pool).ref_count(block) != 1
            || store.pool(pool).is_hashed(block)
        {
            return Err(Error::InvalidArgument(format!(
                "draft block {block} cannot move: it is shared or holds a cached prefix"
            )));
        }
        blocks.push(block);
        blocks[position] = BlockId::NULL;
        Ok(())
    }

    /// Has a state copied to a new block of the group's other pool, where checkpoints are kept. The block has no key.
    pub(crate) fn keep_apart(
        &mut self,
        group: usize,
        position: u32,
        state: BlockId,
    ) -> Result<BlockId, Error> {
        let (from, to) = (self.pool(group), self.kept(group));
        let mut new = Vec::with_capacity(1);
        self.cache.take(to, 1, None, &mut new)?;
        self.copy(group, position, (from, state), (to, new[0]))?;
        self.cache.store.touch(from, state)?;
        Ok(new[0])
    }

    /// Keeps what a running request is about to overwrite: the copy takes over the keys, since the
    /// worker's table of a running request only grows.
    fn preserve(
        &mut self,
        group: usize,
        position: u32,
        source: BlockId,
        copy: BlockId,
    ) -> Result<(), Error> {
        let pool = self.pool(group);
        self.copy(group, position, (pool, source), (pool, copy))?;
        self.cache.store.move_keys(pool, source, copy);
        self.cache.store.touch(pool, source)?;
        if let Some((_, num_tokens)) = self.tables[group].moving_mut().producer_tail.take() {
            self.outputs[group].boundary_states.push(BoundaryState {
                handle: self.handle,
                group: GroupId(group as u32),
                block: copy,
                num_tokens,
            });
        }
        // Our own copies hold what was computed before this step, and are made before any of it runs.
        if self.config.checkpoints.is_none()
            && let Some((key, _)) = self.first_key(group, copy)
        {
            self.outputs[group].cached_this_step.insert(key.digest);
        }
        Ok(())
    }
}
