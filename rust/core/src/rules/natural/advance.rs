//! What follows when tokens were computed.

use super::{BlockManager, READ_AHEAD};
use crate::engine::requests::known_row;
use crate::error::Error;

impl BlockManager {
    /// Record that `num_tokens[i]` more tokens of each request were computed. Blocks that became
    /// full can be hit from now on; blocks that no later token looks at are given back.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] (lengths differ, a handle twice, a
    /// request without blocks, more tokens than were allocated or exist); then nothing was recorded.
    pub fn advance(&mut self, handles: &[u64], num_tokens: &[u32]) -> Result<(), Error> {
        self.check_batch(handles, num_tokens.len())?;
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            let row = known_row(handle);
            let progress = self.engine.requests.progress(row);
            let target = u64::from(progress.num_computed) + u64::from(num_new);
            if !progress.running
                || target > u64::from(progress.num_allocated.min(progress.num_tokens))
            {
                return Err(Error::InvalidArgument(format!(
                    "request {:?} has {} of {} tokens computed and room for {}: {num_new} more \
                     cannot have been",
                    self.engine.requests.rows[row].id,
                    progress.num_computed,
                    progress.num_tokens,
                    progress.num_allocated,
                )));
            }
        }
        let mut due = std::mem::take(&mut self.due);
        due.clear();
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            let row = known_row(handle);
            let progress = self.engine.requests.progress_mut(row);
            progress.num_computed += num_new;
            if progress.num_computed >= progress.next_commit {
                due.push(row as u32);
            }
        }
        for rows in due.chunks(READ_AHEAD) {
            self.read_ahead(rows);
            rows.iter().try_for_each(|&row| self.commit(row as usize))?;
        }
        self.due = due;
        Ok(())
    }

    /// Have what the commits of several requests look up first fetched: it lies far apart, and one
    /// after the other each piece would be waited for.
    fn read_ahead(&self, rows: &[u32]) {
        if !self.config.enable_caching {
            return;
        }
        let requests = &self.engine.requests;
        let fetched = rows.iter().map(|&row| row as usize).fold(0, |fetched, row| {
            let (request, tables) = (&requests.rows[row], requests.tables(row));
            let num_computed = requests.progress(row).num_computed;
            let ahead = self.engine.cache.read_ahead(&request.digests, tables, num_computed);
            fetched ^ request.rest.trail.plan().num_taken ^ ahead
        });
        std::hint::black_box(fetched);
    }

    fn commit(&mut self, row: usize) -> Result<(), Error> {
        let num_computed = self.engine.requests.progress(row).num_computed;
        let next_commit = self.next_commit(num_computed);
        self.engine.requests.progress_mut(row).next_commit = next_commit;
        let handle = self.engine.requests.handle(row);
        let cache = &mut self.engine.cache;
        let (request, tables) = self.engine.requests.split_mut(row);
        let trail = &mut request.rest.trail;
        let places = trail.places(self.keeper.traffic.end(num_computed));
        for (group, table) in tables.iter_mut().enumerate() {
            if cache.groups[group].kind().is_constant() {
                continue;
            }
            if cache.enable_caching {
                let end = num_computed / cache.groups[group].spec.block_size;
                let start = table.num_cached().unwrap_or(0);
                let new = table.blocks.get(start as usize..end as usize).unwrap_or_default();
                trail.compute(&mut self.keeper.traffic, &cache.groups[group], start, new);
                cache.commit_full(handle, group, &request.digests, table, end, None)?;
            }
            let windows = &mut trail.windows;
            windows.release_skipped(cache, group, table, num_computed, &places)?;
        }
        self.leave_checkpoint(row)
    }
}
