//! [`MakeJob`]: a new segment's file.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::files::Name;
use super::format::Header;
use super::segment::{Segment, Writer};
use super::storage::Storage;
use super::tier::DiskTier;
use crate::io::PAGE;
use crate::warning::WarningKind;

/// The making of one segment. It waits for the disk, so it runs without the tier's lock.
#[derive(Debug)]
#[must_use = "no other segment is made before the job is completed"]
pub struct MakeJob {
    header: Header,
    path: PathBuf,
    num_bytes: u64,
    direct: bool,
}

impl MakeJob {
    /// Makes the file.
    ///
    /// # Errors
    /// As the operating system's.
    pub fn run(&self, storage: &dyn Storage) -> io::Result<File> {
        storage.create(&self.path, self.num_bytes, &self.header.encode(), self.direct)
    }
}

impl DiskTier {
    /// Plans a new segment, whose bytes count from now on. `None` where the bound has no room for it, nothing
    /// is written now, or another one is being made. On a disk that is full it is made only as the
    /// `last_resort`.
    pub fn begin_segment(&mut self, last_resort: bool) -> Option<MakeJob> {
        let is_full = if last_resort { self.is_over_bound() } else { self.needs_eviction() };
        if self.is_paused() || self.making.is_some() || is_full {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.making = Some(number);
        Some(MakeJob {
            header: self.header(number),
            path: self.folder.path_of(Name { number, is_sealed: false }),
            num_bytes: self.segment_bytes,
            direct: self.config.direct,
        })
    }

    /// Ends the making of a segment. After a success new chunks go to it. Returns whether another try may do
    /// better: its number was taken, or the disk is full and old segments can make room.
    pub fn complete_segment(&mut self, job: &MakeJob, result: io::Result<File>) -> bool {
        self.making = None;
        match result {
            Ok(file) => {
                self.full_at = None;
                self.close_current();
                let end = PAGE as u64;
                let writer = Writer { end, num_entries: 0, num_pending: 0, is_closing: false };
                let segment = Segment {
                    num_bytes: self.segment_bytes,
                    file: Some(Arc::new(file)),
                    writer: Some(writer),
                    ..Segment::default()
                };
                self.segments.insert(job.header.number, segment);
                self.current = Some(job.header.number);
                false
            }
            // The next number may be free.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let message = format!("{} is left alone: it was there already", job.path.display());
                self.warnings.warn(WarningKind::Foreign, message);
                true
            }
            Err(error) => self.note_failed_write("making a segment", &error),
        }
    }

    /// Notes that a write failed, and returns whether old segments can make room. On a full disk they are
    /// asked to first. Otherwise, or where that did not help, the tier pauses its writes.
    pub(super) fn note_failed_write(&mut self, what: &str, error: &io::Error) -> bool {
        let full =
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        if !full || self.full_at.is_some() || !self.has_evictable() {
            self.full_at = None;
            self.pause(what, error);
            return false;
        }
        self.full_at = Some(self.num_bytes());
        let message = format!(
            "{what} in {} failed: {error}; its oldest segments make room for new ones",
            self.folder.path.display()
        );
        self.warnings.warn(WarningKind::Write, message);
        true
    }
}
