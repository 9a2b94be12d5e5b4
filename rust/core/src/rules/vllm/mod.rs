//! vLLM's rules: the same block ids, hits, events and refusals as vLLM's own managers.
//!
//! A request is named by a handle; what the engine knows of it comes with every call
//! ([`RequestProgress`]). In vLLM all groups share one pool of equal blocks; the rules hold over
//! several pools too.
//!
//! ```text
//! config, progress, stats <- request <- call <- retention, checkpoint, demand
//!     <- adopt, extend, commit, steps_without_change <- manager <- lookup
//! ```
//!
//! Over slabs, an allocation calls the hooks of `rules/slabs`.

mod adopt;
mod call;
mod checkpoint;
mod commit;
mod config;
mod demand;
mod extend;
mod lookup;
mod manager;
mod progress;
mod release;
mod request;
mod retention;
mod stats;
mod steps_without_change;

pub use crate::engine::LookupGroup;
pub use call::BoundaryState;
pub(crate) use call::Call;
pub use config::{GroupConfig, Lookup, ManagerConfig};
pub(crate) use demand::num_missing;
pub use lookup::ComputedBlocks;
pub(crate) use lookup::Explained;
pub use manager::KvCacheManager;
pub use progress::{AllocateArgs, RequestProgress, TokenCounts};
pub use release::ReleaseRules;
pub use stats::KvCacheStats;
