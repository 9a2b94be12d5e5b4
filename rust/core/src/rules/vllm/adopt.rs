//! Blocks of tokens that are computed already: adopted from the cache, or to be filled by others.

use super::call::Call;
use super::demand::ends_inside_block;
use super::progress::{AllocateArgs, TokenCounts};
use crate::error::Error;
use crate::group::GroupKind;
use crate::ids::BlockId;
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    /// Adopts a hit's blocks, and takes blocks for tokens computed elsewhere. Nothing happens for a
    /// request that was admitted before. Returns whether the rest still has room: `counts` with `kept` blocks left,
    /// and `all` with `unused` ones.
    ///
    /// All hits are adopted before any block is taken, so that no group evicts another one's hit.
    pub(crate) fn admit(
        &mut self,
        args: &AllocateArgs<'_>,
        (counts, kept): (TokenCounts, i64),
        (all, unused): (Option<TokenCounts>, i64),
    ) -> Result<bool, Error> {
        let hit = |group: usize| args.computed.map_or(&[][..], |blocks| &blocks[group]);
        let mut groups = 0..self.tables.len();
        if self.is_running() {
            return match groups.find(|&group| !hit(group).is_empty()) {
                None => Ok(true),
                Some(group) => Err(Error::InvalidArgument(format!(
                    "a running request cannot adopt blocks, but {} are given for group {group}",
                    hit(group).len()
                ))),
            };
        }
        let (num_local, num_external) = (counts.num_local, args.num_external);
        self.request.trail.start = num_local + num_external;
        for group in groups.clone() {
            let hit = if self.is_replaced(group, counts) { &[] } else { hit(group) };
            self.adopt(group, hit, num_local, num_external)?;
        }
        // In slabs, a cached block that is held again may cost the others a whole slab, which no
        // count of blocks foretells.
        if self.cache.store.is_slabbed() {
            let has_room = all.is_none_or(|all| self.fits(None, all, unused));
            let has_room = has_room
                && (self.fits(None, counts, kept)
                    || self.fits_with_fewer_inside(None, counts, kept));
            if !has_room {
                self.cache.undo_adopt(self.tables);
                self.request.trail.start = 0;
                return Ok(false);
            }
        }
        for group in groups {
            let zero = !args.unzeroed_groups.contains(&(group as u32));
            self.take_external(group, num_local + num_external, num_external, zero)?;
        }
        if let Some((keeper, hit)) = self.keeper.as_deref_mut().zip(args.computed) {
            let shared = self.request.shared.as_ref();
            let leaves = shared.is_some_and(|shared| shared.matched <= num_local);
            let (trail, groups) = (&mut self.request.trail, &self.cache.groups);
            trail.resume_windows(&mut keeper.traffic, groups, hit, num_local, leaves);
        }
        Ok(true)
    }

    fn adopt(
        &mut self,
        group: usize,
        hit: &[BlockId],
        num_local: u32,
        num_external: u32,
    ) -> Result<(), Error> {
        let config = self.config_of(group);
        if config.kind.is_constant() {
            return Ok(());
        }
        let table = &mut self.tables[group];
        if !table.blocks.is_empty() || (!hit.is_empty() && !self.cache.enable_caching) {
            return Err(Error::InvalidArgument(format!(
                "a hit of {} blocks for group {group} of a request that has {} blocks; \
                 only a new request adopts blocks, and only where prefixes are cached",
                hit.len(),
                table.blocks.len()
            )));
        }
        self.cache.adopt(group, table, hit, num_local + num_external)?;
        let table = &mut self.tables[group];
        let kept = table.blocks.len() as u32 > table.num_skipped;
        if kept && ends_inside_block(config, hit, num_local) {
            let position = num_local / config.block_size;
            if let Some(&block) = hit.last() {
                table.set_copy_source(position, block);
            }
            table.set_num_cached(position);
            if config.kind.is_aligned() {
                table.moving_mut().last_kept = num_local;
            }
        }
        Ok(())
    }

    fn take_external(
        &mut self,
        group: usize,
        num_total: u32,
        num_external: u32,
        zero: bool,
    ) -> Result<(), Error> {
        let config = self.config_of(group);
        if matches!(config.kind, GroupKind::Cross { .. }) {
            return Ok(());
        }
        let skipped = config.kind.num_skipped_tokens(num_total);
        if num_external.min(num_total.saturating_sub(skipped)) == 0 {
            return Ok(());
        }
        let held = self.tables[group].blocks.len();
        // Blocks for drafts are taken with the new tokens.
        let required = if config.kind.is_constant() {
            config.kind.constant_blocks(config.block_size)
        } else {
            num_total.div_ceil(config.block_size)
        };
        let missing = required.saturating_sub(held as u32);
        let (pool, blocks) = (self.pool(group), &mut self.tables[group].blocks);
        self.cache.take(pool, missing.into(), None, blocks)?;
        if config.zeroes_new_blocks && zero {
            let new = &self.tables[group].blocks[held..];
            self.outputs[group].new_blocks.extend_from_slice(new);
        }
        Ok(())
    }
}
