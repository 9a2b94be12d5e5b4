//! Giving back blocks that nothing computed from now on looks at.

use super::call::Call;
use crate::error::Error;
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    /// Give back what the request need not keep once `num_processed` tokens are computed for good.
    pub(super) fn release_skipped(&mut self, num_processed: u32) -> Result<(), Error> {
        for group in 0..self.tables.len() {
            if self.config_of(group).kind.is_aligned() {
                self.release_states(group, num_processed)?;
            } else {
                let table = &mut self.tables[group];
                self.cache.release_skipped(self.row, group, table, num_processed)?;
            }
        }
        Ok(())
    }

    /// States wait between null blocks. The one before the latest has been copied and advanced since.
    fn release_states(&mut self, group: usize, num_processed: u32) -> Result<(), Error> {
        let (pool, table) = (self.pool(group), &mut self.tables[group]);
        self.cache.release_skipped(self.row, group, table, num_processed)?;
        let block_size = self.config.groups[group].block_size;
        if let Some(position) = table.moving().last_state
            && position + 1 < num_processed.div_ceil(block_size)
        {
            self.cache.release_range(pool, table, position..position + 1)?;
        }
        Ok(())
    }
}
