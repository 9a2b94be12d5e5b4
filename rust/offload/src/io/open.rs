//! Files that bypass the kernel's page cache where the file system allows it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Reading.
    Read,
    /// Reading and writing; the file must not be there yet.
    Create,
    /// Reading and writing.
    Write,
}

/// Opens a file. With `direct`, transfers of whole pages bypass the page cache (`O_DIRECT`). File
/// systems that refuse this, such as some in memory, are used through the page cache.
///
/// # Errors
/// As [`OpenOptions::open`].
pub fn open(path: &Path, mode: Mode, direct: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(mode != Mode::Read).create_new(mode == Mode::Create);
    #[cfg(target_os = "linux")]
    if direct {
        use std::os::unix::fs::OpenOptionsExt;
        let mut direct = options.clone();
        direct.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
        match direct.open(path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                // The kernel may have made the file before it refused the flag.
                options.create_new(false).create(mode == Mode::Create);
            }
            other => return other,
        }
    }
    let _ = direct;
    options.open(path)
}
