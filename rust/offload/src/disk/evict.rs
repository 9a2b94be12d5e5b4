//! Which segment goes when the disk is full, and what of it is kept.

use std::fs;
use std::io;

use hybrid_blocks::{BlockId, Key};

use super::files::Name;
use super::tier::DiskTier;

/// A segment that is about to be removed.
#[derive(Debug)]
pub(super) struct Eviction {
    pub(super) number: u64,
    /// Chunks to move to the current segment first: name, tokens, bytes and slot.
    pub(super) moved: Vec<(Key, u32, u32, BlockId)>,
}

impl DiskTier {
    /// Whether the bound leaves no room for a new segment.
    pub(super) fn needs_eviction(&self) -> bool {
        self.num_bytes() + self.segment_bytes > self.config.max_bytes
    }

    /// The oldest sealed segment, if the bound leaves no room for a new one. What was used of it since it was
    /// written is moved, half a segment at most, so every eviction frees room. Files that could not be removed
    /// are tried again first, and else passed over.
    pub(super) fn begin_eviction(&mut self) -> Option<Eviction> {
        if self.is_paused() || !self.needs_eviction() {
            return None;
        }
        let stuck = self.segments.iter().filter(|(_, segment)| segment.is_stuck);
        for number in stuck.map(|(&number, _)| number).collect::<Vec<_>>() {
            let _ = self.remove_segment(number);
        }
        if !self.needs_eviction() {
            return None;
        }
        let mut sealed = self.segments.iter();
        let (&number, segment) =
            sealed.find(|(_, segment)| segment.writer.is_none() && !segment.is_stuck)?;
        let mut left = self.segment_bytes / 2;
        let moved = segment.slots.iter().filter_map(|&slot| {
            let held = self.index.get(slot)?;
            (held.segment == number && held.is_used).then_some(())?;
            left = left.checked_sub(u64::from(held.entry.num_bytes))?;
            let entry = held.entry;
            Some((entry.key, entry.num_tokens, entry.num_bytes, BlockId(slot)))
        });
        Some(Eviction { number, moved: moved.collect() })
    }

    /// Removes a segment and forgets what was not moved. Reads under way still end: they hold the file. `false`
    /// if it cannot be removed; it is kept then, so that its bytes count.
    pub(super) fn end_eviction(&mut self, number: u64) -> bool {
        let result = self.remove_segment(number);
        if let Err(error) = &result {
            if let Some(segment) = self.segments.get_mut(&number) {
                segment.is_stuck = true;
            }
            self.pause("removing a segment", error);
        }
        result.is_ok()
    }

    fn remove_segment(&mut self, number: u64) -> io::Result<()> {
        match fs::remove_file(self.folder.path_of(Name { number, is_sealed: true })) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                self.forget_segment(number);
                Ok(())
            }
        }
    }

    pub(super) fn forget_segment(&mut self, number: u64) {
        if let Some(segment) = self.segments.remove(&number) {
            self.index.remove_segment(number, &segment.slots);
        }
    }
}
