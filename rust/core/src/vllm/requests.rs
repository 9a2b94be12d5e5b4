//! Requests by handle.

use rustc_hash::FxHashMap;

use crate::error::Error;

use super::request::Request;

#[derive(Debug)]
struct Row {
    id: Box<str>,
    generation: u32,
    /// `None` while the row is vacant.
    request: Option<Request>,
}

/// All requests. A handle is a row and the row's generation, so that the handle of a freed request
/// names nothing.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    rows: Vec<Row>,
    vacant: Vec<u32>,
    by_id: FxHashMap<Box<str>, u32>,
}

impl Requests {
    fn handle(&self, row: u32) -> u64 {
        u64::from(self.rows[row as usize].generation) << 32 | u64::from(row)
    }

    /// The handle of `id`, which is added if it is not known.
    pub(crate) fn add(&mut self, id: &str, num_groups: usize) -> u64 {
        if let Some(handle) = self.find(id) {
            return handle;
        }
        let request = Some(Request::new(num_groups));
        let row = if let Some(row) = self.vacant.pop() {
            let vacant = &mut self.rows[row as usize];
            *vacant = Row { id: id.into(), generation: vacant.generation, request };
            row
        } else {
            self.rows.push(Row { id: id.into(), generation: 0, request });
            self.rows.len() as u32 - 1
        };
        self.by_id.insert(id.into(), row);
        self.handle(row)
    }

    pub(crate) fn find(&self, id: &str) -> Option<u64> {
        self.by_id.get(id).map(|&row| self.handle(row))
    }

    #[inline]
    fn row(&self, handle: u64) -> Option<&Row> {
        self.rows.get(handle as u32 as usize).filter(|row| row.generation == (handle >> 32) as u32)
    }

    #[inline]
    pub(crate) fn get(&self, handle: u64) -> Option<&Request> {
        self.row(handle)?.request.as_ref()
    }

    pub(crate) fn get_mut(&mut self, handle: u64) -> Result<(&str, &mut Request), Error> {
        let row = self.rows.get_mut(handle as u32 as usize);
        row.filter(|row| row.generation == (handle >> 32) as u32)
            .and_then(|row| Some((&*row.id, row.request.as_mut()?)))
            .ok_or(Error::UnknownRequest { handle })
    }

    pub(crate) fn remove(&mut self, handle: u64) -> Option<(Box<str>, Request)> {
        self.row(handle)?;
        let row = handle as u32;
        let freed = &mut self.rows[row as usize];
        let request = freed.request.take()?;
        let id = std::mem::take(&mut freed.id);
        self.by_id.remove(&id);
        // A row whose generations are used up stays vacant for good.
        if let Some(next) = freed.generation.checked_add(1) {
            freed.generation = next;
            self.vacant.push(row);
        }
        Some((id, request))
    }

    /// Ids and requests, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Request)> {
        self.rows.iter().filter_map(|row| Some((&*row.id, row.request.as_ref()?)))
    }
}
