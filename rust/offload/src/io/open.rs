//! Files that bypass the kernel's page cache where the file system allows it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::fs::OFlags;

use crate::private;

/// The purpose of opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Opens an existing file for reading.
    Read,
    /// Opens a new file for reading and writing; the file must not be there yet.
    Create,
    /// Opens a file for reading and writing.
    Write,
    /// Opens a new file for reading and writing; the file is made if it is not there.
    Lock,
}

/// Opens a regular file; links, pipes and devices are refused. A file that is made or written to is for
/// this user alone. With `direct`, transfers of whole pages bypass the page cache (`O_DIRECT`). File systems
/// that refuse this, such as some in memory, are used through the page cache.
///
/// # Errors
/// As [`OpenOptions::open`], and [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn open(path: &Path, mode: Mode, direct: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(mode != Mode::Read).create_new(mode == Mode::Create);
    options.create(mode == Mode::Lock);
    let file = open_as(path, &mut options, mode, direct)?;
    if mode != Mode::Read {
        private::keep_private(&file)?;
    }
    Ok(file)
}

#[cfg(target_os = "linux")]
fn open_as(path: &Path, options: &mut OpenOptions, mode: Mode, direct: bool) -> io::Result<File> {
    if direct {
        match private::open(path, options, OFlags::DIRECT) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                // The kernel may have made the file before it refused the flag.
                options.create_new(false).create(mode == Mode::Create);
            }
            other => return other,
        }
    }
    private::open(path, options, OFlags::empty())
}

#[cfg(not(target_os = "linux"))]
fn open_as(path: &Path, options: &mut OpenOptions, _: Mode, _: bool) -> io::Result<File> {
    private::open(path, options, OFlags::empty())
}
