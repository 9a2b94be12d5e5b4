//! Decisions: which prefixes are hit, which blocks are kept and evicted, which requests are admitted.
//!
//! `vllm` answers as vLLM does, block id by block id. `slabs` adds to it what a store of slabs allows: where checkpoints
//! are left, and which requests may be admitted. Both ask `learn` where prompts leave earlier ones and for how long
//! content is kept. `batch` drives them without vLLM.

mod slabs;
pub mod vllm;
