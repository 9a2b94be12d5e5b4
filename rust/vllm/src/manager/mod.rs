//! vLLM's `KVCacheManager`, decided in the core.

mod allocate;
mod client_hints;
mod config;
mod core;
mod digests;
mod events;
mod methods;
mod result;

pub(crate) use self::core::RustKVCacheManager;
pub(crate) use allocate::Room;
pub(crate) use result::{AllocatedBlocks, id_lists};
