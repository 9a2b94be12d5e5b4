//! Reads: which segments' files are open, and what a failed read means.

use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};

use hybrid_blocks::{BlockId, Key};

use super::entry::Entry;
use super::files::Name;
use super::jobs::{ReadFile, ReadJob};
use super::segment::Segment;
use super::tier::DiskTier;
use crate::warning::WarningKind;

/// Files kept open for reads.
const OPEN_FILES: usize = 64;

/// Tries after which a chunk that cannot be read is forgotten, so that it can be stored again.
const MOST_TRIES: u32 = 3;

/// The resources that a read let go of. Closing a file may wait for the disk, so it is dropped
/// without the tier's lock.
#[derive(Debug, Default)]
#[allow(dead_code, reason = "held until it is dropped")]
pub struct Closed {
    files: Vec<Arc<File>>,
    segments: Vec<Segment>,
}

impl DiskTier {
    /// Plans the reading of chunks from the slots that a look-up gave. `None` if one of them is gone: look
    /// up again.
    pub fn plan_read(&mut self, wanted: &[(Key, BlockId)]) -> Option<ReadJob> {
        let mut job = ReadJob {
            seed: self.header(0).seed(),
            files: Vec::new(),
            chunks: Vec::with_capacity(wanted.len()),
            direct: self.config.direct,
        };
        for (key, slot) in wanted {
            let held = *self.index.get(slot.0).filter(|held| held.entry.key == *key)?;
            let known = job.files.iter().rposition(|file| file.number == held.segment);
            let at = known.unwrap_or(job.files.len());
            if known.is_none() {
                job.files.push(self.file_of(held.segment)?);
            }
            job.chunks.push((at, held.entry));
        }
        Some(job)
    }

    fn file_of(&self, number: u64) -> Option<ReadFile> {
        let segment = self.segments.get(&number)?;
        let path = self.folder.path_of(Name { number, is_sealed: true });
        let file = segment.file.as_ref().map(|file| Ok(Arc::clone(file)));
        let was_open = file.is_some();
        Some(ReadFile {
            number,
            path,
            was_open,
            file: file.map_or_else(OnceLock::new, OnceLock::from),
        })
    }

    /// Ends a read. Damaged chunks are forgotten, and those that could not be read are not found for a while.
    pub fn complete_read(&mut self, job: &ReadJob, results: &[io::Result<()>]) -> Closed {
        let mut closed = Closed::default();
        for file in job.files.iter().filter(|file| !file.was_open) {
            match file.file.get() {
                Some(Ok(opened)) => self.keep_open(file.number, opened, &mut closed),
                Some(Err(error)) => self.note_unopened(file, error, &mut closed),
                None => {}
            }
        }
        for ((at, entry), result) in job.chunks.iter().zip(results) {
            let slot = self.index.find(&entry.key);
            let Some(slot) =
                slot.filter(|&slot| self.index.get(slot).is_some_and(|held| held.entry == *entry))
            else {
                continue;
            };
            match result {
                Ok(()) => {
                    self.index.mark_used(slot);
                    self.failures.forget(&entry.key);
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                Err(_) if job.files[*at].is_unopened() => {
                    self.failures.note(&entry.key);
                }
                Err(error) => self.note_unread(slot, entry, error),
            }
        }
        closed
    }

    /// Keeps a file for the next read, instead of the one that was opened first.
    fn keep_open(&mut self, number: u64, file: &Arc<File>, closed: &mut Closed) {
        let Some(segment) = self.segments.get_mut(&number).filter(|it| it.file.is_none()) else {
            return;
        };
        segment.file = Some(Arc::clone(file));
        self.opened.push_back(number);
        if self.opened.len() > OPEN_FILES
            && let Some(oldest) = self.opened.pop_front()
            && let Some(oldest) = self.segments.get_mut(&oldest).filter(|it| it.writer.is_none())
        {
            closed.files.extend(oldest.file.take());
        }
    }

    fn note_unopened(&mut self, file: &ReadFile, error: &io::Error, closed: &mut Closed) {
        if !self.segments.contains_key(&file.number) {
            return; // it was evicted meanwhile
        }
        let is_gone = error.kind() == io::ErrorKind::NotFound;
        let what_follows = if is_gone { "; it is dropped" } else { "" };
        let message = format!("cannot open {}: {error}{what_follows}", file.path.display());
        self.warnings.warn(WarningKind::Read, message);
        if is_gone {
            closed.segments.extend(self.forget_segment(file.number));
        }
    }

    fn note_unread(&mut self, slot: u32, entry: &Entry, error: &io::Error) {
        let is_damaged =
            matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
        let is_dropped = is_damaged || self.failures.note(&entry.key) >= MOST_TRIES;
        let kind = match error.kind() {
            io::ErrorKind::InvalidData => WarningKind::Damaged,
            _ => WarningKind::Read,
        };
        let what_follows = if is_dropped {
            "it is dropped and computed anew".to_owned()
        } else {
            format!("it is tried again in {} s", self.config.retry_after.as_secs())
        };
        let message = format!(
            "a chunk of {} bytes in {} could not be read: {error}; {what_follows}",
            entry.num_bytes,
            self.folder.path.display()
        );
        self.warnings.warn(kind, message);
        if is_dropped {
            self.failures.forget(&entry.key);
            self.index.remove(slot);
        }
    }
}
