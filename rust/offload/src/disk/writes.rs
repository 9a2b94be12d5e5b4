//! Writes: which segment takes new chunks, and when it is sealed.

use std::io;

use hybrid_blocks::Key;

use super::entry::Entry;
use super::files::Name;
use super::format::{Header, MOST_ENTRIES};
use super::jobs::{WriteJob, lay_out, padded};
use super::seal::SealJob;
use super::tier::DiskTier;
use crate::io::PAGE;

/// The next need of a write of chunks.
#[derive(Debug)]
pub enum WritePlan {
    /// Nothing: run this.
    Job(WriteJob),
    /// A new segment; see [`DiskTier::begin_segment`].
    NeedsSegment,
    /// All chunks are there or too large for a segment, or nothing can be written now.
    Nothing,
}

impl DiskTier {
    pub(super) fn header(&self, number: u64) -> Header {
        Header { namespace: self.namespace, number }
    }

    /// Plans the writing of chunks (name, tokens and bytes each) that are not there yet, as many as the
    /// current segment takes. With `replace`, chunks are written that are there already.
    pub fn plan_write(&mut self, chunks: &[(Key, u32, u32)], replace: bool) -> WritePlan {
        if self.is_paused() {
            return WritePlan::Nothing;
        }
        let is_new = |(_, (key, _, num_bytes)): &(usize, &(Key, u32, u32))| {
            *num_bytes > 0
                && self.room_of(1) >= padded(*num_bytes)
                && (replace || self.index.find(key).is_none())
        };
        let wanted: Vec<_> = chunks.iter().enumerate().filter(is_new).collect();
        let Some(&(_, &(_, _, first))) = wanted.first() else { return WritePlan::Nothing };
        let Some(number) = self.current.filter(|&it| self.room_in(it, 1) >= padded(first)) else {
            self.close_current();
            return WritePlan::NeedsSegment;
        };
        let (mut used, mut taken) = (0, Vec::new());
        for (at, &(key, num_tokens, num_bytes)) in wanted {
            let after = used + padded(num_bytes);
            if after > self.room_in(number, taken.len() as u64 + 1) {
                break;
            }
            used = after;
            taken.push((at, Entry { key, num_tokens, offset: 0, num_bytes, checksum: 0 }));
        }
        let (chunks, entries): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        let segment = self.segments.get_mut(&number);
        let Some((file, writer)) =
            segment.and_then(|it| Some((it.file.clone()?, it.writer.as_mut()?)))
        else {
            return WritePlan::NeedsSegment;
        };
        writer.num_entries += entries.len() as u64;
        writer.num_pending += 1;
        let (batches, end) = lay_out(number, writer.end, entries);
        writer.end = end;
        WritePlan::Job(WriteJob { number, seed: self.header(number).seed(), file, batches, chunks })
    }

    /// Bytes for chunks in an empty segment of `num_entries` entries.
    fn room_of(&self, num_entries: u64) -> u64 {
        self.room_after(PAGE as u64, 0, num_entries)
    }

    fn room_in(&self, number: u64, more: u64) -> u64 {
        let writer = self.segments.get(&number).and_then(|segment| segment.writer);
        writer.map_or(0, |writer| self.room_after(writer.end, writer.num_entries, more))
    }

    fn room_after(&self, end: u64, num_entries: u64, more: u64) -> u64 {
        let page = PAGE as u64;
        let batch_pages = more.div_ceil(MOST_ENTRIES as u64) * page;
        let entries = ((num_entries + more) * Entry::LEN as u64).next_multiple_of(page);
        self.segment_bytes.saturating_sub(end + batch_pages + entries + page)
    }

    /// Stops writing to the current segment. It is sealed once its jobs have ended.
    pub fn close_current(&mut self) {
        let segment = self.current.take().and_then(|number| self.segments.get_mut(&number));
        if let Some(writer) = segment.and_then(|segment| segment.writer.as_mut()) {
            writer.is_closing = true;
        }
    }

    /// Ends a write. After a success its chunks are found; after an error none of them is, its segment is
    /// closed, and nothing is written for a while, unless old segments can make room.
    pub fn complete_write(&mut self, job: WriteJob, result: &io::Result<()>) {
        let Some(segment) = self.segments.get_mut(&job.number) else { return };
        if let Some(writer) = &mut segment.writer {
            writer.num_pending -= 1;
        }
        match result {
            Ok(()) => {
                for entry in job.batches.into_iter().flat_map(|batch| batch.page.entries) {
                    self.failures.forget(&entry.key);
                    let (slot, _) = self.index.insert(entry, job.number);
                    segment.slots.push(slot);
                }
            }
            Err(error) => {
                if self.current == Some(job.number) {
                    self.close_current();
                }
                self.note_failed_write("a write", error);
            }
        }
    }

    /// Segments that are full and have no job under way, to be sealed.
    pub fn take_seals(&mut self) -> Vec<SealJob> {
        if self.is_paused() {
            return Vec::new();
        }
        let namespace = self.namespace;
        let ready = self.segments.iter_mut().filter_map(|(&number, segment)| {
            let writer = segment.writer.as_mut()?;
            if !writer.is_closing || writer.num_pending > 0 {
                return None;
            }
            let file = segment.file.clone()?;
            writer.num_pending += 1;
            let held = segment.slots.iter().filter_map(|&slot| self.index.get(slot));
            let entries = held.filter(|held| held.segment == number).map(|held| held.entry);
            Some(SealJob {
                header: Header { namespace, number },
                file,
                end: writer.end,
                entries: entries.collect(),
                from: self.folder.path_of(Name { number, is_sealed: false }),
                to: self.folder.path_of(Name { number, is_sealed: true }),
            })
        });
        ready.collect()
    }

    /// Ends the sealing of a segment. After an error it is tried again later.
    pub fn complete_seal(&mut self, job: &SealJob, result: &io::Result<u64>) {
        let Some(segment) = self.segments.get_mut(&job.header.number) else { return };
        match result {
            Ok(num_bytes) => {
                segment.num_bytes = *num_bytes;
                segment.writer = None;
                segment.file = None;
            }
            Err(error) => {
                if let Some(writer) = &mut segment.writer {
                    writer.num_pending -= 1;
                }
                self.note_failed_write("sealing a segment", error);
            }
        }
    }
}
