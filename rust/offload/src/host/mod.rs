//! Host memory: slots of natural size for each group, and what is evicted together.

mod geometry;
mod tier;
mod unit;
mod units;

pub use geometry::HostGeometry;
pub use tier::{HostTier, Placement, StoreTicket, UnitContent};
pub use unit::UnitId;
