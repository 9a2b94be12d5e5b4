//! [`Folder`]: names of segment files, and the steps that make a file safe to find after a crash.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The folder of one namespace, locked against other processes while this lives.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    lock: File,
}

/// What a segment file's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) number: u64,
    pub(super) is_sealed: bool,
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
        fs::create_dir_all(&path).map_err(Error::io("cannot make folder", &path))?;
        let lock_path = path.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(Error::io("cannot open", &lock_path))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| refused_lock(error, &lock_path, &path))?;
        Ok(Self { path, lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
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
                _ if path.file_name().is_some_and(|name| name == "lock") => {}
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

fn refused_lock(error: rustix::io::Errno, lock: &Path, folder: &Path) -> Error {
    use rustix::io::Errno;
    match error {
        Errno::WOULDBLOCK => Error::InUse { path: folder.to_owned() },
        Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP => {
            Error::NoLocks { path: folder.to_owned(), source: error.into() }
        }
        _ => Error::io("cannot lock", lock)(error.into()),
    }
}

fn name_of(path: &Path) -> Option<Name> {
    let is_sealed = match path.extension()?.to_str()? {
        "seg" => true,
        "open" => false,
        _ => return None,
    };
    let number = u64::from_str_radix(path.file_stem()?.to_str()?, 16).ok()?;
    Some(Name { number, is_sealed })
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
