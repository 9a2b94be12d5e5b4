//! Offload for hybrid models: host memory and disk, where a state and its attention live and die
//! together.
//!
//! # Words
//! - *Chunk*: what of one group is stored under one key; in vLLM a block.
//! - *Tier*: a place below the device that holds chunks, such as host memory or a disk.
//! - *Namespace*: the layouts of all groups of a model; engines that share it can share files.
#![deny(unsafe_code)]

pub mod disk;
mod error;
mod failures;
pub mod host;
pub mod io;
mod key;
pub mod layout;
mod lock;
pub mod objects;
pub mod plan;
mod private;
mod warning;

pub use error::Error;
pub use key::{Namespace, StoredKey};
