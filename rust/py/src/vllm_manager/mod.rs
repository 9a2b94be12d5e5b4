//! vLLM's `KVCacheManager`, decided in the core.

mod config;
mod digests;
mod events;
pub(crate) mod facts;
mod manager;
mod result;

pub(crate) use manager::VllmManager;
pub(crate) use result::AllocatedBlocks;
