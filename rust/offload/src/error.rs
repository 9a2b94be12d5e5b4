//! Everything that can go wrong. A failed call has changed nothing.

use std::io;
use std::path::PathBuf;

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size or a combination of sizes that no tier or layout can have.
    #[error("{0}")]
    InvalidConfig(String),
    /// A refusal of the block store.
    #[error(transparent)]
    Store(#[from] hybrid_blocks::Error),
    /// The operating system refused a file operation.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// The call that failed.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Answer of the operating system.
        source: io::Error,
    },
    /// Another process uses the folder.
    #[error(
        "{path} is in use by another process; give each engine a folder of its own",
        path = path.display()
    )]
    InUse {
        /// Folder of the tier.
        path: PathBuf,
    },
    /// The file system has no locks.
    #[error(
        "the file system of {path} has no locks ({source}), and a folder that two engines write is lost; use a \
         local disk, or mount it with locks",
        path = path.display()
    )]
    NoLocks {
        /// Folder of the tier.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
