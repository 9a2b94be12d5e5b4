//! Objects: chunks in a bucket or a folder that many engines share.

mod folder;
mod format;
mod index;
mod listing;
mod location;
mod refusal;
mod shared;
mod tier;

pub use location::Location;
pub use shared::{ObjectConfig, Objects};
pub use tier::ObjectTier;
