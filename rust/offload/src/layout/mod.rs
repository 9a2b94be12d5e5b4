//! Layouts: where each head of each layer lies in a chunk that all ranks share.

mod group;
mod shard;
mod version;

pub use group::{GroupLayout, Part, PartKind};
pub use shard::Shard;
pub use version::{LayoutVersion, ModelIdentity};
