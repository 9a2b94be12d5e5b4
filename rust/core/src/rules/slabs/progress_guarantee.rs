//! Every admitted request comes to its end, though blocks never move.
//!
//! A hit may lie scattered: one live block holds a whole slab, whose rest serves the same pool only.
//! A request that holds slabs in this way may find none for its states, or for another pool, even
//! when it is the only one. Two rules prevent that.
//!
//! - A hit is shortened until the request could come to its end with it if it were alone: the pools'
//!   slabs, each the greater of what the hit spreads over and what the longest request fills, are no
//!   more than there are.
//! - A request may also be scattered by others that ran beside it and have ended. When it cannot grow
//!   although no other holds a block, it is preempted, as vLLM does. Once it is admitted again, no
//!   other is admitted next to it, until it waits for its client. It leaves no copies of states, and
//!   starts on a slab only where the pool's slabs have no room left but what it holds itself: what is
//!   cached in them goes first.

use crate::error::Error;
use crate::group::GroupBlocks;
use crate::group::{Group, GroupKind};
use crate::learn::ResumePoint;
use crate::learn::keeper::Keeper;
use crate::rules::vllm::{ComputedBlocks, Explained, KvCacheManager, RequestProgress};
use crate::store::Store;

impl<S: Store> KvCacheManager<S> {
    /// The longest cached prefix of at most `limit` tokens with which the request can come to its end.
    /// Its checkpoints are planned by that; [`ComputedBlocks::num_uncached`] is 0 unless one of them
    /// is where attention blocks go on to without states.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn longest_usable_hit(
        &mut self,
        handle: u64,
        limit: u32,
        progress: &RequestProgress,
    ) -> Result<ComputedBlocks, Error> {
        let row = self.engine.requests.row(handle)?;
        let Explained { mut hit, ended_by, attention } = self.explained_hit(handle, limit);
        let request = &mut self.engine.requests.rows[row].rest;
        (request.ended_by, request.attention) = (Some(ended_by), attention);
        let departure = self.placing_keeper().and_then(|keeper| {
            let (cache, digests) = (&self.engine.cache, &self.engine.requests.rows[row].digests);
            resumed(&hit).departure(&keeper.traffic, cache, digests, ended_by)
        });
        while hit.num_tokens > 0 && !self.finishes_with(&hit.blocks, progress.num_tokens) {
            self.stats.shortened += 1;
            hit = self.explained_hit(handle, hit.num_tokens / 2).hit;
        }
        if self.placing_keeper().is_none() {
            return Ok(hit);
        }
        let request = &mut self.engine.requests.rows[row].rest;
        request.shared = departure;
        request.trail.is_known = progress.was_preempted;
        self.plan_from(row, progress.num_prompt, &resumed(&hit));
        let plan = &self.engine.requests.rows[row].rest.trail.plan;
        if plan.is_none_or(|plan| plan.branch == 0) || !self.config.has_states() {
            hit.num_uncached = 0;
        }
        Ok(hit)
    }

    /// Returns the keeper where it decides at which lengths requests leave checkpoints.
    fn placing_keeper(&self) -> Option<&Keeper> {
        self.keeper.as_deref().filter(|_| self.config.checkpoints.is_some())
    }

    /// Whether a request of `num_tokens` known tokens that starts with these blocks comes to its end
    /// when it is alone.
    fn finishes_with(&self, hit: &GroupBlocks, num_tokens: u32) -> bool {
        let store = &self.engine.cache.store;
        if !store.is_slabbed() {
            return true;
        }
        let spread: Vec<u64> = (0..store.num_pools()).map(|pool| self.spread(hit, pool)).collect();
        let num_forks = self
            .groups()
            .filter(|(group, _)| group.kind().is_aligned())
            .filter(|(group, _)| hit[group.id.index()].iter().any(|block| !block.is_null()));
        let num_forks = num_forks.count() as u64;
        let longest = self.config.max_model_len;
        // A drafter may look ahead as far as it drafts.
        let num_drafts = self.groups().map(|(group, _)| group.kind().num_speculative()).max();
        let num_admitted = num_tokens + num_drafts.unwrap_or(0);
        // The sources of forks are held until their copies are made, at admission.
        self.slabs_for(longest, &spread) <= store.num_slabs()
            && self.slabs_for(num_admitted.min(longest), &spread) + num_forks <= store.num_slabs()
    }

    /// Slabs of a pool that hold attention blocks of a hit.
    fn spread(&self, hit: &GroupBlocks, pool: u32) -> u64 {
        let own = self
            .groups()
            .filter(|(group, _)| group.spec.pool.0 == pool && !group.kind().is_aligned());
        let store = &self.engine.cache.store;
        let mut slabs = Vec::new();
        for (group, _) in own {
            for &block in &hit[group.id.index()] {
                let slab = store.slab_of(group.spec.pool, block);
                if slab.is_some() && slabs.last() != Some(&slab) {
                    slabs.push(slab);
                }
            }
        }
        slabs.sort_unstable();
        slabs.dedup();
        slabs.len() as u64
    }

    /// Most slabs that a request of `num_tokens` tokens holds at once, if it starts on that many.
    fn slabs_for(&self, num_tokens: u32, spread: &[u64]) -> u64 {
        let store = &self.engine.cache.store;
        let mut blocks = vec![0; spread.len()];
        for (group, cap) in self.groups() {
            let most = match group.kind() {
                kind @ GroupKind::MambaAligned { .. } => 1 + u64::from(kind.num_speculative()),
                _ => group.table_len(u64::from(num_tokens)),
            };
            blocks[group.spec.pool.index()] += cap.map_or(most, |cap| most.min(u64::from(cap)));
        }
        let pools = (0..).map(crate::ids::PoolId).zip(blocks.into_iter().zip(spread));
        pools
            .map(|(pool, (blocks, &spread))| {
                blocks.div_ceil(u64::from(store.blocks_per_slab(pool))).max(spread)
            })
            .sum()
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = (&Group, Option<u32>)> {
        let caps = self.config.groups.iter().map(|group| group.admission_cap);
        self.engine.cache.groups.iter().zip(caps)
    }

    /// Whether a request that holds nothing yet must wait for another one, which runs alone.
    pub(crate) fn must_wait(&self, row: usize) -> bool {
        let Some(alone) = &self.alone else { return false };
        let requests = &self.engine.requests;
        requests.find(alone).is_some_and(|handle| {
            self.row(handle).is_some_and(|other| other != row && self.holds_blocks(other))
        }) && !self.holds_blocks(row)
    }

    /// Whether the request that is to run alone is still known.
    pub(crate) fn runs_alone(&self) -> bool {
        self.alone.as_ref().is_some_and(|alone| self.engine.requests.find(alone).is_some())
    }

    /// Notes that a request could not grow. If no other holds blocks it runs alone from now on.
    pub(crate) fn note_stuck(&mut self, row: usize) {
        if !self.store().is_slabbed() || !self.holds_blocks(row) {
            return;
        }
        if !self.others_hold_blocks(row) {
            let request = &mut self.engine.requests.rows[row];
            request.rest.is_stuck = true;
            self.alone = Some(request.id.clone());
        }
    }

    /// Notes that a request waits for its client. It may do so for long, so no other waits for it.
    pub fn pause(&mut self, handle: u64) {
        let Some(row) = self.row(handle) else { return };
        self.take_back_promise(handle);
        self.engine.requests.rows[row].rest.is_stuck = false;
        if self.is_alone(row) {
            self.alone = None;
        }
    }

    /// Whether a request alone holds blocks, and cannot grow with them. Where it waits, no step
    /// preempts it: the caller frees it, and admits it again.
    pub fn is_stuck(&self, handle: u64) -> bool {
        self.row(handle).is_some_and(|row| self.engine.requests.rows[row].rest.is_stuck)
    }

    /// Whether the request of a row is to run alone.
    pub(crate) fn is_alone(&self, row: usize) -> bool {
        self.alone.as_ref() == Some(&self.engine.requests.rows[row].id)
    }

    /// Whether another request than that of a row holds blocks.
    pub(crate) fn others_hold_blocks(&self, row: usize) -> bool {
        self.engine.requests.taken().any(|other| other != row && self.holds_blocks(other))
    }

    pub(crate) fn holds_blocks(&self, row: usize) -> bool {
        self.engine.requests.tables(row).iter().any(|table| !table.blocks.is_empty())
    }
}

/// A hit, as what a prompt resumes from. Where attention blocks go on behind it, no checkpoint is there.
fn resumed(hit: &ComputedBlocks) -> ResumePoint<'_> {
    let branch = if hit.num_uncached > 0 { hit.num_tokens + hit.num_uncached } else { 0 };
    ResumePoint { num_tokens: hit.num_tokens, branch, blocks: &hit.blocks }
}
