//! `hybrid_blocks._core`: the core crate as a Python module. Everything delegates.
#![deny(unsafe_code)]

mod batch;
mod block_manager;
mod block_store;
mod blocks;
mod build_info;
mod count;
mod error;
mod extra_keys;
mod group_spec;
mod guarded;
mod hash;
mod placement;
mod policy;
mod request_hasher;
mod tokens;
mod vllm_manager;
mod vllm_scheduler;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::block_manager::BlockManager;
    #[pymodule_export]
    use super::block_store::BlockStore;
    #[pymodule_export]
    use super::blocks::{Block, Blocks};
    #[pymodule_export]
    use super::build_info::build_info;
    #[pymodule_export]
    use super::group_spec::GroupSpec;
    #[pymodule_export]
    use super::hash::{BlockHasher, HashChain};
    #[pymodule_export]
    use super::placement::Placement;
    #[pymodule_export]
    use super::policy::{Compaction, FlopModel};
    #[pymodule_export]
    use super::request_hasher::{HandedDigests, RequestHasher};
    #[pymodule_export]
    use super::vllm_manager::{AllocatedBlocks, VllmManager};
    #[pymodule_export]
    use super::vllm_scheduler::{DecodeBatch, ScheduledDecodes, TakenOutputs};
}
