//! `hybrid_blocks._core.vllm`: vLLM's block pool, block manager, request hasher and the loops of its
//! scheduler over decoding requests, on the core crate. Everything that speaks vLLM is here.
#![deny(unsafe_code)]
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

mod blocks;
mod engine;
mod hasher;
mod hooks;
mod manager;
mod request;
mod scheduler;

/// The Python module.
#[pyo3::pymodule(submodule, gil_used = true)]
pub mod vllm {
    #[pymodule_export]
    use super::blocks::{Block, Blocks};
    #[pymodule_export]
    use super::hasher::RequestHasher;
    #[pymodule_export]
    use super::manager::{AllocatedBlocks, RustKVCacheManager};
    #[pymodule_export]
    use super::request::{RequestAttribute, RequestGetState, RequestState};
    #[pymodule_export]
    use super::scheduler::{DecodeBatch, ScheduledDecodes, SpecCounts, TakenOutputs};
}
