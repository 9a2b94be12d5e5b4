//! [`Scan`]: the batch pages of a segment without a footer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::format::{BatchPage, Header};
use super::jobs::Batch;
use crate::io::PAGE;

/// Bytes that are read at a time.
const WINDOW: u64 = 256 << 10;

/// Goes from batch to batch. Writers take places in a row but end in any order. Behind a page that
/// is no batch of this segment, each following page may be one.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    file: &'a File,
    header: Header,
    num_bytes: u64,
    /// The next page to look at.
    at: u64,
    window: Vec<u8>,
    window_start: u64,
}

impl<'a> Scan<'a> {
    /// The batches of a segment in a file of `num_bytes`.
    pub(super) fn new(file: &'a File, header: Header, num_bytes: u64) -> Self {
        Self { file, header, num_bytes, at: PAGE as u64, window: Vec::new(), window_start: 0 }
    }

    /// The next batch that was written to this place of this segment.
    pub(super) fn next(&mut self) -> io::Result<Option<Batch>> {
        while self.at + PAGE as u64 <= self.num_bytes {
            let offset = self.at;
            let header = self.header;
            let page = BatchPage::decode(self.page()?, header.seed());
            let page = page.filter(|page| page.number == header.number);
            let batch = page.map(|page| Batch { offset, page }).filter(Batch::is_in_place);
            self.at = batch.as_ref().map_or(offset + PAGE as u64, |batch| batch.page.next);
            if batch.is_some() {
                return Ok(batch);
            }
        }
        Ok(None)
    }

    fn page(&mut self) -> io::Result<&[u8]> {
        let end = self.window_start + self.window.len() as u64;
        if self.at < self.window_start || self.at + PAGE as u64 > end {
            let len = WINDOW.min(self.num_bytes - self.at);
            self.window.resize(len as usize, 0);
            self.window_start = self.at;
            if let Err(error) = self.file.read_exact_at(&mut self.window, self.at) {
                self.window.clear();
                return Err(error);
            }
        }
        let start = (self.at - self.window_start) as usize;
        Ok(&self.window[start..start + PAGE])
    }
}
