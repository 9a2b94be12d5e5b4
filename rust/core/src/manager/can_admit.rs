//! Whether a waiting request could be carried through its prompt, and in chunks of how many tokens.

use super::Manager;
use crate::error::Error;
use crate::request::Requests;
use crate::store::Store;

impl Manager {
    /// Whether all known tokens of a waiting request have room at once, beside those of the requests
    /// admitted before and with `headroom` whole slabs (blocks of a fixed pool) left over, if need be after live blocks are moved together. Layers
    /// that look back over a window also hold the tokens of the chunk that is being computed: those
    /// chunks may have to be as small as [`Manager::fitting_chunk`] says. Takes nothing. True for a
    /// request that holds blocks.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn can_admit(&mut self, handle: u64, headroom: u64) -> Result<bool, Error> {
        let row = self.requests.row(handle)?;
        if self.requests.progress[row].running {
            return Ok(true);
        }
        let step = if self.coordinator.has_windows() {
            self.coordinator.alignment()
        } else {
            self.config.max_chunk
        };
        self.fits_in_chunks(row, headroom, step)
    }

    /// The most tokens, up to `most`, that a request can compute in one step: all known tokens of a
    /// waiting request have room in chunks of as many, the next chunk of a running one has. `most`,
    /// if no smaller chunk would help. Takes nothing.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn fitting_chunk(&mut self, handle: u64, most: u32) -> Result<u32, Error> {
        self.requests.row(handle)?;
        let grain = self.coordinator.alignment();
        if !self.coordinator.has_windows() || most <= grain || self.chunk_fits(handle, most)? {
            return Ok(most);
        }
        let (mut fits, mut too_many) = (0, most.div_ceil(grain));
        while fits + 1 < too_many {
            let middle = u32::midpoint(fits, too_many);
            if self.chunk_fits(handle, middle * grain)? {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        Ok(if fits == 0 { most } else { fits * grain })
    }

    fn chunk_fits(&mut self, handle: u64, num_new: u32) -> Result<bool, Error> {
        let row = Requests::known_row(handle);
        let progress = self.requests.progress[row];
        if !progress.running {
            return self.fits_in_chunks(row, 0, num_new);
        }
        let num_tokens = progress.num_computed + num_new;
        let tables = &self.requests.tables[self.requests.tables_of(row)];
        self.demand.fill(0);
        for (group, table) in self.coordinator.groups().iter().zip(tables) {
            self.demand[group.spec.pool.index()] += group.num_missing(table, num_tokens);
        }
        Ok(self.store.has_room(&self.demand, 0, self.config.enable_compaction))
    }

    /// Demand what the requests admitted before still lack until all tokens known then have room:
    /// it is theirs, though they hold it only chunk by chunk.
    fn demand_promised(&mut self) {
        let Requests { progress, .. } = &self.requests;
        self.unfinished.retain(|&row| {
            let progress = &progress[row as usize];
            progress.num_tokens > progress.room
        });
        self.demand.fill(0);
        for row in self.unfinished.iter().map(|&row| row as usize) {
            let num_tokens = u64::from(self.requests.progress[row].num_tokens);
            let tables = &self.requests.tables[self.requests.tables_of(row)];
            for (group, table) in self.coordinator.groups().iter().zip(tables) {
                let peak = group.peak_blocks(num_tokens, self.coordinator.alignment());
                self.demand[group.spec.pool.index()] += peak.saturating_sub(table.num_held());
            }
        }
    }

    /// Whether all known tokens of a waiting request have room at once beside `headroom` and what
    /// others were promised, where at most `step` are computed in one step.
    fn fits_in_chunks(&mut self, row: usize, headroom: u64, step: u32) -> Result<bool, Error> {
        let hit = self.matched(row);
        self.demand_promised();
        let num_tokens = self.requests.progress[row].num_tokens;
        let step = step.min(self.config.max_chunk).min(num_tokens - hit.num_tokens);
        let tables = self.requests.tables_of(row);
        let request = &self.requests.rows[row];
        let tables = &mut self.requests.tables[tables];
        let groups = self.coordinator.groups();
        // What is hit has no owner yet, maybe: holding it shows what is left beside it.
        for (group, table) in groups.iter().zip(&mut *tables) {
            group.adopt(&mut self.store, &request.digests, hit.num_tokens, table)?;
            let peak = group.peak_blocks(u64::from(num_tokens), step);
            self.demand[group.spec.pool.index()] += peak.saturating_sub(table.num_held());
        }
        let fits = self.store.has_room(&self.demand, headroom, self.config.enable_compaction);
        for (group, table) in groups.iter().zip(tables).rev() {
            group.undo_adopt(&mut self.store, table);
        }
        Ok(fits)
    }
}
