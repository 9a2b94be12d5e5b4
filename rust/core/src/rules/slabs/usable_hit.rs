//! The longest hit that a request can use: a hit may lie scattered, and is shortened until the request
//! could come to its end with it if it were alone.
//!
//! The pools' slabs, each the greater of what the hit spreads over and what the longest request
//! fills, are then no more than there are. `progress_guarantee` has the rule after the start.

use crate::error::Error;
use crate::group::GroupBlocks;
use crate::group::{Group, GroupKind};
use crate::learn::ResumePoint;
use crate::learn::keeper::Keeper;
use crate::rules::vllm::{ComputedBlocks, Explained, KvCacheManager, RequestProgress};
use crate::store::Store;

impl<S: Store> KvCacheManager<S> {
    /// The longest cached prefix of at most `limit` tokens with which the request can come to its end.
    /// The hit decides the plan of checkpoints. [`ComputedBlocks::num_uncached`] is 0 unless one of them
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
}

/// A hit, as what a prompt resumes from. Where attention blocks go on behind it, no checkpoint is there.
fn resumed(hit: &ComputedBlocks) -> ResumePoint<'_> {
    let branch = if hit.num_uncached > 0 { hit.num_tokens + hit.num_uncached } else { 0 };
    ResumePoint { num_tokens: hit.num_tokens, branch, blocks: &hit.blocks }
}
