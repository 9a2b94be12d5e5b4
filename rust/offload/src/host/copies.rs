//! [`Copies`]: stores under way, whose chunks are copied one by one.

use hybrid_blocks::{BlockId, Key};
use rustc_hash::FxHashMap as HashMap;

use super::store::{Placement, StoreTicket};

/// A chunk that is being copied here.
#[derive(Debug)]
struct Pending {
    placement: Placement,
    /// The store it belongs to.
    store: u64,
}

/// A store, as long as one of its chunks is pending.
#[derive(Debug)]
struct Open {
    ticket: StoreTicket,
    num_pending: usize,
    num_found: usize,
}

/// Chunks that are being copied here, and their stores.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pending: HashMap<Key, Pending>,
    stores: HashMap<u64, Open>,
    next_store: u64,
    /// Bytes of the slots that chunks are being copied to.
    pub(super) bytes: u64,
}

impl Copies {
    pub(super) fn num_pending(&self) -> usize {
        self.pending.len()
    }

    /// Where a chunk is being copied to.
    pub(super) fn slot_of(&self, key: &Key) -> Option<BlockId> {
        self.pending.get(key).map(|pending| pending.placement.slot)
    }

    /// Begins the copies of a store that has any.
    pub(super) fn begin(&mut self, ticket: StoreTicket) {
        let store = self.next_store;
        self.next_store += 1;
        for placement in &ticket.placements {
            self.bytes += placement.bytes.end - placement.bytes.start;
            let pending = Pending { placement: placement.clone(), store };
            self.pending.insert(placement.key, pending);
        }
        let num_pending = ticket.placements.len();
        self.stores.insert(store, Open { ticket, num_pending, num_found: 0 });
    }

    /// Ends copies. Returns where the chunks lie, and the stores that have none left: without placements,
    /// and with whether one of their chunks can be found. Keys that are not on their way are passed over.
    pub(super) fn end(
        &mut self,
        keys: &[Key],
        succeeded: bool,
    ) -> (Vec<Placement>, Vec<(StoreTicket, bool)>) {
        let (mut placements, mut ended) = (Vec::new(), Vec::new());
        for key in keys {
            let Some(Pending { placement, store }) = self.pending.remove(key) else {
                continue;
            };
            self.bytes -= placement.bytes.end - placement.bytes.start;
            placements.push(placement);
            let Some(open) = self.stores.get_mut(&store) else { continue };
            open.num_pending -= 1;
            open.num_found += usize::from(succeeded);
            if open.num_pending > 0 {
                continue;
            }
            if let Some(Open { mut ticket, num_found, .. }) = self.stores.remove(&store) {
                // No later call finds these chunks.
                ticket.placements.clear();
                ended.push((ticket, num_found > 0));
            }
        }
        (placements, ended)
    }
}
