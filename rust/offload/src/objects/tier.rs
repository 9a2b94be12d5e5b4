//! [`ObjectTier`]: which chunks a store of objects holds, and which are on their way to it.

use std::collections::HashSet;
use std::fmt::Display;
use std::time::{Duration, Instant};

use hybrid_blocks::{BlockId, Key};

use super::index::ObjectIndex;
use super::refusal::MOST_IN_A_ROW;
use crate::failures::Failures;
use crate::plan::{Previous, Tier};
use crate::warning::{WarningKind, Warnings};

/// Bookkeeping of one namespace in one store. It waits for nothing.
#[derive(Debug)]
pub struct ObjectTier {
    pub(super) index: ObjectIndex,
    uploads: HashSet<Key>,
    queued_bytes: u64,
    num_listings: u32,
    paused_until: Option<Instant>,
    /// Objects that could not be read or written lately, and how many in a row.
    failures: Failures,
    num_in_a_row: u32,
    retry_after: Duration,
    location: String,
    warnings: Warnings,
}

impl ObjectTier {
    pub(super) fn new(location: String, retry_after: Duration, warnings: Warnings) -> Self {
        Self {
            index: ObjectIndex::default(),
            uploads: HashSet::new(),
            queued_bytes: 0,
            num_listings: 0,
            paused_until: None,
            failures: Failures::new(retry_after),
            num_in_a_row: 0,
            retry_after,
            location,
            warnings,
        }
    }

    /// Objects that are known.
    pub fn num_chunks(&self) -> usize {
        self.index.len()
    }

    /// Chunks that wait for their upload or are being uploaded.
    pub fn num_uploads(&self) -> usize {
        self.uploads.len()
    }

    /// How often the store has been listed to the end.
    pub fn num_listings(&self) -> u32 {
        self.num_listings
    }

    /// Whether the store is not used for now because it refused.
    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    pub(super) fn pause(&mut self, what: &str, error: &dyn Display) {
        self.paused_until = Some(Instant::now() + self.retry_after);
        let message = format!(
            "{what} {} failed: {error}; it is not used for {} s, requests go on",
            self.location,
            self.retry_after.as_secs()
        );
        self.warnings.warn(WarningKind::Refused, message);
    }

    /// Notes that one object could not be read or written: it is not used for a while, and after several in a
    /// row the store is not.
    pub(super) fn fail(&mut self, key: &Key, what: &str, error: &dyn Display) {
        self.failures.note(key);
        self.num_in_a_row += 1;
        if self.num_in_a_row >= MOST_IN_A_ROW {
            self.num_in_a_row = 0;
            self.pause(what, error);
            return;
        }
        let message = format!(
            "{what} {} failed: {error}; this object is not used for {} s, others are",
            self.location,
            self.retry_after.as_secs()
        );
        self.warnings.warn(WarningKind::Read, message);
    }

    /// Notes that an object was read or written.
    pub(super) fn succeed(&mut self, key: &Key) {
        self.num_in_a_row = 0;
        self.failures.forget(key);
    }

    /// Says that a listing passed something by.
    pub(super) fn passed_by(&mut self, error: &dyn Display) {
        let message = format!("an entry in {} is left alone: {error}", self.location);
        self.warnings.warn(WarningKind::Foreign, message);
    }

    /// Takes an upload into the queue, unless the object is there or on its way, or the queue is full.
    /// Returns whether an object that is there is to be replaced.
    pub(super) fn begin_upload(
        &mut self,
        key: &Key,
        num_bytes: u64,
        queue_bytes: u64,
    ) -> Option<bool> {
        let is_refused = self.is_paused()
            || self.index.contains(key)
            || self.failures.contains(key)
            || (self.queued_bytes > 0 && self.queued_bytes + num_bytes > queue_bytes)
            || !self.uploads.insert(*key);
        (!is_refused).then(|| {
            self.queued_bytes += num_bytes;
            self.index.is_damaged(key)
        })
    }

    /// Ends an upload, after which the object is there or not.
    pub(super) fn end_upload(&mut self, key: &Key, num_bytes: u64, is_there: bool) {
        self.uploads.remove(key);
        self.queued_bytes -= num_bytes;
        if is_there {
            self.index.insert(key);
        }
    }

    pub(super) fn damaged(&mut self, key: &Key) {
        self.index.mark_damaged(key);
        let message = format!(
            "a chunk of group {} in {} is damaged; it is computed anew and written again",
            key.group, self.location
        );
        self.warnings.warn(WarningKind::Damaged, message);
    }

    pub(super) fn end_listing(&mut self) {
        self.index.end_listing();
        self.num_listings = self.num_listings.saturating_add(1);
    }
}

/// A paused store holds nothing. Objects are read by key, so the slot says nothing.
impl Tier for ObjectTier {
    fn find(&self, key: &Key, _: Previous) -> Option<BlockId> {
        let is_there =
            self.index.contains(key) && !self.is_paused() && !self.failures.contains(key);
        is_there.then_some(BlockId(1))
    }
}
