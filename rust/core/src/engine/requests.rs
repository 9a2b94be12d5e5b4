//! Requests, their handles and their tables.

use std::fmt::Debug;
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::group::{Table, empty};
use crate::ids::GroupId;
use hybrid_blocks_hash::Digest;

/// State that a set of rules keeps of each request.
pub(crate) trait RequestState: Debug {
    /// The part that a step reads for every request. At most 24 bytes keep two requests in a cache line.
    type Progress: Copy + Debug + Default;
    /// The part that only some calls read.
    type Rest: Debug + Default;
}

/// The part of a request that a step looks at.
#[derive(Clone, Copy, Debug, Default)]
struct Slot<P> {
    generation: u32,
    /// The last batched call that named the request.
    stamp: u32,
    progress: P,
}

/// The part of a request that a step that changes nothing does not look at.
#[derive(Debug, Default)]
pub(crate) struct Row<T> {
    pub(crate) id: String,
    /// Chained digests, one a hash block of known tokens.
    pub(crate) digests: Vec<Digest>,
    pub(crate) rest: T,
}

/// All requests. A handle is a row and the row's generation, so that a handle of a freed request
/// names nothing.
#[derive(Debug)]
pub(crate) struct Requests<R: RequestState> {
    slots: Vec<Slot<R::Progress>>,
    pub(crate) rows: Vec<Row<R::Rest>>,
    /// One a group of every row, see [`Requests::tables_of`].
    pub(crate) tables: Vec<Table>,
    num_groups: usize,
    vacant: Vec<u32>,
    by_id: FxHashMap<String, u32>,
    call: u32,
}

/// Generations stay below this, so that a handle fits a signed 64-bit integer. Those of vacant rows
/// have the bit set: no handle carries it.
const VACANT: u32 = 1 << 31;

/// The row of a handle that is known to be good.
#[inline]
pub(crate) fn known_row(handle: u64) -> usize {
    handle as u32 as usize
}

impl<R: RequestState> Requests<R> {
    pub(crate) fn new(num_groups: usize) -> Self {
        Self {
            slots: Vec::new(),
            rows: Vec::new(),
            tables: Vec::new(),
            num_groups,
            vacant: Vec::new(),
            by_id: FxHashMap::default(),
            call: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Adds a request that is not known.
    pub(crate) fn add(&mut self, id: &str) -> Result<u64, Error> {
        if self.by_id.contains_key(id) {
            return Err(Error::DuplicateRequest(id.to_owned()));
        }
        let row = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: VACANT, ..Slot::default() });
            self.rows.push(Row::default());
            self.tables.resize_with(self.rows.len() * self.num_groups, Table::default);
            self.rows.len() as u32 - 1
        });
        self.slots[row as usize].generation &= !VACANT;
        id.clone_into(&mut self.rows[row as usize].id);
        self.by_id.insert(id.to_owned(), row);
        Ok(self.handle(row as usize))
    }

    pub(crate) fn handle(&self, row: usize) -> u64 {
        u64::from(self.slots[row].generation) << 32 | row as u64
    }

    pub(crate) fn find(&self, id: &str) -> Option<u64> {
        self.by_id.get(id).map(|&row| self.handle(row as usize))
    }

    /// The row of a handle.
    #[inline]
    pub(crate) fn row(&self, handle: u64) -> Result<usize, Error> {
        let (row, generation) = (known_row(handle), (handle >> 32) as u32);
        match self.slots.get(row) {
            Some(slot) if slot.generation == generation => Ok(row),
            _ => Err(Error::UnknownRequest { handle }),
        }
    }

    #[inline]
    pub(crate) fn progress(&self, row: usize) -> &R::Progress {
        &self.slots[row].progress
    }

    #[inline]
    pub(crate) fn progress_mut(&mut self, row: usize) -> &mut R::Progress {
        &mut self.slots[row].progress
    }

    /// Where the tables of a row are, by group.
    #[inline]
    pub(crate) fn tables_of(&self, row: usize) -> Range<usize> {
        row * self.num_groups..(row + 1) * self.num_groups
    }

    /// The tables of a row.
    #[inline]
    pub(crate) fn tables(&self, row: usize) -> &[Table] {
        &self.tables[self.tables_of(row)]
    }

    /// A row and its tables.
    #[inline]
    pub(crate) fn split_mut(&mut self, row: usize) -> (&mut Row<R::Rest>, &mut [Table]) {
        let tables = self.tables_of(row);
        (&mut self.rows[row], &mut self.tables[tables])
    }

    /// The table of a row in one group.
    pub(crate) fn table(&self, row: usize, group: GroupId) -> &Table {
        &self.tables(row)[group.index()]
    }

    /// Checks that all handles are known and different.
    pub(crate) fn check_batch(&mut self, handles: &[u64]) -> Result<(), Error> {
        self.call = self.call.wrapping_add(1);
        for &handle in handles {
            let row = self.row(handle)?;
            if std::mem::replace(&mut self.slots[row].stamp, self.call) == self.call {
                return Err(Error::InvalidArgument(format!("handle {handle} is given twice")));
            }
        }
        Ok(())
    }

    /// Forgets a request. Its tables must be empty; their memory is kept for the next one.
    pub(crate) fn remove(&mut self, row: usize) {
        let own = &mut self.rows[row];
        self.by_id.remove(&own.id);
        own.id.clear();
        empty(&mut own.digests);
        own.rest = R::Rest::default();
        let generation = ((self.slots[row].generation + 1) % VACANT) | VACANT;
        self.slots[row] = Slot { generation, ..Slot::default() };
        self.vacant.push(row as u32);
    }

    /// Rows in use, in no order.
    pub(crate) fn taken(&self) -> impl Iterator<Item = usize> + '_ {
        self.by_id.values().map(|&row| row as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NoRules;

    impl RequestState for NoRules {
        type Progress = u32;
        type Rest = ();
    }

    #[test]
    fn a_handle_of_a_freed_request_names_nothing_even_when_its_row_is_used_again() {
        let mut requests = Requests::<NoRules>::new(1);
        let first = requests.add("a").unwrap();
        requests.remove(known_row(first));
        assert_eq!(requests.row(first), Err(Error::UnknownRequest { handle: first }));
        let second = requests.add("b").unwrap();
        assert_eq!(second as u32, first as u32, "the row is used again");
        assert!(requests.row(first).is_err());
        assert_eq!(requests.row(second), Ok(0));
        assert_eq!((requests.find("a"), requests.find("b")), (None, Some(second)));
    }

    #[test]
    fn generations_begin_anew_before_a_handle_outgrows_63_bits() {
        let mut requests = Requests::<NoRules>::new(0);
        let row = known_row(requests.add("a").unwrap());
        requests.slots[row].generation = VACANT - 1;
        let last = requests.find("a").unwrap();
        assert!(i64::try_from(last).is_ok());
        requests.remove(row);
        assert_eq!(requests.add("b"), Ok(0));
        assert!(requests.row(last).is_err());
    }
}
