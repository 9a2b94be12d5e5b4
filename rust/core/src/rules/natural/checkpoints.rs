//! Checkpoints: copies of recurrent states that later requests go on from.

use super::BlockManager;
use super::request::Request;
use crate::engine::{BlockCopy, CacheEvent};
use crate::error::Error;
use crate::group::{Group, state};
use crate::ids::BlockId;
use crate::rules::checkpoint_history::Origin;
use crate::rules::slabs::Reason;
use crate::store::Store;

impl BlockManager {
    /// Whether checkpoints of recurrent states are kept for later requests.
    pub(super) fn keeps_states(&self) -> bool {
        self.config.enable_caching && self.lengths.has_states()
    }

    /// Whether some content is kept for later requests at places of its own: states, or windows.
    pub(super) fn keeps_checkpoints(&self) -> bool {
        self.config.enable_caching && self.keeper.traffic.counted().is_some()
    }

    /// The next length at which a prefill has to pause so that a checkpoint can be taken: a chunk
    /// must not run across it.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn next_boundary(&self, handle: u64) -> Result<Option<u32>, Error> {
        let row = self.engine.requests.row(handle)?;
        if !self.keeps_states() {
            return Ok(None);
        }
        let request = &self.engine.requests.rows[row].rest;
        let progress = self.engine.requests.progress(row);
        let (plan, start) = if progress.running {
            (request.trail.plan(), progress.num_computed)
        } else {
            let hit = request.matched.as_ref().map(|it| it.hit).unwrap_or_default();
            (self.checkpoint_plan(row, hit), hit.num_tokens)
        };
        Ok(self.checkpoints().next(&plan, start))
    }

    /// Have the adopted checkpoint copied into the request's own slot.
    pub(super) fn fork(&mut self, row: usize) {
        let num_computed = self.engine.requests.progress(row).num_computed;
        let mut is_used = false;
        for group in self.engine.cache.state_groups() {
            let (request, tables) = self.engine.requests.split_mut(row);
            let table = &mut tables[group.id.index()];
            let Some(((_, src), dst)) = table.take_copy_source().zip(state::slot(table)) else {
                continue;
            };
            self.engine.cache.outbox.copies.push(BlockCopy { group: group.id, src, dst });
            self.engine.held.push((group.spec.pool, src));
            self.stats.forks += 1;
            if self.keeper.traffic.counts(group.id.index()) {
                let (trail, traffic) = (&mut request.rest.trail, &mut self.keeper.traffic);
                if let Some(origin) = trail.resume_state(traffic, src, num_computed) {
                    self.stats.origins[origin as usize].used += 1;
                }
            }
            is_used = true;
        }
        if is_used {
            self.score_checkpoint(row);
        }
    }

    /// Note that an admitted request resumes from windows, where those are checkpoints.
    pub(super) fn note_windows_used(&mut self, row: usize) {
        let Request { trail, matched, .. } = &mut self.engine.requests.rows[row].rest;
        let (traffic, groups) = (&mut self.keeper.traffic, &self.engine.cache.groups);
        let blocks = matched.as_ref().map_or(&[][..], |matched| &matched.blocks);
        trail.resume_windows(traffic, groups, blocks, trail.start);
    }

    /// Keep a copy of the state if the request has just reached a length where one is wanted and
    /// memory allows it.
    pub(super) fn leave_checkpoint(&mut self, row: usize) -> Result<(), Error> {
        if !self.keeps_states() {
            return Ok(());
        }
        let num_computed = self.engine.requests.progress(row).num_computed;
        let trail = &self.engine.requests.rows[row].rest.trail;
        let Some(reason) = self.checkpoints().reason(trail, num_computed) else { return Ok(()) };
        let follows = reason == Reason::Follow;
        let has_followed = follows && self.drop_following(row);
        let missing = self.missing_checkpoints(row);
        let cache = &mut self.engine.cache;
        cache.demand.fill(0);
        for group in &missing {
            cache.demand[group.spec.pool.index()] += 1;
        }
        if cache.reserve().is_err() {
            return Ok(());
        }
        let trail = &mut self.engine.requests.rows[row].rest.trail;
        trail.lengths.push(num_computed);
        if let Some(plan) = &mut trail.plan {
            if !follows {
                plan.num_taken += 1;
            } else if !missing.is_empty() {
                plan.following = num_computed;
            }
        }
        // All are taken before any is given up, so that none takes the place of another.
        let mut taken = Vec::with_capacity(missing.len());
        for group in &missing {
            let pool = group.spec.pool;
            let slot = state::slot(self.engine.requests.table(row, group.id));
            let near = slot.and_then(|src| self.engine.cache.store.slab_of(pool, src));
            self.engine.cache.take(pool, 1, near, &mut taken)?;
        }
        for (group, &dst) in missing.iter().zip(&taken) {
            if let Some(src) = state::slot(self.engine.requests.table(row, group.id)) {
                self.engine.cache.outbox.copies.push(BlockCopy { group: group.id, src, dst });
                self.insert_state(row, group, dst, has_followed);
            }
            self.stats.checkpoints += 1;
        }
        self.score_checkpoint(row);
        for (group, &dst) in missing.iter().zip(&taken) {
            self.engine.cache.store.free(group.spec.pool, std::iter::once(dst))?;
        }
        self.engine.cache.note_evictions();
        Ok(())
    }

    /// Give up the copy that followed the generation so far, unless somebody went on from it. Says
    /// whether there was one.
    fn drop_following(&mut self, row: usize) -> bool {
        let trail = &mut self.engine.requests.rows[row].rest.trail;
        let following = trail.plan.as_mut().map(|plan| std::mem::take(&mut plan.following));
        let Some(num_tokens) = following.filter(|&it| it > 0) else { return false };
        trail.give_up(num_tokens);
        for group in self.engine.cache.state_groups() {
            let digests = &self.engine.requests.rows[row].digests;
            if let Some(key) = group.key_at(digests, num_tokens) {
                self.engine.cache.store.discard(group.spec.pool, &key);
            }
        }
        self.engine.cache.note_evictions();
        true
    }

    /// Keep the slot of a request that ends, if its length allows it.
    pub(super) fn keep_final_state(&mut self, row: usize) {
        let progress = *self.engine.requests.progress(row);
        let plan = self.engine.requests.rows[row].rest.trail.plan();
        if !self.keeps_states()
            || !progress.running
            || !self.checkpoints().keeps_end(&plan, progress.num_computed)
        {
            return;
        }
        let missing = self.missing_checkpoints(row);
        if missing.is_empty() {
            return;
        }
        let has_followed = self.drop_following(row);
        self.engine.requests.rows[row].rest.trail.lengths.push(progress.num_computed);
        for group in missing {
            if let Some(slot) = state::slot(self.engine.requests.table(row, group.id)) {
                self.insert_state(row, &group, slot, has_followed);
            }
        }
        self.score_checkpoint(row);
    }

    /// Checkpoints that are still there and that nobody went on from so far, by origin.
    pub(super) fn unused_checkpoints(&self) -> [u64; Origin::ALL.len()] {
        let mut unused = [0; Origin::ALL.len()];
        let Some(group) = self.lengths.first_state else { return unused };
        let group = self.engine.cache.groups[group];
        let pool = self.engine.cache.store.pool(group.spec.pool);
        let index = self.engine.cache.store.prefix_index(group.spec.pool);
        for block in (0..pool.num_ids()).map(BlockId).filter(|&block| pool.is_hashed(block)) {
            if index.first_key(block).is_some_and(|(key, _)| key.group == group.id)
                && let Some(origin) = self.keeper.traffic.history.unused(block)
            {
                unused[origin as usize] += 1;
            }
        }
        unused
    }

    /// Groups that have no checkpoint yet where the request is.
    fn missing_checkpoints(&self, row: usize) -> Vec<Group> {
        let num_computed = self.engine.requests.progress(row).num_computed;
        let digests = &self.engine.requests.rows[row].digests;
        let mut groups = self.engine.cache.state_groups();
        let store = &self.engine.cache.store;
        groups.retain(|group| {
            let key = group.key_at(digests, num_computed);
            key.is_some_and(|key| store.get(group.spec.pool, &key).is_none())
        });
        groups
    }

    /// Let a block be found as the state where the request is. It takes the place of another one, maybe.
    fn insert_state(&mut self, row: usize, group: &Group, block: BlockId, has_followed: bool) {
        let num_tokens = self.engine.requests.progress(row).num_computed;
        let request = &self.engine.requests.rows[row];
        let Some(key) = group.key_at(&request.digests, num_tokens) else { return };
        self.engine.cache.store.insert_key(group.spec.pool, block, &key, num_tokens);
        if self.keeper.traffic.counts(group.id.index()) {
            let origin = request.rest.trail.leave(&mut self.keeper.traffic, block, num_tokens);
            self.stats.origins[origin as usize].written += u64::from(!has_followed);
        }
        let handle = self.engine.requests.handle(row);
        self.engine.cache.note(|| CacheEvent::StoredTail {
            handle,
            group: group.id,
            block_size: group.spec.block_size,
            num_tokens,
            digest: key.digest,
        });
    }
}
