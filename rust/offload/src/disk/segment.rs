//! [`Segment`]: a file of chunks.

use std::fs::File;
use std::sync::Arc;

/// A segment file.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// Bytes of the file.
    pub(super) num_bytes: u64,
    /// Slots in the index; some may belong to another segment by now.
    pub(super) slots: Vec<u32>,
    pub(super) file: Option<Arc<File>>,
    /// `None` once it is sealed.
    pub(super) writer: Option<Writer>,
    /// Whether its file could not be removed. It counts, and can be read, until it is.
    pub(super) is_stuck: bool,
}

/// The state of an open segment beside its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    /// Where the next batch goes.
    pub(super) end: u64,
    pub(super) num_entries: u64,
    /// Write jobs, or a seal job, under way.
    pub(super) num_pending: u32,
    /// No further batch goes to it.
    pub(super) is_closing: bool,
}
