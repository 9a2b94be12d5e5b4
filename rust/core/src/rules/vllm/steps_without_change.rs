//! How far a request can continue before a call changes something.

use super::call::Call;
use super::config::GroupConfig;
use super::request::NoChangeUntil;
use crate::group::{GroupKind, Table};
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    /// How far the request can continue after `num_next` tokens. The step before left nothing to
    /// give back for `num_processed` tokens and nothing to enter for `num_committed`.
    pub(super) fn no_change_until(
        &self,
        num_next: u32,
        num_processed: u32,
        num_committed: u32,
    ) -> NoChangeUntil {
        let mut until = NoChangeUntil {
            num_prompt: self.progress.num_prompt,
            room: u32::MAX,
            main_room: u32::MAX,
            processed: u32::MAX,
            committed: u32::MAX,
            step: u32::MAX,
            num_dropped: self.cache.store.num_dropped(),
            is_known: true,
        };
        for ((config, group), table) in
            self.config.groups.iter().zip(&self.cache.groups).zip(&*self.tables)
        {
            if table.copy_source().is_some() {
                return NoChangeUntil::default();
            }
            let room = group.room(table);
            if let GroupKind::MambaAligned { has_checkpoint_blocks, .. } = config.kind {
                let moving = table.moving();
                if !moving.allocated
                    || moving.checkpoint.is_some()
                    || (self.cache.enable_caching && self.config.num_reprefillable > 0)
                {
                    return NoChangeUntil::default();
                }
                if let Some(plan) = &self.request.trail.plan {
                    until.main_room = self.config.next_move(plan, num_next);
                }
                if has_checkpoint_blocks {
                    until.step = self.config.hash_block_size - 1;
                }
                until.main_room = until.main_room.min(room);
            } else {
                until.room = until.room.min(room);
            }
            until.processed = until.processed.min(group.next_skip(num_processed) - 1);
            if self.cache.enable_caching && config.is_cacheable() {
                if self.has_open_tail(config, num_committed) {
                    return NoChangeUntil::default();
                }
                until.committed = until.committed.min(self.next_commit(config, table) - 1);
            }
        }
        until
    }

    /// Whether the end of the prompt is still to be entered, at a token count that completes no
    /// block. A block can be hit inside there.
    fn has_open_tail(&self, config: &GroupConfig, num_committed: u32) -> bool {
        let hash_block = self.config.hash_block_size;
        if !config.kind.is_full() || config.block_size == hash_block {
            return false;
        }
        let is_hashed = self.digests.len() >= (self.progress.num_prompt / hash_block) as usize;
        let is_lagging = config.use_eagle || self.config.num_reprefillable > 0;
        let tail = self.prompt_tail(config);
        !is_hashed || (is_lagging && tail > self.num_cacheable(num_committed, config))
    }

    /// Computed tokens, at least, that complete the group's next block.
    fn next_commit(&self, config: &GroupConfig, table: &Table) -> u32 {
        let end = (table.num_cached().unwrap_or(0) + 1) * config.block_size;
        if !self.config.is_hybrid() || self.config.is_fine_grained() {
            return end;
        }
        let unit = self.config.scheduler_block_size;
        if config.use_eagle {
            end.max((end - config.block_size).next_multiple_of(unit)).max(unit)
        } else {
            end.next_multiple_of(unit)
        }
    }
}
