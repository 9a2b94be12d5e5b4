//! vLLM's rules: the same block ids, hits, events and refusals as vLLM's own managers.
//!
//! A request is named by a handle; what the engine knows of it comes with every call
//! ([`RequestProgress`]). In vLLM all groups share one pool of equal blocks; the rules hold over
//! several pools too.
//!
//! ```text
//! config, progress <- call <- retention, checkpoint, demand
//!                          <- adopt, extend, commit, no_change <- KvCacheManager <- lookup
//! ```

mod adopt;
mod call;
mod checkpoint;
mod commit;
mod config;
mod demand;
mod extend;
mod lookup;
mod manager;
mod no_change;
mod progress;
mod retention;

pub use crate::engine::LookupGroup;
pub use call::BoundaryState;
pub use config::{GroupConfig, Lookup, ManagerConfig, Release};
pub use lookup::ComputedBlocks;
pub use manager::KvCacheManager;
pub use progress::{AllocateArgs, RequestProgress, TokenCounts};
