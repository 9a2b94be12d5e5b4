//! Look-ups: how long a prefix the tiers hold, and which chunks to load from where.

mod group;
mod outcome;
mod planner;
mod tier;

pub use group::{ChunkLimits, OffloadGroup, chunk_sizes};
pub use outcome::{Load, Plan};
pub use planner::Planner;
pub use tier::{Previous, Tier};
