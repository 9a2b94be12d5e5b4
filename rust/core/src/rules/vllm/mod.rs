//! vLLM's rules: the same block ids, hits, events and refusals as vLLM's own managers.
//!
//! A request is named by a handle; what the engine knows of it comes with every call
//! ([`RequestProgress`]). In vLLM all groups share one pool of equal blocks; the rules hold over
//! several pools too.
//!
//! ```text
//! config, progress, stats <- request <- call <- retention, checkpoint, demand
//!     <- adopt, extend, commit, placement, no_change
//!     <- KvCacheManager <- lookup, copies, alone, session
//! ```
//!
//! `placement`, `copies` and `alone` are not vLLM's: they keep copies of states by our own rules and
//! let what is admitted over slabs come to its end. Nor is `session`, which hears what clients say of
//! theirs.

mod adopt;
mod alone;
mod call;
mod checkpoint;
mod commit;
mod config;
mod copies;
mod demand;
mod extend;
mod lookup;
mod manager;
mod no_change;
mod placement;
mod progress;
mod promised;
mod release;
mod request;
mod retention;
mod session;
mod stats;

pub use crate::engine::LookupGroup;
pub use call::BoundaryState;
pub use config::{GroupConfig, Lookup, ManagerConfig};
pub use lookup::ComputedBlocks;
pub use manager::KvCacheManager;
pub use progress::{AllocateArgs, RequestProgress, TokenCounts};
pub use release::ReleaseRules;
pub use stats::KvCacheStats;
