//! Reads: which segments' files are open, and what a failed read means.

use std::fs::File;
use std::io;
use std::sync::Arc;

use hybrid_blocks::{BlockId, Key};

use super::files::Name;
use super::jobs::ReadJob;
use super::tier::DiskTier;
use crate::io::{Mode, open};
use crate::warning::WarningKind;

/// Files kept open for reads.
const OPEN_FILES: usize = 64;

impl DiskTier {
    /// Plans the reading of chunks from the slots that a look-up gave. `None` if one of them is gone: look
    /// up again. `None` also if a file cannot be opened for now, as where too many are open.
    pub fn plan_read(&mut self, wanted: &[(Key, BlockId)]) -> Option<ReadJob> {
        let mut chunks = Vec::with_capacity(wanted.len());
        for (key, slot) in wanted {
            let held = *self.index.get(slot.0).filter(|held| held.entry.key == *key)?;
            chunks.push((self.file_of(held.segment)?, held.entry));
        }
        Some(ReadJob { chunks })
    }

    fn file_of(&mut self, number: u64) -> Option<Arc<File>> {
        let segment = self.segments.get_mut(&number)?;
        if let Some(file) = &segment.file {
            return Some(Arc::clone(file));
        }
        let path = self.folder.path_of(Name { number, is_sealed: true });
        match open(&path, Mode::Read, self.config.direct) {
            Ok(file) => {
                let file = Arc::new(file);
                segment.file = Some(Arc::clone(&file));
                self.opened.push_back(number);
                if self.opened.len() > OPEN_FILES {
                    let oldest = self.opened.pop_front()?;
                    let oldest = self.segments.get_mut(&oldest);
                    if let Some(oldest) = oldest.filter(|segment| segment.writer.is_none()) {
                        oldest.file = None;
                    }
                }
                Some(file)
            }
            Err(error) => {
                let is_gone = error.kind() == io::ErrorKind::NotFound;
                let what_follows = if is_gone { "; it is dropped" } else { "" };
                let message = format!("cannot open {}: {error}{what_follows}", path.display());
                self.warnings.warn(WarningKind::Read, message);
                if is_gone {
                    self.forget_segment(number);
                }
                None
            }
        }
    }

    /// Ends a read. Chunks that could not be read or were damaged are forgotten.
    pub fn complete_read(&mut self, job: &ReadJob, results: &[io::Result<()>]) {
        for ((_, entry), result) in job.chunks.iter().zip(results) {
            let slot = self.index.find(&entry.key);
            let Some(slot) =
                slot.filter(|&slot| self.index.get(slot).is_some_and(|held| held.entry == *entry))
            else {
                continue;
            };
            match result {
                Ok(()) => self.index.mark_used(slot),
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                Err(error) => {
                    let kind = match error.kind() {
                        io::ErrorKind::InvalidData => WarningKind::Damaged,
                        _ => WarningKind::Read,
                    };
                    let message = format!(
                        "a chunk of {} bytes in {} could not be read: {error}; it is dropped and \
                         computed anew",
                        entry.num_bytes,
                        self.folder.path().display()
                    );
                    self.warnings.warn(kind, message);
                    self.index.remove(slot);
                }
            }
        }
    }
}
