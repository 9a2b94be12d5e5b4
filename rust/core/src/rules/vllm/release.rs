//! Giving back blocks that nothing computed from now on looks at.

use super::call::Call;
use crate::error::Error;
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    /// Give back what the request need not keep once `num_processed` tokens are computed for good.
    pub(super) fn release_skipped(&mut self, num_processed: u32) -> Result<(), Error> {
        for (group, table) in self.tables.iter_mut().enumerate() {
            self.cache.release_skipped(self.row, group, table, num_processed)?;
        }
        Ok(())
    }
}
