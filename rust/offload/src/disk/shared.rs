//! [`Disk`]: a disk tier and its backends, for any number of threads.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use hybrid_blocks::{BlockId, Key};

use super::storage::{OsStorage, Storage};
use super::tier::DiskTier;
use super::writes::WritePlan;
use crate::io::BlockIo;
use crate::lock::{lock, try_lock};

/// A disk tier whose transfers run on the calling thread. The tier's lock is held for bookkeeping alone, so a
/// look-up never waits for the disk.
#[derive(Debug)]
pub struct Disk {
    tier: Mutex<DiskTier>,
    /// Reads have a backend of their own, so that they do not wait behind writes.
    reads: Arc<dyn BlockIo>,
    pub(super) writes: Arc<dyn BlockIo>,
    pub(super) storage: Arc<dyn Storage>,
    /// Held by the thread that seals, evicts and makes segments.
    pub(super) housekeeping: Mutex<()>,
}

impl Disk {
    /// A disk over an open tier, with one backend for all transfers.
    pub fn new(tier: DiskTier, io: Arc<dyn BlockIo>) -> Self {
        Self::with_backends(tier, Arc::clone(&io), io, Arc::new(OsStorage))
    }

    /// A disk over an open tier, with a backend for reads, one for writes, and one for whole files.
    pub fn with_backends(
        tier: DiskTier,
        reads: Arc<dyn BlockIo>,
        writes: Arc<dyn BlockIo>,
        storage: Arc<dyn Storage>,
    ) -> Self {
        let (tier, housekeeping) = (Mutex::new(tier), Mutex::new(()));
        let disk = Self { tier, reads, writes, storage, housekeeping };
        disk.make_room(false);
        disk
    }

    /// The tier, for look-ups and counts. It is held only while others do their bookkeeping.
    pub fn tier(&self) -> MutexGuard<'_, DiskTier> {
        lock(&self.tier)
    }

    /// As [`Disk::tier`], or `None` if another thread has it.
    pub fn try_tier(&self) -> Option<MutexGuard<'_, DiskTier>> {
        try_lock(&self.tier)
    }

    /// Writes chunks: name, tokens and bytes each. Returns how many were written: others are there already, are too
    /// large, or the disk takes nothing now.
    pub fn store(&self, chunks: &[(Key, u32, &[u8])]) -> usize {
        let num_written = self.write(chunks, false);
        self.make_room(false);
        num_written
    }

    /// Writes chunks. With `is_move` they replace those that are there, and no segment is evicted for them.
    pub(super) fn write(&self, chunks: &[(Key, u32, &[u8])], is_move: bool) -> usize {
        let sizes: Vec<_> = chunks
            .iter()
            .map(|(key, num_tokens, bytes)| {
                // A chunk of 4 GiB or more counts as empty, and so is skipped.
                (*key, *num_tokens, u32::try_from(bytes.len()).unwrap_or(0))
            })
            .collect();
        let (mut num_written, mut start) = (0, 0);
        while start < chunks.len() {
            let plan = self.tier().plan_write(&sizes[start..], is_move);
            let mut job = match plan {
                WritePlan::Job(job) => job,
                WritePlan::Nothing => break,
                WritePlan::NeedsSegment => {
                    let is_made = if is_move {
                        self.make_segment(false).is_ok()
                    } else {
                        self.make_room(true)
                    };
                    if is_made {
                        continue;
                    }
                    break;
                }
            };
            let result = caught(|| job.run(&*self.writes, |at| chunks[start + at].2));
            let (count, last) = (job.chunks().len(), job.chunks().last().copied());
            let is_err = result.is_err();
            self.tier().complete_write(job, &result);
            if is_err {
                break;
            }
            num_written += count;
            start += last.map_or(chunks.len(), |last| last + 1);
        }
        num_written
    }

    /// Reads chunks from the slots that a look-up gave, a buffer each. `None` if one of them is gone; look up
    /// again. Otherwise one result each. Damaged chunks are forgotten, and those that could not be read for
    /// another reason are not found for a while.
    pub fn load(
        &self,
        wanted: &[(Key, BlockId)],
        buffers: &mut [&mut [u8]],
    ) -> Option<Vec<io::Result<()>>> {
        self.load_by(&*self.reads, wanted, buffers)
    }

    pub(super) fn load_by(
        &self,
        io: &dyn BlockIo,
        wanted: &[(Key, BlockId)],
        buffers: &mut [&mut [u8]],
    ) -> Option<Vec<io::Result<()>>> {
        let job = self.tier().plan_read(wanted)?;
        let is_there = job.open(&*self.storage);
        let results = job.run(io, buffers);
        let closed = self.tier().complete_read(&job, &results);
        drop(closed);
        is_there.then_some(results)
    }

    /// Seals the current segment too, so that a restart has no file to read through.
    pub fn close(&self) {
        self.tier().close_current();
        self.make_room(false);
    }
}

/// Runs a transfer. A panic in it is an error, so that its job is completed like any that failed.
pub(super) fn caught<T>(transfer: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(transfer)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(io::Error::other(format!("it panicked: {}", message.unwrap_or("no message"))))
    })
}
