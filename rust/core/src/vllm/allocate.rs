//! Room for tokens: adopted blocks, blocks for tokens computed elsewhere, new blocks.

use crate::error::Error;
use crate::ids::BlockId;
use crate::store::Store;

use super::cache::{BoundaryState, Cache, POOL};
use super::config::{GroupConfig, Kind};
use super::demand::ends_inside_block;
use super::request::Request;

impl Cache<'_> {
    /// Adopt a hit's blocks, and take blocks for tokens computed elsewhere. Nothing happens for a
    /// request that was admitted before.
    ///
    /// All hits are adopted before any block is taken, so that no group evicts another one's hit.
    pub(crate) fn admit(
        &mut self,
        request: &mut Request,
        computed: Option<&[Vec<BlockId>]>,
        num_local: u32,
        num_external: u32,
        unzeroed_groups: &[u32],
    ) -> Result<(), Error> {
        let hit = |group: usize| computed.map_or(&[][..], |blocks| &blocks[group]);
        let num_groups = self.config.groups.len();
        if request.is_running() {
            return match (0..num_groups).find(|&group| !hit(group).is_empty()) {
                None => Ok(()),
                Some(group) => Err(Error::InvalidArgument(format!(
                    "a running request cannot adopt blocks, but {} are given for group {group}",
                    hit(group).len()
                ))),
            };
        }
        for group in 0..num_groups {
            self.adopt(request, group, hit(group), num_local, num_external)?;
        }
        if num_external > 0 {
            for group in 0..num_groups {
                let zero = !unzeroed_groups.contains(&(group as u32));
                self.take_external(request, group, num_local + num_external, num_external, zero)?;
            }
        }
        Ok(())
    }

    fn adopt(
        &mut self,
        request: &mut Request,
        group: usize,
        hit: &[BlockId],
        num_local: u32,
        num_external: u32,
    ) -> Result<(), Error> {
        let config = self.group(group);
        let table = &mut request.tables[group];
        if !table.blocks.is_empty() || (!hit.is_empty() && !self.config.enable_caching()) {
            return Err(Error::InvalidArgument(format!(
                "a hit of {} blocks for group {group} of a request that has {} blocks; \
                 only a new request adopts blocks, and only where prefixes are cached",
                hit.len(),
                table.blocks.len()
            )));
        }
        let skipped = config.kind.num_skipped_tokens(num_local + num_external) / config.block_size;
        let hit = &hit[hit.len().min(skipped as usize)..];
        self.touch(hit)?;
        table.blocks.resize(skipped as usize, BlockId::NULL);
        table.blocks.extend_from_slice(hit);
        table.num_cached = Some(table.blocks.len() as u32);
        if ends_inside_block(&config, hit, num_local) {
            let position = num_local / config.block_size;
            table.partial_hit = hit.last().map(|&block| (position, block));
            table.num_cached = Some(position);
        }
        Ok(())
    }

    fn take_external(
        &mut self,
        request: &mut Request,
        group: usize,
        num_total: u32,
        num_external: u32,
        zero: bool,
    ) -> Result<(), Error> {
        let config = self.group(group);
        let skipped = config.kind.num_skipped_tokens(num_total);
        if num_external.min(num_total.saturating_sub(skipped)) == 0 {
            return Ok(());
        }
        let blocks = &mut request.tables[group].blocks;
        let held = blocks.len();
        let new = num_total.div_ceil(config.block_size).saturating_sub(held as u32);
        self.take(new, blocks)?;
        if config.zeroes_new_blocks && zero {
            self.outboxes[group].new_blocks.extend_from_slice(&blocks[held..]);
        }
        Ok(())
    }

    /// Give a group room for `num_tokens`, or `num_main` where a drafter has no such layers.
    /// Returns the blocks that the worker does not know of yet.
    pub(crate) fn extend(
        &mut self,
        request: &mut Request,
        request_id: &str,
        group: usize,
        num_tokens: u32,
        num_main: u32,
    ) -> Result<Vec<BlockId>, Error> {
        let config = self.group(group);
        match config.kind {
            Kind::MambaAligned { .. } => self.extend_aligned(request, request_id, group, num_main),
            Kind::MambaInPlace { num_speculative } => {
                let drafts = config.block_size * num_speculative;
                self.extend_positional(request, group, &config, num_tokens + drafts)
            }
            _ => self.extend_positional(request, group, &config, num_tokens),
        }
    }

    fn extend_positional(
        &mut self,
        request: &mut Request,
        group: usize,
        config: &GroupConfig,
        num_tokens: u32,
    ) -> Result<Vec<BlockId>, Error> {
        let mut new = Vec::new();
        if let Some(hit) = request.tables[group].partial_hit.take() {
            let copy = self.take_one()?;
            self.redirect(request, group, hit, copy)?;
            self.outboxes[group].new_blocks.push(copy);
            new.push(copy);
        }
        let blocks = &mut request.tables[group].blocks;
        let held = blocks.len();
        let missing = num_tokens.div_ceil(config.block_size).saturating_sub(held as u32);
        if missing > 0 {
            self.take(missing, blocks)?;
            if config.zeroes_new_blocks {
                self.outboxes[group].new_blocks.extend_from_slice(&blocks[held..]);
            }
            new.extend_from_slice(&blocks[held..]);
        }
        Ok(new)
    }

    /// Positions before the state's are null; the state and the blocks for drafts end the table.
    fn extend_aligned(
        &mut self,
        request: &mut Request,
        request_id: &str,
        group: usize,
        num_tokens: u32,
    ) -> Result<Vec<BlockId>, Error> {
        let config = self.group(group);
        let Kind::MambaAligned { num_speculative, .. } = config.kind else {
            return Ok(Vec::new());
        };
        let table = &mut request.tables[group];
        let drafts = num_speculative as usize;
        let required = num_tokens.div_ceil(config.block_size) as usize + drafts;
        let checkpoint = usize::from(table.aligned.checkpoint.is_some());
        let was_allocated = std::mem::replace(&mut table.aligned.allocated, true);
        let partial_hit = table.partial_hit;
        let held = table.blocks.len();
        if required <= held && partial_hit.is_none() && checkpoint == 0 {
            return Ok(Vec::new());
        }
        if was_allocated {
            table.aligned.last_state = held.checked_sub(1 + drafts).map(|at| at as u32);
        } else if held > 0 {
            table.aligned.last_state = Some(held as u32 - 1);
        }
        let skipped = (required - drafts).saturating_sub(1);
        let null_end = skipped.saturating_sub(checkpoint);
        if held < skipped {
            table.blocks.resize(held.max(null_end), BlockId::NULL);
        }
        if was_allocated {
            for position in held.saturating_sub(drafts)..held.min(null_end) {
                self.relocate(&mut table.blocks, position)?;
            }
        }
        let mut missing = required.saturating_sub(table.blocks.len()) as u32;
        missing += u32::from(partial_hit.is_some());
        let mut new = Vec::with_capacity(missing as usize);
        self.take(missing, &mut new)?;
        let mut returned = table.blocks[held..].to_vec();
        if let Some(hit) = partial_hit {
            let copy = new.remove(0);
            if was_allocated {
                self.preserve(request, request_id, group, hit, copy)?;
            } else {
                self.redirect(request, group, hit, copy)?;
                returned.insert(0, copy);
            }
        }
        let table = &mut request.tables[group];
        table.blocks.extend_from_slice(&new);
        table.partial_hit = None;
        returned.extend_from_slice(&new);
        Ok(returned)
    }

    /// Move a draft block to the end of the table, where its request goes on using it.
    fn relocate(&self, blocks: &mut Vec<BlockId>, position: usize) -> Result<(), Error> {
        let block = blocks[position];
        let pool = self.store.pool(POOL);
        if block.is_null() || pool.ref_count(block) != 1 || pool.is_hashed(block) {
            return Err(Error::InvalidArgument(format!(
                "draft block {block} cannot move: it is shared or holds a cached prefix"
            )));
        }
        blocks.push(block);
        blocks[position] = BlockId::NULL;
        Ok(())
    }

    /// Keep what a running request is about to overwrite: the copy takes over the keys, since the
    /// worker's table of a running request only grows.
    fn preserve(
        &mut self,
        request: &mut Request,
        request_id: &str,
        group: usize,
        (position, source): (u32, BlockId),
        copy: BlockId,
    ) -> Result<(), Error> {
        let table = &mut request.tables[group];
        if table.blocks.get(position as usize) != Some(&source) {
            return Err(Error::InvalidArgument(format!(
                "block {source} is not at position {position} of group {group}"
            )));
        }
        self.store.move_keys(POOL, source, copy);
        self.outboxes[group].copies.push((source, copy));
        self.store.touch(POOL, source)?;
        if let Some((_, num_tokens)) = table.aligned.producer_tail.take() {
            self.outboxes[group].boundary_states.push(BoundaryState {
                request_id: request_id.to_owned(),
                group: crate::ids::GroupId(group as u32),
                block: copy,
                num_tokens,
            });
        }
        if let Some((key, _)) = self.first_key(copy) {
            self.outboxes[group].cached_this_step.insert(key.digest);
        }
        Ok(())
    }
}
