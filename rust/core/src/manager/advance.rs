//! What follows when tokens were computed.

use super::Manager;
use super::delta::note;
use crate::error::Error;
use crate::event::Event;
use crate::request::Requests;
use crate::store::Store;

/// Requests whose memory is fetched at a time.
const READ_AHEAD: usize = 16;

impl Manager {
    /// Record that `num_tokens[i]` more tokens of each request were computed. Blocks that became
    /// full can be hit from now on; blocks that no later token looks at are given back.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; [`Error::InvalidArgument`] (lengths differ, a handle twice, a
    /// request without blocks, more tokens than were allocated or exist); then nothing was recorded.
    pub fn advance(&mut self, handles: &[u64], num_tokens: &[u32]) -> Result<(), Error> {
        self.check_batch(handles, num_tokens.len())?;
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            let row = Requests::known_row(handle);
            let progress = self.requests.progress[row];
            let target = u64::from(progress.num_computed) + u64::from(num_new);
            if !progress.running
                || target > u64::from(progress.num_allocated.min(progress.num_tokens))
            {
                return Err(Error::InvalidArgument(format!(
                    "request {:?} has {} of {} tokens computed and room for {}: {num_new} more \
                     cannot have been",
                    self.requests.rows[row].id,
                    progress.num_computed,
                    progress.num_tokens,
                    progress.num_allocated,
                )));
            }
        }
        for (&handle, &num_new) in handles.iter().zip(num_tokens) {
            let row = Requests::known_row(handle);
            let progress = &mut self.requests.progress[row];
            progress.num_computed += num_new;
            if progress.num_computed >= progress.next_commit {
                self.due.push(row as u32);
            }
        }
        let mut due = std::mem::take(&mut self.due);
        for rows in due.chunks(READ_AHEAD) {
            self.read_ahead(rows);
            rows.iter().try_for_each(|&row| self.commit(row as usize))?;
        }
        due.clear();
        self.due = due;
        Ok(())
    }

    /// Have what the commits of several requests look up first fetched: it lies far apart, and one
    /// after the other each piece would be waited for.
    fn read_ahead(&self, rows: &[u32]) {
        if !self.config.enable_caching {
            return;
        }
        let mut fetched = 0;
        for row in rows.iter().map(|&row| row as usize) {
            let num_computed = self.requests.progress[row].num_computed;
            let request = &self.requests.rows[row];
            fetched ^= request.marks.num_taken;
            let tables = &self.requests.tables[self.requests.tables_of(row)];
            for (group, table) in self.coordinator.groups().iter().zip(tables) {
                fetched ^= group.read_ahead(&self.store, &request.digests, num_computed, table);
            }
        }
        std::hint::black_box(fetched);
    }

    fn commit(&mut self, row: usize) -> Result<(), Error> {
        let progress = &mut self.requests.progress[row];
        let num_computed = progress.num_computed;
        progress.next_commit = self.coordinator.next_commit(num_computed);
        let handle = self.requests.handle(row as u32);
        let request = &self.requests.rows[row];
        let tables = self.requests.tables_of(row);
        for (group, table) in
            self.coordinator.groups().iter().zip(&mut self.requests.tables[tables])
        {
            if self.config.enable_caching {
                let new = group.commit(&mut self.store, &request.digests, num_computed, table);
                // A duplicate goes before its key is stored again.
                let evicted = self.store.evicted().drain(..).map(Event::Removed);
                if self.config.enable_events {
                    self.events.extend(evicted);
                } else {
                    drop(evicted);
                }
                if self.config.enable_events
                    && let Some(event) = group.stored_event(handle, &request.digests, new, table)
                {
                    self.events.push(event);
                }
            }
            let skipped = group.skip(&mut self.store, num_computed, table)?;
            if self.config.enable_delta {
                note(&mut self.delta, row, group.id, skipped, &table.blocks);
            }
        }
        self.leave_checkpoint(row)
    }
}
