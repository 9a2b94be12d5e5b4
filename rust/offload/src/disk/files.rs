//! [`Folder`]: names of segment files, and the steps that make a file safe to find after a crash.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::io::{Mode, open};
use crate::private;

pub(super) const LOCK: &str = "lock";

/// Files with higher numbers are foreign: segments are counted from 0, and their number never wraps.
const HIGHEST_NUMBER: u64 = 1 << 48;

/// The folder of one namespace, locked against other processes while this lives.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) root: PathBuf,
    pub(super) path: PathBuf,
    lock: File,
}

/// The meaning of a segment file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) number: u64,
    pub(super) is_sealed: bool,
}

/// Makes a folder for namespaces, or checks that the one that is there is this user's own.
///
/// # Errors
/// [`Error::InvalidConfig`] if other users own it or can write to it, [`Error::Io`] where it cannot be made.
pub fn make_folder(path: &Path) -> Result<(), Error> {
    private::make_root(path)
}

impl Folder {
    /// Makes `root/NAMESPACE` if needed, and locks it.
    pub(super) fn open(root: &Path, namespace: &[u8; 32]) -> Result<Self, Error> {
        use std::fmt::Write as _;
        let name = namespace[..16].iter().fold(String::new(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        });
        let path = root.join(name);
        private::make_root(root)?;
        private::make_below(&path)?;
        let lock = lock_patiently(&path).map_err(|error| refused_lock(error, &path))?;
        let lock = lock.ok_or_else(|| Error::InUse { path: path.clone() })?;
        Ok(Self { root: root.to_owned(), path, lock })
    }

    /// `.open` while it is written, `.seg` from the moment its footer is on the disk.
    pub(super) fn path_of(&self, name: Name) -> PathBuf {
        let ending = if name.is_sealed { "seg" } else { "open" };
        self.path.join(format!("{:016x}.{ending}", name.number))
    }

    /// Segment files, oldest first, and the paths of all other files but the lock.
    pub(super) fn list(&self) -> io::Result<(Vec<Name>, Vec<PathBuf>)> {
        let (mut names, mut others) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            match name_of(&path) {
                Some(name) if self.path_of(name) == path => names.push(name),
                _ if path.file_name().is_some_and(|name| name == LOCK) => {}
                _ => others.push(path),
            }
        }
        names.sort_unstable_by_key(|name| (name.number, name.is_sealed));
        Ok((names, others))
    }
}

impl Drop for Folder {
    /// A child process that was just forked may still hold the file open, and the lock would live on.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.lock, rustix::fs::FlockOperation::Unlock);
    }
}

fn refused_lock(error: io::Error, folder: &Path) -> Error {
    use rustix::io::Errno;
    match Errno::from_io_error(&error) {
        Some(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => {
            Error::NoLocks { path: folder.to_owned(), source: error }
        }
        _ => Error::io("cannot lock", folder.join(LOCK))(error),
    }
}

/// Locks a namespace's folder. `None` if another process has it.
pub(super) fn lock(folder: &Path) -> io::Result<Option<File>> {
    let path = folder.join(LOCK);
    loop {
        let file = open(&path, Mode::Lock, false)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            result => result?,
        }
        // The last file of a namespace takes the lock with it, maybe just now.
        let is_there = fs::symlink_metadata(&path).is_ok_and(|it| {
            file.metadata().is_ok_and(|held| (it.dev(), it.ino()) == (held.dev(), held.ino()))
        });
        if is_there {
            return Ok(Some(file));
        }
    }
}

/// As [`lock`]. An engine of another namespace may just look whether this one is in use.
fn lock_patiently(folder: &Path) -> io::Result<Option<File>> {
    for _ in 0..10 {
        match lock(folder) {
            Ok(None) => thread::sleep(Duration::from_millis(50)),
            result => return result,
        }
    }
    lock(folder)
}

pub(super) fn name_of(path: &Path) -> Option<Name> {
    let is_sealed = match path.extension()?.to_str()? {
        "seg" => true,
        "open" => false,
        _ => return None,
    };
    let number = u64::from_str_radix(path.file_stem()?.to_str()?, 16).ok()?;
    (number <= HIGHEST_NUMBER).then_some(Name { number, is_sealed })
}

/// Gives a file that is complete its final name: first its bytes reach the disk, then the name changes in
/// one step, then the folder's entry reaches the disk. After a crash at any point the file has one name or
/// the other, and under the final one it is whole. After an error it can be called again.
pub(super) fn publish(file: &File, from: &Path, to: &Path) -> io::Result<()> {
    file.sync_all()?;
    match fs::rename(from, to) {
        // An earlier try got as far as this.
        Err(error) if error.kind() == io::ErrorKind::NotFound && to.try_exists()? => {}
        result => result?,
    }
    match to.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Reserves room for a file, so that a full disk is noticed before anything is written to it.
pub(super) fn preallocate(file: &File, num_bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, num_bytes) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(num_bytes),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_file_system_without_locks_is_said_to_be_one() {
        let refused = |errno: Errno| {
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            refused_lock(error, Path::new("/mnt/kv"))
        };
        for errno in [Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP] {
            let error = refused(errno);
            assert!(matches!(error, Error::NoLocks { .. }), "{error}");
            assert!(
                error.to_string().starts_with("the file system of /mnt/kv has no locks"),
                "{error}"
            );
        }
        let error = refused(Errno::ACCESS);
        assert!(matches!(error, Error::Io { action: "cannot lock", .. }), "{error}");
    }
}
