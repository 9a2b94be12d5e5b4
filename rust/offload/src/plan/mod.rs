//! Look-ups: how long a prefix the tiers hold, how much of it to read, and which chunks from where.

mod cost;
mod group;
mod outcome;
mod planner;
mod search;
mod soonest;
mod tier;

pub use cost::{Costs, ReadCost};
pub use group::OffloadGroup;
pub use outcome::{Load, Plan};
pub use planner::Planner;
pub use tier::{Previous, Tier};
