//! Which segment goes when the disk is full, and what of it is kept.

use std::io;
use std::path::PathBuf;

use hybrid_blocks::{BlockId, Key};

use super::files::Name;
use super::leftovers::Leftover;
use super::segment::Segment;
use super::tier::DiskTier;
use crate::warning::WarningKind;

/// A segment that is about to be removed.
#[derive(Debug)]
pub(super) struct Eviction {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// Chunks to move to the current segment first: name, tokens, bytes and slot.
    pub(super) moved: Vec<(Key, u32, u32, BlockId)>,
}

impl DiskTier {
    /// The file that goes first, if the bound leaves no room for a new segment.
    pub(super) fn take_leftover(&mut self) -> Option<Leftover> {
        if self.is_paused() || !self.needs_eviction() {
            None
        } else {
            self.leftovers.waiting.pop_front()
        }
    }

    /// Ends the removal of such a file. One that cannot be removed counts until the next start.
    pub(super) fn end_leftover(&mut self, leftover: &Leftover, result: &io::Result<()>) {
        if let Err(error) = result {
            let message = format!("cannot remove {}: {error}", leftover.path.display());
            self.warnings.warn(WarningKind::Write, message);
        }
        self.leftovers.end(leftover, result.is_ok());
    }

    /// Whether the configured bound leaves no room for a new segment.
    pub(super) fn is_over_bound(&self) -> bool {
        self.num_bytes() + self.segment_bytes > self.config.max_bytes
    }

    /// Whether a new segment has no room: by the bound, or since the disk turned out to be full.
    pub(super) fn needs_eviction(&self) -> bool {
        let most = self.full_at.unwrap_or(u64::MAX).min(self.config.max_bytes);
        self.num_bytes() + self.segment_bytes > most
    }

    /// Segments that could not be removed, to be tried again where a new one has no room.
    pub(super) fn stuck_segments(&self) -> Vec<Eviction> {
        if self.is_paused() || !self.needs_eviction() {
            return Vec::new();
        }
        let stuck = self.segments.iter().filter(|(_, segment)| segment.is_stuck);
        stuck.map(|(&number, _)| self.eviction_of(number, Vec::new())).collect()
    }

    fn eviction_of(&self, number: u64, moved: Vec<(Key, u32, u32, BlockId)>) -> Eviction {
        Eviction { number, path: self.folder.path_of(Name { number, is_sealed: true }), moved }
    }

    /// Whether anything can make room.
    pub(super) fn has_evictable(&self) -> bool {
        !self.leftovers.waiting.is_empty() || self.oldest_sealed().is_some()
    }

    fn oldest_sealed(&self) -> Option<u64> {
        let mut sealed = self.segments.iter();
        let (&number, _) =
            sealed.find(|(_, segment)| segment.writer.is_none() && !segment.is_stuck)?;
        Some(number)
    }

    /// The oldest sealed segment, if a new one has no room. What was used of it since it was written is moved,
    /// half a segment at most, so every eviction frees room. Files that could not be removed are passed over.
    pub(super) fn begin_eviction(&mut self) -> Option<Eviction> {
        if self.is_paused() || !self.needs_eviction() {
            return None;
        }
        let number = self.oldest_sealed()?;
        let segment = self.segments.get(&number)?;
        let mut left = self.segment_bytes / 2;
        let moved = segment.slots.iter().filter_map(|&slot| {
            let held = self.index.get(slot)?;
            (held.segment == number && held.is_used).then_some(())?;
            left = left.checked_sub(u64::from(held.entry.num_bytes))?;
            let entry = held.entry;
            Some((entry.key, entry.num_tokens, entry.num_bytes, BlockId(slot)))
        });
        Some(self.eviction_of(number, moved.collect()))
    }

    /// Forgets a segment that was removed, with what was not moved. Reads under way still end: they hold the
    /// file. One that could not be removed is kept, so that its bytes count. Returns the segment: its file is
    /// to be closed without the tier's lock.
    pub(super) fn end_eviction(&mut self, number: u64, result: &io::Result<()>) -> Option<Segment> {
        match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                if let Some(segment) = self.segments.get_mut(&number)
                    && !segment.is_stuck
                {
                    segment.is_stuck = true;
                    self.pause("removing a segment", error);
                }
                None
            }
            _ => self.forget_segment(number),
        }
    }

    #[must_use = "its file is to be closed without the tier's lock"]
    pub(super) fn forget_segment(&mut self, number: u64) -> Option<Segment> {
        let segment = self.segments.remove(&number)?;
        self.index.remove_segment(number, &segment.slots);
        Some(segment)
    }
}
