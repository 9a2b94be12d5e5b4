//! Every admitted request comes to its end, though blocks never move.
//!
//! One live block holds a whole slab, whose rest serves the same pool only. A request that holds slabs
//! in this way may find none for its states, or for another pool, even when it is the only one. Two
//! rules prevent that.
//!
//! - A hit is shortened until the request could come to its end with it alone: `usable_hit`.
//! - A request may also be scattered by others that ran beside it and have ended. When it cannot grow
//!   although no other holds a block, it is preempted, as vLLM does. Once it is admitted again, no
//!   other is admitted next to it, until it waits for its client. It leaves no copies of states, and
//!   starts on a slab only where the pool's slabs have no room left but what it holds itself: what is
//!   cached in them goes first.

use crate::rules::vllm::KvCacheManager;
use crate::store::Store;

impl<S: Store> KvCacheManager<S> {
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
