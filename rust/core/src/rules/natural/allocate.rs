//! Room for new tokens.

use super::request::Match;
use super::{BlockManager, READ_AHEAD};
use crate::engine::requests::known_row;
use crate::error::Error;
use crate::store::Store;

impl BlockManager {
    /// Make room for `num_new_tokens[i]` more tokens of each request, and for `lookahead` more that
    /// may be rejected, in order.
    ///
    /// The first allocation of a request adopts the prefix that [`BlockManager::match_prefix`] found;
    /// the new tokens are those after it. Returns how many requests were served: the first one that
    /// does not fit and all after it are left as they were. A request whose matched prefix was
    /// evicted since counts as one that does not fit; match it again.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`], [`Error::RequestTooLarge`] and [`Error::InvalidArgument`] (lengths
    /// differ, a handle twice); then nothing was allocated.
    pub fn allocate(
        &mut self,
        handles: &[u64],
        num_new_tokens: &[u32],
        lookahead: u32,
    ) -> Result<usize, Error> {
        self.check_batch(handles, num_new_tokens.len())?;
        let mut due = std::mem::take(&mut self.due);
        due.clear();
        for (at, (&handle, &num_new)) in handles.iter().zip(num_new_tokens).enumerate() {
            let row = known_row(handle);
            let progress = *self.engine.requests.progress(row);
            let start = if progress.running {
                progress.num_computed
            } else {
                self.adoptable(row).map_or(0, |hit| hit.num_tokens)
            };
            let target = u64::from(start) + u64::from(num_new) + u64::from(lookahead);
            if !progress.running || target > u64::from(progress.room) {
                self.check_size(target)?;
                due.push(at as u32);
            }
        }
        let served = self.serve_due(&due, handles, num_new_tokens, lookahead);
        self.due = due;
        let served = served?;
        for (&handle, &num_new) in handles[..served].iter().zip(num_new_tokens) {
            let progress = self.engine.requests.progress_mut(known_row(handle));
            let target = progress.num_computed + num_new + lookahead;
            progress.num_allocated = progress.num_allocated.max(target);
        }
        Ok(served)
    }

    /// Serve the requests at `due`, in order. Returns the place of the first one that does not fit.
    fn serve_due(
        &mut self,
        due: &[u32],
        handles: &[u64],
        num_new_tokens: &[u32],
        lookahead: u32,
    ) -> Result<usize, Error> {
        for chunk in due.chunks(READ_AHEAD) {
            self.read_tables_ahead(chunk, handles);
            for at in chunk.iter().map(|&at| at as usize) {
                let (row, num_new) = (known_row(handles[at]), num_new_tokens[at] + lookahead);
                let mut lacking = self.serve(row, num_new)?;
                // The holes that a move fills may be the ones that the request would have filled.
                while lacking > 0 && self.make_whole_slabs(lacking)? {
                    lacking = self.serve(row, num_new)?;
                }
                if lacking > 0 {
                    return Ok(at);
                }
            }
        }
        Ok(handles.len())
    }

    /// Have the ends of the tables of several requests fetched: they lie far apart, and one after
    /// the other each would be waited for.
    fn read_tables_ahead(&self, due: &[u32], handles: &[u64]) {
        let mut fetched = 0;
        for &at in due {
            for table in self.engine.requests.tables(known_row(handles[at as usize])) {
                fetched ^= table.blocks.last().map_or(0, |block| block.0);
            }
        }
        std::hint::black_box(fetched);
    }

    /// Serve one request. Returns how many blocks (slabs where several pools share them) are
    /// lacking, all if no move of live blocks would help; unless that is 0, nothing has changed.
    fn serve(&mut self, row: usize, num_new: u32) -> Result<u64, Error> {
        let progress = *self.engine.requests.progress(row);
        if progress.running {
            self.grow(row, progress.num_computed + num_new)
        } else {
            self.admit(row, num_new)
        }
    }

    /// First allocation: adopt the matched prefix and make room after it.
    fn admit(&mut self, row: usize, num_new: u32) -> Result<u64, Error> {
        let Some(hit) = self.adoptable(row) else {
            return Ok(u64::MAX);
        };
        self.adopt_match(row)?;
        let lacking = self.grow(row, hit.num_tokens + num_new)?;
        if lacking > 0 {
            let (_, tables) = self.engine.requests.split_mut(row);
            self.engine.cache.undo_adopt(tables);
            if self.num_running == 0 && hit.num_tokens > 0 {
                // Alone it fits only without holding a checkpoint beside its own state.
                let stamp = self.cache_stamp();
                self.engine.requests.rows[row].rest.matched =
                    Some(Match { stamp, is_promised: true, ..Match::default() });
            }
            return Ok(lacking);
        }
        self.num_running += 1;
        let next_commit = self.next_commit(hit.num_tokens);
        let progress = self.engine.requests.progress_mut(row);
        progress.running = true;
        progress.num_computed = hit.num_tokens;
        progress.next_commit = next_commit;
        let num_tokens = progress.num_tokens;
        if num_tokens > progress.room {
            self.unfinished.push(row as u32);
        }
        self.stats.queries += u64::from(num_tokens);
        self.stats.hits += u64::from(hit.num_tokens);
        self.stats.limits[hit.limit as usize] += 1;
        let plan = self.checkpoint_plan(row, hit);
        self.observe(row, plan.class, hit);
        let trail = &mut self.engine.requests.rows[row].rest.trail;
        trail.plan = Some(plan);
        trail.start = hit.num_tokens;
        self.fork(row);
        self.note_windows_used(row);
        self.engine.requests.rows[row].rest.matched = None;
        Ok(0)
    }

    /// Make room for `num_tokens` tokens in every group, or change nothing.
    fn grow(&mut self, row: usize, num_tokens: u32) -> Result<u64, Error> {
        let cache = &mut self.engine.cache;
        let (_, tables) = self.engine.requests.split_mut(row);
        cache.demand_missing(tables, num_tokens);
        match cache.reserve() {
            Ok(()) => {}
            Err(Error::OutOfBlocks { needed, available, .. }) => {
                let moving_helps = cache.store.has_room(&cache.demand, 0, true);
                return Ok(if moving_helps { needed - available } else { u64::MAX });
            }
            Err(error) => return Err(error),
        }
        let mut room = u32::MAX;
        for (group, table) in tables.iter_mut().enumerate() {
            cache.extend(group, table, num_tokens)?;
            room = room.min(cache.groups[group].room(table));
        }
        let progress = self.engine.requests.progress_mut(row);
        progress.num_allocated = num_tokens;
        progress.room = room;
        self.engine.cache.note_evictions();
        Ok(0)
    }

    /// The next number of computed tokens at which some group has a block to commit or to give back.
    pub(super) fn next_commit(&self, num_computed: u32) -> u32 {
        let interval = self.lengths.commit_interval;
        let next = (num_computed / interval + 1).saturating_mul(interval);
        if self.lengths.has_windows {
            next.min(self.engine.cache.next_skip(num_computed))
        } else {
            next
        }
    }
}
