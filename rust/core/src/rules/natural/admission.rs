//! Whether a request could be carried through its prompt, and in chunks of how many tokens.

use super::BlockManager;
use crate::engine::cache::Cache;
use crate::engine::requests::known_row;
use crate::error::Error;
use crate::ids::PoolId;
use crate::store::Store;

impl BlockManager {
    /// Refuse a request that would not fit into the empty cache.
    pub(super) fn check_size(&self, num_tokens: u64) -> Result<(), Error> {
        if num_tokens <= u64::from(self.max_request_tokens) {
            return Ok(());
        }
        Err(Error::RequestTooLarge {
            num_tokens,
            unit: self.engine.cache.store.unit(),
            needed: self.slabs_for(num_tokens),
            available: self.engine.cache.store.num_slabs(),
            fits: u64::from(self.max_request_tokens),
        })
    }

    /// Slabs (blocks of a fixed pool) that a request of `num_tokens` tokens alone needs at most.
    fn slabs_for(&self, num_tokens: u64) -> u64 {
        let Cache { store, groups, .. } = &self.engine.cache;
        let slabs = (0..store.num_pools()).map(PoolId).map(|pool| {
            let own = groups.iter().filter(|group| group.spec.pool == pool);
            let blocks = own.map(|group| group.peak_blocks(num_tokens, self.config.max_chunk));
            blocks.sum::<u64>().div_ceil(u64::from(store.blocks_per_slab(pool)))
        });
        slabs.sum()
    }

    /// Tokens of the longest request that fits alone.
    pub(super) fn longest_request(&self) -> Result<u32, Error> {
        let available = self.engine.cache.store.num_slabs();
        let fits = |num_tokens| Ok(self.slabs_for(u64::from(num_tokens)) <= available);
        largest(u32::MAX / 2 + 1, fits)
    }

    /// Whether all known tokens of a waiting request have room at once, beside those of the requests
    /// admitted before and with `headroom` whole slabs (blocks of a fixed pool) left over. Live
    /// blocks may be moved together for it. Room for a checkpoint of each running request is left over too, where that
    /// saves more than one request more that runs.
    ///
    /// Layers that look back over a window also hold the tokens of the chunk that is being computed:
    /// chunks may have to be as small as [`BlockManager::fitting_chunk`] says. Takes nothing. True for a
    /// request that holds blocks.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn can_admit(&mut self, handle: u64, headroom: u64) -> Result<bool, Error> {
        let row = self.engine.requests.row(handle)?;
        if self.engine.requests.progress(row).running {
            return Ok(true);
        }
        let step =
            if self.lengths.has_windows { self.lengths.alignment } else { self.config.max_chunk };
        self.fits_in_chunks(row, headroom, step)
    }

    /// The most tokens, up to `most`, that a request can compute in one step: all known tokens of a
    /// waiting request have room in chunks of as many, the next chunk of a running one has. `most`,
    /// if no smaller chunk would help. Takes nothing.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn fitting_chunk(&mut self, handle: u64, most: u32) -> Result<u32, Error> {
        self.engine.requests.row(handle)?;
        let grain = self.lengths.alignment;
        if !self.lengths.has_windows || most <= grain || self.chunk_fits(handle, most)? {
            return Ok(most);
        }
        let fits = largest(most.div_ceil(grain), |grains| self.chunk_fits(handle, grains * grain))?;
        Ok(if fits == 0 { most } else { fits * grain })
    }

    fn chunk_fits(&mut self, handle: u64, num_new: u32) -> Result<bool, Error> {
        let row = known_row(handle);
        let progress = *self.engine.requests.progress(row);
        if !progress.running {
            return self.fits_in_chunks(row, 0, num_new);
        }
        let cache = &mut self.engine.cache;
        let tables = self.engine.requests.tables(row);
        cache.demand_missing(tables, progress.num_computed + num_new);
        Ok(cache.store.has_room(&cache.demand, 0, self.config.enable_compaction))
    }

    /// Demand what the requests admitted before still lack until all tokens known then have room:
    /// it is theirs, though they hold it only chunk by chunk.
    fn demand_promised(&mut self) {
        let (requests, cache) = (&self.engine.requests, &mut self.engine.cache);
        self.unfinished.retain(|&row| {
            let progress = requests.progress(row as usize);
            progress.num_tokens > progress.room
        });
        cache.demand.fill(0);
        for row in self.unfinished.iter().map(|&row| row as usize) {
            let num_tokens = u64::from(requests.progress(row).num_tokens);
            for (group, table) in cache.groups.iter().zip(requests.tables(row)) {
                let peak = group.peak_blocks(num_tokens, self.lengths.alignment);
                cache.demand[group.spec.pool.index()] += peak.saturating_sub(table.num_held());
            }
        }
    }

    /// Whether all known tokens of a waiting request have room at once beside `headroom` and what
    /// others were promised, where at most `step` are computed in one step.
    fn fits_in_chunks(&mut self, row: usize, headroom: u64, step: u32) -> Result<bool, Error> {
        let hit = self.matched(row);
        self.demand_promised();
        let num_tokens = self.engine.requests.progress(row).num_tokens;
        let step = step.min(self.config.max_chunk).min(num_tokens - hit.num_tokens);
        // What is hit has no owner yet, maybe: holding it shows what is left beside it.
        self.adopt_match(row)?;
        self.demand_room_for_checkpoints();
        let cache = &mut self.engine.cache;
        let (_, tables) = self.engine.requests.split_mut(row);
        for (group, table) in cache.groups.iter().zip(&*tables) {
            let peak = group.peak_blocks(u64::from(num_tokens), step);
            cache.demand[group.spec.pool.index()] += peak.saturating_sub(table.num_held());
        }
        let fits = cache.store.has_room(&cache.demand, headroom, self.config.enable_compaction);
        cache.undo_adopt(tables);
        Ok(fits)
    }

    /// Demand room for a checkpoint of each running request, where that is worth more than to run one more: without it
    /// checkpoints would be gone before their requests end.
    fn demand_room_for_checkpoints(&mut self) {
        if self.keeps_states() && self.keeper.traffic.leaves_room(self.num_running) {
            let cache = &mut self.engine.cache;
            for group in cache.state_groups() {
                cache.demand[group.spec.pool.index()] += self.num_running as u64;
            }
        }
    }

    /// Take a share in the blocks of the match found last. Returns its tokens.
    pub(super) fn adopt_match(&mut self, row: usize) -> Result<u32, Error> {
        let (request, tables) = self.engine.requests.split_mut(row);
        let Some(matched) = &request.rest.matched else { return Ok(0) };
        let num_tokens = matched.hit.num_tokens;
        for (group, (table, blocks)) in tables.iter_mut().zip(&matched.blocks).enumerate() {
            self.engine.cache.adopt(group, table, blocks, num_tokens)?;
        }
        Ok(num_tokens)
    }
}

/// The largest number below `too_many` that `fits`, if all smaller ones do; 0 if none.
fn largest(
    mut too_many: u32,
    mut fits: impl FnMut(u32) -> Result<bool, Error>,
) -> Result<u32, Error> {
    let mut largest = 0;
    while largest + 1 < too_many {
        let middle = u32::midpoint(largest, too_many);
        if fits(middle)? {
            largest = middle;
        } else {
            too_many = middle;
        }
    }
    Ok(largest)
}
