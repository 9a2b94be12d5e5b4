//! Prefix matches and room for new tokens.

use super::Manager;
use super::delta::note;
use crate::checkpoint::Marks;
use crate::error::Error;
use crate::hit::Hit;
use crate::request::Requests;
use crate::store::Store;

impl Manager {
    /// How many leading tokens need not be computed: the longest prefix that every group can
    /// restore, at most all tokens but one, and what ends it. Takes nothing. Nothing for a request
    /// that holds blocks.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn match_prefix(&mut self, handle: u64) -> Result<Hit, Error> {
        let row = self.requests.row(handle)?;
        if self.requests.progress[row].running {
            return Ok(Hit::default());
        }
        Ok(self.matched(row))
    }

    pub(super) fn matched(&mut self, row: usize) -> Hit {
        let num_changes = self.store.num_changes();
        if let Some((hit, at)) = self.requests.rows[row].matched
            && at == num_changes
        {
            return hit;
        }
        let hit = self.longest_hit(row, u32::MAX);
        self.requests.rows[row].matched = Some((hit, num_changes));
        hit
    }

    fn longest_hit(&self, row: usize, limit: u32) -> Hit {
        if !self.config.enable_caching {
            return Hit::default();
        }
        let limit = limit.min(self.requests.progress[row].num_tokens.saturating_sub(1));
        self.coordinator.longest_hit(&self.store, &self.requests.rows[row].digests, limit)
    }

    /// What the first allocation adopts: the match found last, or none if it stands no more.
    fn adoptable(&self, row: usize) -> Option<Hit> {
        match self.requests.rows[row].matched {
            None => Some(self.longest_hit(row, u32::MAX)),
            Some((hit, at)) if at == self.store.num_changes() => Some(hit),
            Some((hit, _)) => {
                let held = self.longest_hit(row, hit.num_tokens).num_tokens;
                (held == hit.num_tokens).then_some(hit)
            }
        }
    }

    /// Make room for `num_new_tokens[i]` more tokens of each request, and for `lookahead` more that
    /// may be rejected, in order.
    ///
    /// The first allocation of a request adopts the prefix that [`Manager::match_prefix`] found;
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
        for (&handle, &num_new) in handles.iter().zip(num_new_tokens) {
            let row = Requests::known_row(handle);
            let progress = self.requests.progress[row];
            let start = if progress.running {
                progress.num_computed
            } else {
                self.adoptable(row).map_or(0, |hit| hit.num_tokens)
            };
            self.check_size(u64::from(start) + u64::from(num_new) + u64::from(lookahead))?;
        }
        for (done, (&handle, &num_new)) in handles.iter().zip(num_new_tokens).enumerate() {
            let row = Requests::known_row(handle);
            let progress = &mut self.requests.progress[row];
            let target = progress.num_computed + num_new + lookahead;
            if progress.running && target <= progress.room {
                progress.num_allocated = progress.num_allocated.max(target);
                continue;
            }
            let mut lacking = self.serve(row, num_new, lookahead)?;
            // The holes that a move fills may be the ones that the request would have filled.
            while lacking > 0 && self.make_whole_slabs(lacking)? {
                lacking = self.serve(row, num_new, lookahead)?;
            }
            if lacking > 0 {
                return Ok(done);
            }
        }
        Ok(handles.len())
    }

    /// Serve one request. Returns how many blocks (slabs where several pools share them) are
    /// lacking, all if no move of live blocks would help; unless that is 0, nothing has changed.
    fn serve(&mut self, row: usize, num_new: u32, lookahead: u32) -> Result<u64, Error> {
        let progress = self.requests.progress[row];
        if progress.running {
            self.grow(row, progress.num_computed + num_new + lookahead)
        } else {
            self.admit(row, num_new + lookahead)
        }
    }

    /// First allocation: adopt the matched prefix and make room after it.
    fn admit(&mut self, row: usize, num_new: u32) -> Result<u64, Error> {
        let Some(hit) = self.adoptable(row) else {
            return Ok(u64::MAX);
        };
        let request = &self.requests.rows[row];
        let tables = self.requests.tables_of(row);
        for (group, table) in
            self.coordinator.groups().iter().zip(&mut self.requests.tables[tables.clone()])
        {
            group.adopt(&mut self.store, &request.digests, hit.num_tokens, table)?;
        }
        let lacking = self.grow(row, hit.num_tokens + num_new)?;
        if lacking > 0 {
            let tables = &mut self.requests.tables[tables];
            for (group, table) in self.coordinator.groups().iter().zip(tables).rev() {
                group.undo_adopt(&mut self.store, table);
            }
            if self.num_running == 0 && hit.num_tokens > 0 {
                // Alone it fits only without holding a checkpoint beside its own state.
                self.requests.rows[row].matched = Some((Hit::default(), self.store.num_changes()));
            }
            return Ok(lacking);
        }
        self.num_running += 1;
        let progress = &mut self.requests.progress[row];
        progress.running = true;
        progress.num_computed = hit.num_tokens;
        let num_tokens = progress.num_tokens;
        if num_tokens > progress.room {
            self.unfinished.push(row as u32);
        }
        self.count_admission(num_tokens, hit);
        self.fork(row);
        let mut marks = self.marks(num_tokens, hit);
        marks.end = self.config.placement.finish
            && self.coordinator.has_states()
            && self.lineage.wants_end();
        let request = &mut self.requests.rows[row];
        request.marks = marks;
        self.requests.progress[row].next_commit = self.coordinator.next_commit(hit.num_tokens);
        if self.config.enable_delta {
            for (group, table) in
                self.coordinator.groups().iter().zip(&self.requests.tables[tables])
            {
                let adopted = group.hit_positions(hit.num_tokens);
                note(&mut self.delta, row, group.id, adopted, &table.blocks);
            }
        }
        Ok(0)
    }

    /// Where a request of `num_tokens` known tokens that goes on from `hit` leaves checkpoints.
    pub(super) fn marks(&self, num_tokens: u32, hit: Hit) -> Marks {
        let alignment = self.coordinator.alignment();
        let placement = &self.config.placement;
        let prompt_end = (num_tokens - placement.margin(num_tokens)) / alignment * alignment;
        // Attention blocks that go on no further than this were the margin of an earlier prompt.
        let margin = placement.margin(hit.branch).next_multiple_of(alignment);
        let past_margin = hit.num_tokens.saturating_add(margin);
        let branch = if hit.branch > past_margin { hit.branch } else { 0 };
        Marks { prompt_end, branch, ..Marks::default() }
    }

    fn count_admission(&mut self, num_tokens: u32, hit: Hit) {
        self.stats.queries += u64::from(num_tokens);
        self.stats.hits += u64::from(hit.num_tokens);
        self.stats.limits[hit.limit as usize] += 1;
    }

    /// Make room for `num_tokens` tokens in every group, or change nothing.
    fn grow(&mut self, row: usize, num_tokens: u32) -> Result<u64, Error> {
        let tables = self.requests.tables_of(row);
        let tables = &mut self.requests.tables[tables];
        self.demand.fill(0);
        for (group, table) in self.coordinator.groups().iter().zip(&*tables) {
            self.demand[group.spec.pool.index()] += group.num_missing(table, num_tokens);
        }
        match self.store.reserve(&self.demand, &mut self.reservation) {
            Ok(()) => {}
            Err(Error::OutOfBlocks { needed, available, .. }) => {
                let moving_helps = self.store.has_room(&self.demand, 0, true);
                return Ok(if moving_helps { needed - available } else { u64::MAX });
            }
            Err(error) => return Err(error),
        }
        let mut room = u32::MAX;
        for (group, table) in self.coordinator.groups().iter().zip(tables) {
            let num_missing = group.num_missing(table, num_tokens);
            if num_missing > 0 {
                let pool = group.spec.pool;
                let near = table.blocks.last().and_then(|&block| self.store.slab_of(pool, block));
                let start = table.blocks.len() as u32;
                self.store.take(pool, num_missing, near, &mut self.reservation, &mut table.blocks);
                if self.config.enable_delta {
                    let new = start..table.blocks.len() as u32;
                    note(&mut self.delta, row, group.id, new, &table.blocks);
                }
            }
            room = room.min(group.room(table));
        }
        let progress = &mut self.requests.progress[row];
        progress.num_allocated = num_tokens;
        progress.room = room;
        self.collect_evictions();
        Ok(0)
    }
}
