//! Stores: the blocks of one or several pools, and what they contain.
//!
//! | store | pools | cached blocks are evicted |
//! |---|---|---|
//! | [`FixedStore`] | one, which owns every block for good | in the order of vLLM's free queue |
//! | [`SlabStore`] | several, which share an arena of slabs | by age, or by a priority |
//! | [`BlockStore`] | either of them, chosen at run time | as that one does |

mod any;
mod eviction_order;
mod fixed;
mod interface;
mod lost_keys;
mod parts;
mod reservation;
mod slab;
mod slab_take;

pub use any::BlockStore;
pub use eviction_order::EvictionOrder;
pub use fixed::FixedStore;
pub use interface::Store;
pub use reservation::Reservation;
pub use slab::{SlabStore, Slack};
