//! Recurrent checkpoints: states that are written inside a chunk, at a hash block's end.

use super::call::Call;
use super::progress::TokenCounts;
use crate::group::GroupKind;
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    /// The checkpoint that the chunk ending with `counts` writes into a block of its own, if it does:
    /// its tokens and the position of its block.
    pub(super) fn checkpoint_in(&self, group: usize, counts: TokenCounts) -> Option<(u32, u32)> {
        let (config, table) = (self.config_of(group), &self.tables[group]);
        let GroupKind::MambaAligned {
            num_speculative,
            checkpoint_alignment,
            has_checkpoint_blocks: true,
        } = config.kind
        else {
            return None;
        };
        // The end of the prefill counts only where nothing but the ends of prompts is retained.
        if self.config.retention_interval == Some(0) && counts.num_main < counts.prefill_end {
            return None;
        }
        let (start, end) = (counts.num_computed, counts.num_main);
        let position = self.config.checkpoint_inside(end);
        let alignment = checkpoint_alignment?;
        let hash_block = self.config.hash_block_size;
        let column = i64::from(end.div_ceil(config.block_size)) - 2;
        let start_column = (i64::from(start) - 1).div_euclid(i64::from(config.block_size));
        let can_write = start.is_multiple_of(hash_block)
            && column > start_column
            && start + hash_block <= position
            && (position - start).is_multiple_of(alignment);
        let column = u32::try_from(column).ok().filter(|_| can_write)?;
        let held = table.blocks.len();
        let is_vacant = table.blocks.get(column as usize).is_none_or(|block| block.is_null());
        let is_draft =
            table.moving().allocated && column as usize + num_speculative as usize >= held;
        (is_vacant || is_draft).then_some((position, column))
    }
}
