//! Housekeeping of a [`Disk`]: sealing, evicting and making segments, one thread at a time and without the
//! lock that look-ups take.

use super::evict::Eviction;
use super::shared::{Disk, caught};
use crate::io::AlignedBuffer;
use crate::lock::lock;

/// Bytes that an eviction moves at a time.
const MOVE_BYTES: usize = 8 << 20;

/// Numbers of segments that may turn out to be taken before the making of one is given up.
const MOST_TRIES: u32 = 100;

impl Disk {
    /// Seals full segments and evicts until there is room for a new one, and makes that if it is wanted.
    /// Returns whether there is a segment to write to, where one was wanted.
    pub(super) fn make_room(&self, wants_segment: bool) -> bool {
        let _guard = lock(&self.housekeeping);
        if wants_segment && self.tier().current.is_some() {
            return true; // another thread has made one
        }
        for _ in 0..MOST_TRIES {
            self.seal_and_evict();
            if !wants_segment {
                return false;
            }
            match self.make_segment(true) {
                Ok(()) => return true,
                Err(TryAgain(true)) => {}
                Err(TryAgain(false)) => break,
            }
        }
        false
    }

    fn seal_and_evict(&self) {
        loop {
            let seals = self.tier().take_seals();
            for job in &seals {
                let result = caught(|| job.run(&*self.storage));
                self.tier().complete_seal(job, &result);
            }
            let stuck = self.tier().stuck_segments();
            for eviction in &stuck {
                self.remove(eviction);
            }
            let leftover = self.tier().take_leftover();
            if let Some(leftover) = leftover {
                let result = caught(|| leftover.remove(|path| self.storage.remove(path)));
                self.tier().end_leftover(&leftover, &result);
                continue;
            }
            let eviction = self.tier().begin_eviction();
            let Some(eviction) = eviction else { return };
            self.evict(&eviction);
        }
    }

    /// Makes a segment for new chunks where there is room for it; on a disk that is full, only as the
    /// `last_resort`.
    pub(super) fn make_segment(&self, last_resort: bool) -> Result<(), TryAgain> {
        let job = self.tier().begin_segment(last_resort).ok_or(TryAgain(false))?;
        let result = caught(|| job.run(&*self.storage));
        let is_made = result.is_ok();
        let may_try_again = self.tier().complete_segment(&job, result);
        if is_made { Ok(()) } else { Err(TryAgain(may_try_again)) }
    }

    /// Moves the kept chunks, as far as the current segment has room, and removes the rest.
    fn evict(&self, eviction: &Eviction) {
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
            let Some(results) = self.load_by(&*self.writes, &wanted, &mut buffers) else { break };
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
        self.remove(eviction);
    }

    fn remove(&self, eviction: &Eviction) {
        let result = caught(|| self.storage.remove(&eviction.path));
        let removed = self.tier().end_eviction(eviction.number, &result);
        drop(removed);
    }
}

/// A segment was not made. Says whether another try may do better.
#[derive(Debug)]
pub(super) struct TryAgain(bool);
