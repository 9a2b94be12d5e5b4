//! [`KvCacheStats`]: what happened so far, by counts.

use crate::engine::hit::HitLimit;

/// Counts since the start. Checkpoints and forks are states, one a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCacheStats {
    /// States copied for requests that resumed from them.
    pub forks: u64,
    /// Checkpoints left in prompts.
    pub prompt: u64,
    /// Checkpoints that followed a generation.
    pub followed: u64,
    /// States that others computed, kept when their requests went on.
    pub loaded: u64,
    /// States kept in their blocks when their request ended or was preempted.
    pub kept: u64,
    /// Checkpoints given up for a longer one of the same request.
    pub superseded: u64,
    /// Checkpoints whose place was needed.
    pub evicted: u64,
    /// Checkpoints that were to be made, and whose room a running request took before.
    pub given_up: u64,
    /// Checkpoints not made because there was no room.
    pub no_room: u64,
    /// Hits shortened because the request could not have come to its end with them.
    pub shortened: u64,
    /// Admissions by what ended their hits, in the order of [`HitLimit::ALL`].
    pub limits: [u64; HitLimit::ALL.len()],
}
