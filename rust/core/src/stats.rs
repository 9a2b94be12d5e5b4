//! Counters since the start.

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Tokens of admitted requests, those of every new try after a preemption included.
    pub queries: u64,
    /// Of these, tokens found in the prefix cache.
    pub hits: u64,
    /// Requests preempted.
    pub preemptions: u64,
}
