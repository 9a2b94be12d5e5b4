//! Giving back blocks that nothing computed from now on looks at.

use crate::error::Error;
use crate::ids::BlockId;

use super::cache::Cache;
use super::config::GroupConfig;
use super::request::{Request, Table};

impl Cache<'_> {
    /// Give back what requests need not keep once `num_processed` tokens are computed for good.
    pub(crate) fn recede(
        &mut self,
        request: &mut Request,
        num_processed: u32,
    ) -> Result<(), Error> {
        for group in 0..self.config.groups.len() {
            let config = self.group(group);
            let skipped = config.kind.num_skipped_tokens(num_processed) / config.block_size;
            let table = &mut request.tables[group];
            let skipped = skipped.min(table.blocks.len() as u32);
            if config.kind.is_aligned() {
                self.retire_states(table, skipped)?;
                self.retire_last_state(table, &config, num_processed)?;
            } else if skipped > 0 {
                self.drop_head(table, skipped)?;
            }
        }
        Ok(())
    }

    /// Null blocks before `end`, up to the ones that were nulled earlier.
    fn drop_head(&mut self, table: &mut Table, end: u32) -> Result<(), Error> {
        let head = &mut table.blocks[..end as usize];
        let start = head.iter().rposition(|block| block.is_null()).map_or(0, |at| at + 1);
        self.drop(&mut head[start..])
    }

    /// States wait between null blocks, so all positions since the last time are looked at.
    fn retire_states(&mut self, table: &mut Table, end: u32) -> Result<(), Error> {
        let start = table.aligned.num_retired;
        if start < end {
            self.drop(&mut table.blocks[start as usize..end as usize])?;
            table.aligned.num_retired = end;
        }
        Ok(())
    }

    /// The state before the latest one has been copied and advanced since.
    fn retire_last_state(
        &mut self,
        table: &mut Table,
        config: &GroupConfig,
        num_processed: u32,
    ) -> Result<(), Error> {
        let Some(position) = table.aligned.last_state else { return Ok(()) };
        if position + 1 < num_processed.div_ceil(config.block_size) {
            let at = position as usize;
            self.drop(&mut table.blocks[at..=at])?;
        }
        Ok(())
    }

    /// Give back the blocks, the last one first to go, and leave null blocks.
    fn drop(&mut self, blocks: &mut [BlockId]) -> Result<(), Error> {
        self.free(blocks.iter().rev().copied())?;
        blocks.fill(BlockId::NULL);
        Ok(())
    }
}
