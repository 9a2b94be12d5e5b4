//! What decides: which prefixes may be hit, what is kept, who is evicted and who is admitted.
//!
//! - `natural`: our own rules. Checkpoints of states are kept where later requests are likely to go
//!   on, and content is evicted by what it is worth.
//! - `vllm`: vLLM's rules, so that every decision is the one that vLLM would take.
//!
//! Both place `Checkpoints` in the same way (`slabs`), where `Traffic` has learned that they are used, and
//! tell why a hit ends where it does. Both ask a `Keeper` for how long content is kept, which listens to
//! what clients say of their `Sessions`.

pub(crate) mod checkpoint_history;
pub(crate) mod checkpoint_policy;
pub(crate) mod hit;
mod keeper;
pub(crate) mod natural;
pub(crate) mod policy;
pub(crate) mod served;
pub(crate) mod sessions;
mod slabs;
mod traffic;
pub mod vllm;
mod windows;
