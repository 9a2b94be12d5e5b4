//! The disk: segment files of bounded size, found again after a restart.

mod entry;
mod evict;
mod files;
mod format;
mod index;
mod jobs;
mod recover;
mod seal;
mod shared;
mod tier;
mod warning;

pub use entry::Entry;
pub use jobs::{ReadJob, WriteJob};
pub use seal::SealJob;
pub use shared::{Disk, StoreReport};
pub use tier::{DiskConfig, DiskTier};
pub use warning::{Warning, WarningKind};
