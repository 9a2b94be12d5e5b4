//! Host memory: slots of natural size for each group, and what is evicted together.

mod cache;
mod chain;
mod copies;
mod eviction;
mod geometry;
mod pins;
mod store;
mod tier;
mod trials;
mod unit;
mod units;

pub use cache::{HostCache, Presence, RequestId};
pub use geometry::HostGeometry;
pub use store::{Placement, StoreTicket, UnitContent};
pub use tier::HostTier;
pub use unit::UnitId;
