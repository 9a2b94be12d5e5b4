//! Counters since the start.

use crate::rules::checkpoint_history::Origin;
use crate::rules::hit::HitLimit;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Tokens of admitted requests, those of every new try after a preemption included.
    pub queries: u64,
    /// Of these, tokens found in the prefix cache.
    pub hits: u64,
    /// Requests preempted.
    pub preemptions: u64,
    /// Checkpoints left by copies.
    pub checkpoints: u64,
    /// Checkpoints that requests went on from.
    pub forks: u64,
    /// Times that live blocks were moved so that a request fits.
    pub compactions: u64,
    /// Blocks moved for it.
    pub moves: u64,
    /// Checkpoints by what they were left for, in the order of [`Origin::ALL`].
    pub origins: [OriginStats; Origin::ALL.len()],
    /// Admissions by what ended their hit, in the order of [`HitLimit::ALL`].
    pub limits: [u64; HitLimit::ALL.len()],
}

/// The checkpoints that were left for one reason. Each counts once, in whatever number of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginStats {
    /// Left, the copy that follows an answer once.
    pub written: u64,
    /// Of these, the ones that requests went on from.
    pub used: u64,
    /// Of these, the ones that went before anybody did.
    pub dropped: u64,
}
