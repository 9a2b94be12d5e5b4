//! [`Disk`]: a disk tier, its backend and its housekeeping, for any number of threads.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hybrid_blocks::{BlockId, Key};

use super::evict::Eviction;
use super::tier::DiskTier;
use crate::io::{AlignedBuffer, BlockIo};

/// Bytes that an eviction moves at a time.
const MOVE_BYTES: usize = 8 << 20;

/// What became of the chunks of a [`Disk::store`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Chunks that were written.
    pub num_written: usize,
    /// Chunks that were not: they are there already, are too large, or the disk takes nothing now.
    pub num_skipped: usize,
}

/// A disk tier whose transfers run on the calling thread, without the lock that look-ups take.
#[derive(Debug)]
pub struct Disk {
    tier: Mutex<DiskTier>,
    io: Arc<dyn BlockIo>,
    /// Held by the thread that seals and evicts.
    housekeeping: Mutex<()>,
}

impl Disk {
    /// A disk over an open tier.
    #[must_use]
    pub fn new(tier: DiskTier, io: Arc<dyn BlockIo>) -> Self {
        let disk = Self { tier: Mutex::new(tier), io, housekeeping: Mutex::new(()) };
        disk.keep_house();
        disk
    }

    /// The tier, for look-ups and counts. Transfers wait only for the moments between their parts.
    pub fn tier(&self) -> MutexGuard<'_, DiskTier> {
        self.tier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes chunks: name, tokens and bytes each.
    pub fn store(&self, chunks: &[(Key, u32, &[u8])]) -> StoreReport {
        let num_written = self.write(chunks, false);
        self.keep_house();
        StoreReport { num_written, num_skipped: chunks.len() - num_written }
    }

    fn write(&self, chunks: &[(Key, u32, &[u8])], replace: bool) -> usize {
        let sizes: Vec<_> = chunks
            .iter()
            .map(|(key, num_tokens, bytes)| {
                // A chunk of 4 GiB or more counts as empty, and so is skipped.
                (*key, *num_tokens, u32::try_from(bytes.len()).unwrap_or(0))
            })
            .collect();
        let (mut num_written, mut start) = (0, 0);
        while start < chunks.len() {
            let job = self.tier().plan_write(&sizes[start..], replace);
            let Some(mut job) = job else {
                // The current segment is full: sealing and eviction may make room for the next.
                if replace || !self.keep_house() {
                    break;
                }
                continue;
            };
            let result = job.run(&*self.io, |at| chunks[start + at].2);
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

    /// Reads chunks from the slots that a look-up gave, a buffer each. `None` if one of them is gone, or its
    /// file cannot be opened for now; look up again. Otherwise one result each: what failed is forgotten.
    pub fn load(
        &self,
        wanted: &[(Key, BlockId)],
        buffers: &mut [&mut [u8]],
    ) -> Option<Vec<io::Result<()>>> {
        let job = self.tier().plan_read(wanted)?;
        let results = job.run(&*self.io, buffers);
        self.tier().complete_read(&job, &results);
        Some(results)
    }

    /// Seals the current segment too, so that a restart has no file to read through.
    pub fn close(&self) {
        self.tier().close_current();
        self.keep_house();
    }

    /// Seals full segments and evicts until there is room for a new one. Returns whether it did anything
    /// that may have made room; after an error it stops.
    fn keep_house(&self) -> bool {
        let _guard = self.housekeeping.lock().unwrap_or_else(PoisonError::into_inner);
        let mut did_any = false;
        loop {
            let seals = self.tier().take_seals();
            let mut failed = false;
            for job in &seals {
                let result = job.run();
                failed |= result.is_err();
                self.tier().complete_seal(job, &result);
            }
            if failed {
                return false;
            }
            let eviction = self.tier().begin_eviction();
            did_any |= !seals.is_empty() || eviction.is_some();
            match eviction {
                Some(eviction) if !self.evict(&eviction) => return false,
                Some(_) => {}
                None => return did_any,
            }
        }
    }

    /// Moves what is kept, as far as the current segment has room, and removes the rest. Returns whether that
    /// made room.
    fn evict(&self, eviction: &Eviction) -> bool {
        let mut rest = &eviction.moved[..];
        while let Some(&(.., first, _)) = rest.first() {
            let mut sum = first as usize;
            let more = rest[1..].iter().take_while(|(.., num_bytes, _)| {
                sum += *num_bytes as usize;
                sum <= MOVE_BYTES
            });
            let (window, others) = rest.split_at(1 + more.count());
            let wanted: Vec<_> = window.iter().map(|&(key, .., slot)| (key, slot)).collect();
            let mut bytes: Vec<_> =
                window.iter().map(|&(_, _, len, _)| AlignedBuffer::new(len as usize)).collect();
            let mut buffers: Vec<_> = bytes.iter_mut().map(|buffer| &mut buffer[..]).collect();
            let Some(results) = self.load(&wanted, &mut buffers) else { break };
            let chunks: Vec<_> = window
                .iter()
                .zip(&bytes)
                .zip(results)
                .filter(|(_, result)| result.is_ok())
                .map(|((&(key, num_tokens, len, _), bytes), _)| {
                    (key, num_tokens, &bytes[..len as usize])
                })
                .collect();
            if self.write(&chunks, true) < chunks.len() {
                break;
            }
            rest = others;
        }
        self.tier().end_eviction(eviction.number)
    }
}
