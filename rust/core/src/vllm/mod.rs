//! A block manager whose decisions are vLLM's: the same block ids, hits, events and refusals.
//!
//! All groups share one pool of equal blocks. A request is named by a handle; what the engine knows
//! of it comes with every call ([`RequestProgress`]).
//!
//! ```text
//! config <- cache (blocks, contents, outboxes) <- lookup, retention, demand, checkpoint
//!                                              <- recede, allocate, commit, quiet <- manager
//! request <- requests (handles) <- manager
//! ```

mod allocate;
mod cache;
mod checkpoint;
mod commit;
mod config;
mod demand;
mod event;
mod lookup;
mod manager;
mod quiet;
mod recede;
mod request;
mod requests;
mod retention;

pub use cache::BoundaryState;
pub use config::{Config, GroupConfig, Kind, Lookup, LookupGroup, Release};
pub use demand::Span as TokenCounts;
pub use event::CacheEvent;
pub use lookup::Hit;
pub use manager::{AllocateArgs, Manager};
pub use request::Facts as RequestProgress;
