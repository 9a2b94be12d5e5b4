//! Calls of vLLM's own managers with their answers, as `make fixtures` wrote them down.

mod digests;
mod engine;
pub(crate) mod fixture;
pub(crate) mod replay;
