//! Folders that no other user can enter, and files that are what they seem.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::Error;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const OTHERS_WRITE: u32 = 0o022;
const OTHERS: u32 = 0o077;

/// Makes a folder, and those above it that are missing, for this user alone. One that is there must be
/// this user's own, and no other user may write to it. It may be a link that this user or root has made.
pub(crate) fn make_root(path: &Path) -> Result<(), Error> {
    make(path).map_err(Error::io("cannot make folder", path))?;
    let cannot_use = |error| Error::io("cannot use as a folder", path)(error);
    let link = fs::symlink_metadata(path).map_err(cannot_use)?;
    let found = fs::metadata(path).map_err(cannot_use)?;
    if !found.is_dir() {
        return Err(cannot_use(io::ErrorKind::NotADirectory.into()));
    }
    let is_others_link = link.is_symlink() && link.uid() != 0 && link.uid() != user();
    let others_link = is_others_link.then(|| format!("user {} has made the link", link.uid()));
    match others_link.or_else(|| unsafe_as(&found)) {
        Some(why) => Err(Error::InvalidConfig(format!(
            "{path} is not safe for what users wrote: {why}. Name a folder that is not there yet, such \
             as {path}/kv, which is then made for user {user} alone, or make {path} so: chown {user} \
             {path} && chmod go-w {path}",
            path = path.display(),
            user = user(),
        ))),
        None => Ok(()),
    }
}

/// Makes a folder below one of [`make_root`], for this user alone, and takes what others may do from one
/// that is there.
pub(crate) fn make_below(path: &Path) -> Result<(), Error> {
    make(path).map_err(Error::io("cannot make folder", path))?;
    let check = || {
        let found = fs::symlink_metadata(path)?;
        if !found.is_dir() || found.uid() != user() {
            return Err(io::Error::other("it is no folder of this user's own"));
        }
        set_mode(path, &found, OTHERS, FOLDER_MODE)
    };
    check().map_err(Error::io("cannot use", path))
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Why a folder is not safe.
fn unsafe_as(found: &Metadata) -> Option<String> {
    if found.uid() != user() {
        return Some(format!("user {} owns it", found.uid()));
    }
    let mode = found.mode() & 0o777;
    (mode & OTHERS_WRITE != 0).then(|| format!("others can write to it (mode {mode:o})"))
}

fn set_mode(path: &Path, found: &Metadata, forbidden: u32, mode: u32) -> io::Result<()> {
    let is_right = found.mode() & forbidden == 0 && found.mode() & mode == mode;
    if is_right { Ok(()) } else { fs::set_permissions(path, Permissions::from_mode(mode)) }
}

fn make(path: &Path) -> io::Result<()> {
    match make_one(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(path.parent().ok_or(error)?)?;
            make_one(path)
        }
        other => other,
    }
}

/// Some folders say that what is made in them is not found, such as those of `/proc`.
fn make_one(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        // The mask of this process may have taken rights of its own.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens a regular file by `options` and further flags. Links, pipes and devices are refused, and not
/// opened. A file that is made is for this user alone.
pub(crate) fn open(path: &Path, options: &OpenOptions, flags: OFlags) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => return Err(no_file()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut options = options.clone();
    options.mode(FILE_MODE).custom_flags((safe | flags).bits().cast_signed());
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(no_file());
    }
    // Transfers of a file that does not block may end early.
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Takes what others may do with a file that this process writes, whatever its mask is.
pub(crate) fn keep_private(file: &File) -> io::Result<()> {
    if file.metadata()?.mode() & 0o777 == FILE_MODE {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(FILE_MODE))
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}
