//! Counters since the start.

use crate::engine::hit::HitLimit;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Tokens of admitted requests, those of every new try after a preemption included.
    pub queries: u64,
    /// Tokens of these queries found in the prefix cache.
    pub hits: u64,
    /// Requests that were preempted.
    pub preemptions: u64,
    /// Checkpoints that requests left.
    pub checkpoints: u64,
    /// States copied for requests that resumed from checkpoints.
    pub forks: u64,
    /// Hits shortened because their requests could not have come to their ends with them.
    pub shortened: u64,
    /// Admissions by what ended their hit, in the order of [`HitLimit::ALL`].
    pub limits: [u64; HitLimit::ALL.len()],
}
