//! KV-cache block manager for hybrid language models.
//!
//! # Words
//! - *Layer page*: the bytes one layer stores for one block.
//! - *Group*: layers that share a block table.
//! - *Block*: what the manager hands out to a group, an id. For a recurrent group a block holds one
//!   state and is called a *state slot*.
//! - *Slab*: a fixed run of arena bytes, owned by one pool at a time and cut into equal blocks.
//! - *Pool*: the blocks of one size.
//! - *Checkpoint*: a state slot kept under a prefix hash.
//! - *Free*: no owner, no content worth keeping. *Cached*: no owner, content kept under a key,
//!   evictable. *Live*: has owners.
//! - *Null block*: id 0, never handed out.
//!
//! # Layers
//! ```text
//! ids <- pool <- store <- group <- manager
//!   key_table <- prefix_index <- store <- vllm
//! digest <- hash                  (knows no blocks)
//! ```
#![forbid(unsafe_code)]

mod checkpoint;
mod coordinator;
mod digest;
mod error;
mod event;
mod group;
pub mod hash;
mod hit;
mod ids;
mod key_table;
mod lineage;
mod manager;
mod policy;
mod pool;
mod prefix_index;
mod request;
mod stats;
mod store;
pub mod vllm;

pub use checkpoint::Placement;
pub use digest::Digest;
pub use error::{Error, Unit};
pub use event::Event;
pub use group::{GroupKind, GroupSpec};
pub use hit::{Hit, HitLimit};
pub use ids::{BlockId, GroupId, PoolId, SlabId};
pub use manager::{BlockCopy, Compaction, Config, Hashing, Manager, TableChange, TableRuns};
pub use policy::{FlopModel, Policy};
pub use pool::{BlockStates, QueuePool};
pub use prefix_index::{Key, PrefixIndex, RunCursor};
pub use stats::Stats;
pub use store::{BlockStore, FixedStore, Reservation, SlabStore, Store};
