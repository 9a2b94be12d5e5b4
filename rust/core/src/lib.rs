//! KV-cache block manager for hybrid language models.
#![forbid(unsafe_code)]

mod digest;
pub mod hash;

pub use digest::Digest;
