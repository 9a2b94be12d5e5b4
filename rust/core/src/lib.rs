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
//! ids <- arena, links <- slabs <- pool ─┐
//! digest, key_table <- prefix_index ────┴─ store <- group <- engine <- rules::{natural, vllm}
//! digest <- hash                  (knows no blocks)
//! ```
#![forbid(unsafe_code)]

mod digest;
mod engine;
mod error;
mod group;
pub mod hash;
mod ids;
mod key_table;
mod pool;
mod prefix_index;
mod rules;
mod store;

pub use digest::Digest;
pub use engine::{BlockCopy, CacheEvent, Compaction, GroupBlocks, TableChange, TableRuns};
pub use error::{Error, Unit};
pub use group::{GroupKind, GroupSpec};
pub use ids::{BlockId, GroupId, PoolId, SlabId};
pub use pool::{BlockStates, QueuePool};
pub use prefix_index::{Key, PrefixIndex, RunCursor};
pub use rules::natural::{
    BlockManager, CheckpointPolicy, Config, FlopModel, Hashing, Hit, HitLimit, Policy, Stats,
};
pub use rules::vllm;
pub use store::{BlockStore, FixedStore, Reservation, SlabStore, Store};
