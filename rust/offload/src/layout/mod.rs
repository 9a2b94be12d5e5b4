//! Layouts: where each head of each layer lies in a stored chunk, whatever the number of ranks.

mod codec;
mod format;
mod group;
mod shard;
mod version;

pub use codec::ChunkCodec;
pub use format::StateFormat;
pub use group::{GroupLayout, Part, PartKind};
pub use shard::Shard;
pub use version::{LayoutVersion, ModelIdentity};
