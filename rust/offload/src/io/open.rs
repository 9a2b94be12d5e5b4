//! Files that bypass the kernel's page cache where the file system allows it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};

use super::PAGE;
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
/// that refuse this, such as some in memory, or that need larger transfers, are used through the page cache.
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
            Ok(file) if takes_pages(&file) => return Ok(file),
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                return Err(error);
            }
            // The kernel may have made the file before it refused the flag.
            _ => options.create_new(false).create(mode == Mode::Create),
        };
    }
    private::open(path, options, OFlags::empty())
}

/// Whether direct transfers of a file may begin and end at every [`PAGE`]. Kernels before 6.1 do not tell.
#[cfg(target_os = "linux")]
fn takes_pages(file: &File) -> bool {
    let Ok(found) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return true;
    };
    let tells = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN);
    !tells || divide_page(found.stx_dio_mem_align, found.stx_dio_offset_align)
}

/// Whether a page is a multiple of the alignments of addresses and offsets; 0 allows no direct transfer.
#[cfg(target_os = "linux")]
fn divide_page(address: u32, offset: u32) -> bool {
    [address, offset].iter().all(|&it| it != 0 && PAGE.is_multiple_of(it as usize))
}

#[cfg(not(target_os = "linux"))]
fn open_as(path: &Path, options: &mut OpenOptions, _: Mode, _: bool) -> io::Result<File> {
    private::open(path, options, OFlags::empty())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::divide_page;

    #[test]
    fn a_device_of_larger_blocks_is_used_through_the_page_cache() {
        for (address, offset) in [(4, 512), (512, 512), (512, 4096), (4096, 4096)] {
            assert!(divide_page(address, offset), "{address}, {offset}");
        }
        for (address, offset) in [(512, 16 << 10), (64 << 10, 4096), (64 << 10, 64 << 10), (0, 0)] {
            assert!(!divide_page(address, offset), "{address}, {offset}");
        }
    }
}
