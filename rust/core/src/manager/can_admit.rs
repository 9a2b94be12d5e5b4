//! Whether a waiting request could be carried through its prompt.

use super::Manager;
use crate::error::Error;

impl Manager {
    /// Whether all known tokens of a waiting request have room at once, with `headroom` whole slabs
    /// (blocks of a fixed pool) left over, if need be after live blocks are moved together. Takes
    /// nothing. True for a request that holds blocks.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn can_admit(&mut self, handle: u64, headroom: u64) -> Result<bool, Error> {
        let row = self.requests.row(handle)?;
        let progress = self.requests.progress[row];
        if progress.running {
            return Ok(true);
        }
        let hit = self.matched(row);
        let num_tokens = progress.num_tokens;
        let tables = self.requests.tables_of(row);
        let step = self.config.max_chunk.min(num_tokens - hit.num_tokens);
        let request = &self.requests.rows[row];
        let tables = &mut self.requests.tables[tables];
        let groups = self.coordinator.groups();
        self.demand.fill(0);
        // What is hit has no owner yet, maybe: holding it shows what is left beside it.
        for (group, table) in groups.iter().zip(&mut *tables) {
            group.adopt(&mut self.store, &request.digests, hit.num_tokens, table)?;
            let peak = group.peak_blocks(u64::from(num_tokens), step);
            let held = table.blocks.iter().filter(|block| !block.is_null()).count() as u64;
            self.demand[group.spec.pool.index()] += peak.saturating_sub(held);
        }
        let fits = self.store.has_room(&self.demand, headroom, self.config.enable_compaction);
        for (group, table) in groups.iter().zip(tables).rev() {
            group.undo_adopt(&mut self.store, table);
        }
        Ok(fits)
    }
}
