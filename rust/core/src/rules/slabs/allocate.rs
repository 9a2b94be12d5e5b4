//! Hooks of an allocation: vLLM's steps call them before and after they look for room.

use crate::error::Error;
use crate::ids::BlockId;
use crate::rules::vllm::{AllocateArgs, Call, TokenCounts};
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    /// Plans copies of states before the step and its copies need room.
    pub(crate) fn before_fit(&mut self, args: &AllocateArgs<'_>, counts: TokenCounts) {
        if !args.is_load() {
            self.slabs.left_to_others.clear();
        }
        self.slabs.copy_reason = self.plan_copies();
        if !args.is_load() {
            self.plan_inside(counts);
        }
    }

    /// Makes room for a request that does not fit: without states to be kept from inside its chunk. A running one also
    /// goes without the copies planned for it, and then without checkpoints of others that no request resumes from.
    /// Returns whether it fits.
    pub(crate) fn make_room(
        &mut self,
        computed: Option<&[Vec<BlockId>]>,
        counts: TokenCounts,
        kept: i64,
    ) -> Result<bool, Error> {
        if !self.is_running() {
            return Ok(self.fits_with_fewer_inside(computed, counts, kept));
        }
        self.slabs.left_to_others.clear();
        if self.slabs.copy_reason.take().is_some() {
            self.slabs.num_cancelled = self.cancel_copies();
            if self.fits(computed, counts, kept) {
                return Ok(true);
            }
        }
        if self.fits_with_fewer_inside(computed, counts, kept) {
            return Ok(true);
        }
        if self.config.checkpoints.is_some() && self.fits_without_copies(kept) {
            while self.give_up_shortest_checkpoint()? || self.give_up_latest_copies()? {
                if self.fits(computed, counts, kept) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Notes what an allocation that has room does, after `num_computed` tokens, and keys its copies.
    pub(crate) fn after_fit(
        &mut self,
        args: &AllocateArgs<'_>,
        num_computed: u32,
    ) -> Result<(), Error> {
        if args.is_load() {
            self.request.is_loading = true;
            self.request.trail.loaded = num_computed;
        }
        self.stats.no_room += self.slabs.num_cancelled;
        if let Some(ended_by) = self.request.ended_by.take() {
            self.stats.limits[ended_by as usize] += 1;
        }
        if let Some(reason) = self.slabs.copy_reason.take() {
            self.key_copies(reason)?;
        }
        self.count_inside();
        self.observe();
        Ok(())
    }
}
