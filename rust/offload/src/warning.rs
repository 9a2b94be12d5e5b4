//! [`Warning`]: what went wrong without stopping a request.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Kinds of warnings. Each kind has its own limit of rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarningKind {
    /// A write failed; the disk is not written to for a while.
    Write,
    /// A read failed.
    Read,
    /// A chunk does not have its checksum.
    Damaged,
    /// A file is not a segment of this namespace, or cannot be read as one.
    Foreign,
    /// Files are of an older version of the format.
    Old,
    /// A store of objects refused; it is not used for a while.
    Refused,
}

/// A message for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Kind of the event.
    pub kind: WarningKind,
    /// The event and its consequence.
    pub message: String,
    /// Warnings of this kind that were left out since the last one.
    pub num_left_out: u64,
}

type Callback = Box<dyn Fn(&Warning) + Send>;

/// Passes on one warning of a kind per interval.
pub(crate) struct Warnings {
    callback: Callback,
    interval: Duration,
    last: HashMap<WarningKind, (Instant, u64)>,
}

impl Warnings {
    pub(crate) fn new(callback: Callback, interval: Duration) -> Self {
        Self { callback, interval, last: HashMap::new() }
    }

    pub(crate) fn warn(&mut self, kind: WarningKind, message: String) {
        let mut num_left_out = 0;
        if let Some((at, left_out)) = self.last.get_mut(&kind) {
            if at.elapsed() < self.interval {
                *left_out += 1;
                return;
            }
            num_left_out = *left_out;
        }
        self.last.insert(kind, (Instant::now(), 0));
        (self.callback)(&Warning { kind, message, num_left_out });
    }
}

impl fmt::Debug for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warnings").field("last", &self.last).finish_non_exhaustive()
    }
}
