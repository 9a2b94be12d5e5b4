//! Which segment goes when the disk is full, and what of it is kept.

use std::fs;

use hybrid_blocks::{BlockId, Key};

use super::files::Name;
use super::tier::DiskTier;
use crate::warning::WarningKind;

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

    /// The oldest sealed segment, if the bound leaves no room for a new one. What was read of it since it was written is moved, half a segment at
    /// most, so every eviction frees room.
    pub(super) fn begin_eviction(&self) -> Option<Eviction> {
        if !self.needs_eviction() {
            return None;
        }
        let mut sealed = self.segments.iter().filter(|(_, segment)| segment.writer.is_none());
        let (&number, segment) = sealed.next()?;
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

    /// Removes a segment and forgets what was not moved. Reads under way still end: they hold the file.
    pub(super) fn end_eviction(&mut self, number: u64) {
        self.forget_segment(number);
        let path = self.folder.path_of(Name { number, is_sealed: true });
        if let Err(error) = fs::remove_file(&path) {
            let message = format!("cannot remove {}: {error}", path.display());
            self.warnings.warn(WarningKind::Write, message);
        }
    }

    pub(super) fn forget_segment(&mut self, number: u64) {
        if let Some(segment) = self.segments.remove(&number) {
            self.index.remove_segment(number, &segment.slots);
        }
    }
}
