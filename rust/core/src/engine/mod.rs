//! The engine: requests, their tables in every group, and the prefix cache between them. It carries
//! out decisions: `rules` decides what may be hit, kept, evicted and admitted.
//!
//! ```text
//! lookup <- outbox <- cache ─┐
//!                 requests ──┴─ engine <- check, held_slabs
//! ```

pub(crate) mod cache;
mod check;
mod held_slabs;
pub(crate) mod hit;
pub(crate) mod lookup;
pub(crate) mod outbox;
pub(crate) mod requests;

pub use held_slabs::{ByteSizes, ReservedBytes};
pub use lookup::LookupGroup;
pub use outbox::{BlockCopy, CacheEvent, PrefillCheckpoint, Residency};

use crate::error::Error;
use crate::ids::{BlockId, GroupId};
use crate::store::Store;
use cache::Cache;
use requests::{RequestState, Requests};

/// Blocks and requests.
#[derive(Debug)]
pub(crate) struct Engine<S, R: RequestState> {
    pub(crate) cache: Cache<S>,
    pub(crate) requests: Requests<R>,
}

impl<S: Store, R: RequestState> Engine<S, R> {
    pub(crate) fn new(cache: Cache<S>) -> Self {
        Self { requests: Requests::new(cache.groups.len()), cache }
    }

    /// A request's blocks in one group, by position; null where nothing is kept.
    pub(crate) fn blocks(&self, handle: u64, group: GroupId) -> Result<&[BlockId], Error> {
        let row = self.requests.row(handle)?;
        let num_groups = self.cache.groups.len() as u32;
        let table = self.requests.tables(row).get(group.index());
        Ok(&table.ok_or(Error::UnknownGroup { group, num_groups })?.blocks)
    }

    /// Gives back all blocks of a request.
    pub(crate) fn release(&mut self, row: usize) -> Result<(), Error> {
        let (_, tables) = self.requests.split_mut(row);
        self.cache.release(tables)
    }
}
