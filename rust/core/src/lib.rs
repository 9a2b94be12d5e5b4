//! KV-cache block manager for hybrid language models.
//!
//! One engine keeps requests, their block tables and the prefix cache between them. Two sets of
//! rules drive it: [`BlockManager`] takes this project's decisions, [`vllm::KvCacheManager`] takes
//! those of vLLM, block id by block id.
//!
//! # Words
//! - *Layer page*: the bytes one layer stores for one block.
//! - *Group*: layers that share a block table.
//! - *Block*: the unit that is handed out to a group, named by a number. A block of a recurrent group
//!   holds one state and is called a *state slot*.
//! - *Slab*: a fixed run of arena bytes, owned by one pool at a time and cut into equal blocks.
//! - *Pool*: the blocks of one size.
//! - *Live*: has owners. *Free*: no owner, no content worth keeping. *Cached*: no owner, but its
//!   content can be found; it may be evicted.
//! - *Null block*: id 0, never handed out. Tables name it where nothing is kept.
//! - *Digest*: the chained hash of all tokens up to a block's end. *Key*: a digest and a group.
//! - *Checkpoint*: a state slot kept under a key, so that a later request can go on from it.
//!
//! # Layers
//! A module may use what stands to its left.
//! ```text
//! ids <- pool ──────────────────────┐
//! digest <- key_table, prefix_index ┴─ store <- group, engine <- rules::natural
//!                                                             <- rules::vllm
//! digest <- hash (knows no blocks) <──────────────────────────── rules::natural
//! ```
#![forbid(unsafe_code)]

mod digest;
mod engine;
mod error;
mod group;
pub mod hash;
mod ids;
mod key_table;
pub mod placement;
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
    BlockManager, CheckpointPolicy, Config, FlopModel, Hashing, Hint, Hit, HitLimit, Origin,
    OriginStats, Policy, Stats,
};
pub use rules::vllm;
pub use store::{BlockStore, FixedStore, Reservation, SlabStore, Store};
