//! The disk: segment files of bounded size, found again after a restart.

mod config;
mod entry;
mod evict;
mod files;
mod format;
mod housekeeping;
mod index;
mod jobs;
mod leftovers;
mod make;
mod reads;
mod recover;
mod scan;
mod seal;
mod segment;
mod shared;
mod storage;
mod tier;
mod writes;

pub use crate::warning::{Warning, WarningKind};
pub use config::DiskConfig;
pub use entry::{Entry, Seed};
pub use files::make_folder;
pub use jobs::{ReadJob, WriteJob};
pub use make::MakeJob;
pub use reads::Closed;
pub use seal::SealJob;
pub use shared::Disk;
pub use storage::{OsStorage, Storage};
pub use tier::DiskTier;
pub use writes::WritePlan;
