//! What decides: which prefixes may be hit, what is kept, who is evicted and who is admitted.
//!
//! - `vllm`: vLLM's rules, so that every decision is the one that vLLM would take; over slabs our own: checkpoints
//!   of states are kept where later requests are likely to go on, and content is evicted by what it is worth.
//!
//! `slabs` places `Checkpoints` where `Traffic` has learned that they are used. A `Keeper` says how long content is
//! kept, and listens to what clients say of their `Sessions`.

pub(crate) mod checkpoint_history;
pub(crate) mod checkpoint_policy;
pub(crate) mod hit;
mod keeper;
pub(crate) mod sessions;
mod slabs;
mod traffic;
pub mod vllm;
mod windows;
