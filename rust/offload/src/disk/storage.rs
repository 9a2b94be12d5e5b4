//! [`Storage`]: what a disk tier does with whole files.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::files::{preallocate, publish};
use crate::io::{Mode, open};

/// Steps that may wait for a disk. [`super::Disk`] takes none of them with a lock that a look-up needs.
pub trait Storage: Debug + Send + Sync {
    /// Makes a file of `num_bytes` that begins with `header`. After an error nothing of it is left; a file
    /// that was there before stays as it was, which is [`io::ErrorKind::AlreadyExists`].
    ///
    /// # Errors
    /// As the operating system's.
    fn create(&self, path: &Path, num_bytes: u64, header: &[u8], direct: bool) -> io::Result<File>;

    /// Opens a file for reads.
    ///
    /// # Errors
    /// As the operating system's.
    fn open(&self, path: &Path, direct: bool) -> io::Result<File>;

    /// Gives a whole file its final name, so that a crash at any point leaves one name or the other.
    ///
    /// # Errors
    /// As the operating system's. It can be called again.
    fn publish(&self, file: &File, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// As the operating system's.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsStorage;

impl Storage for OsStorage {
    fn create(&self, path: &Path, num_bytes: u64, header: &[u8], direct: bool) -> io::Result<File> {
        let file = open(path, Mode::Create, direct)?;
        let filled = preallocate(&file, num_bytes).and_then(|()| file.write_all_at(header, 0));
        if let Err(error) = filled {
            // Half a file would take room; if it cannot be removed either, recovery will.
            let _ = fs::remove_file(path);
            return Err(error);
        }
        Ok(file)
    }

    fn open(&self, path: &Path, direct: bool) -> io::Result<File> {
        open(path, Mode::Read, direct)
    }

    fn publish(&self, file: &File, from: &Path, to: &Path) -> io::Result<()> {
        publish(file, from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}
