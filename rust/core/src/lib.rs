//! KV-cache block manager for hybrid language models.
//!
//! One engine keeps requests, their block tables and the prefix cache between them. One set of rules drives it:
//! [`vllm::KvCacheManager`] takes the decisions of vLLM, block id by block id, and over slabs this project's own.
//! [`BlockManager`] drives it as vLLM's scheduler does, for engines without vLLM.
//!
//! `docs/design.md` maps the words used here to vLLM's and draws the layers: a module uses those to its
//! left only.
#![forbid(unsafe_code)]

mod batch;
mod engine;
mod error;
mod group;
mod ids;
mod key_table;
mod learn;
mod pool;
mod prefix_index;
mod rules;
mod store;

pub use batch::{BlockManager, Config, Hashing, Stats};
pub use engine::hit::{Hit, HitLimit};
pub use engine::{BlockCopy, ByteSizes, CacheEvent, PrefillCheckpoint, ReservedBytes, Residency};
pub use error::{Error, Unit};
pub use group::{GroupBlocks, GroupKind, GroupSpec, Role, Storage};
pub use hybrid_blocks_hash as hash;
pub use hybrid_blocks_hash::Digest;
pub use ids::{BlockId, GroupId, PoolId, SlabId};
pub use learn::checkpoint_policy::{CheckpointFormat, CheckpointPolicy, OptionValue};
pub use learn::places as placement;
pub use learn::sessions::{ConversationRank, Hint, Kept, ShadowCaches, Turn, Turns, WorthClass};
pub use pool::{BesideLive, BlockStates, QueuePool};
pub use prefix_index::{Key, PrefixIndex, RunCursor};
pub use rules::vllm;
pub use store::{BlockStore, EvictionOrder, FixedStore, Reservation, SlabStore, Slack, Store};
