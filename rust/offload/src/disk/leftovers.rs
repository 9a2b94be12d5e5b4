//! [`Leftovers`]: files that count against the bound and are never read. They are damaged segments, those of
//! an older format, and those of other namespaces that no engine has open. They go first.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::files::{Folder, LOCK, lock, name_of};

/// A file that goes when room is needed.
#[derive(Clone, Debug)]
pub(super) struct Leftover {
    pub(super) path: PathBuf,
    pub(super) num_bytes: u64,
    pub(super) modified: SystemTime,
    /// Whether the file belongs to another namespace, whose lock is held while its files go.
    pub(super) is_others: bool,
}

impl Leftover {
    /// Removes it, unless an engine has opened its namespace meanwhile, whose own it is then. The last file of
    /// a namespace takes the folder with it.
    pub(super) fn remove(&self, remove: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        let Some(folder) = self.path.parent().filter(|_| self.is_others) else {
            return remove(&self.path);
        };
        let Some(held) = lock(folder)? else { return Ok(()) };
        remove(&self.path)?;
        let mut names = fs::read_dir(folder)?;
        if names.all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOCK)) {
            remove(&folder.join(LOCK))?;
            fs::remove_dir(folder)?;
        }
        drop(held);
        Ok(())
    }
}

impl Folder {
    /// Segment files of the other namespaces under the root that no engine has open. What cannot be read is
    /// passed over: it is another user's.
    pub(super) fn others(&self) -> Vec<Leftover> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let folder = entry.path();
            let is_namespace = folder != self.path
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
                && is_namespace(&entry.file_name().to_string_lossy());
            if !is_namespace || !matches!(lock(&folder), Ok(Some(_))) {
                continue;
            }
            let files = fs::read_dir(&folder).into_iter().flatten().flatten();
            found.extend(files.filter_map(|file| leftover(file.path(), true).ok().flatten()));
        }
        found
    }
}

/// A file with a segment's name, as one that is only removed. `None` for what is no regular file or no
/// segment could be.
pub(super) fn leftover(path: PathBuf, is_others: bool) -> io::Result<Option<Leftover>> {
    let found = fs::symlink_metadata(&path)?;
    if name_of(&path).is_none() || !found.is_file() {
        return Ok(None);
    }
    Ok(Some(Leftover { path, num_bytes: found.len(), modified: found.modified()?, is_others }))
}

fn is_namespace(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Files that go first, oldest first; the namespace's own before those of others.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    pub(super) waiting: VecDeque<Leftover>,
    /// Bytes of all, also of those that could not be removed.
    pub(super) num_bytes: u64,
}

impl Leftovers {
    pub(super) fn new(mut found: Vec<Leftover>) -> Self {
        found.sort_by(|a, b| {
            (a.is_others, a.modified, &a.path).cmp(&(b.is_others, b.modified, &b.path))
        });
        let num_bytes = found.iter().map(|it| it.num_bytes).sum();
        Self { waiting: found.into(), num_bytes }
    }

    /// Ends a removal. A file that could not be removed counts until the next start.
    pub(super) fn end(&mut self, leftover: &Leftover, is_removed: bool) {
        if is_removed {
            self.num_bytes -= leftover.num_bytes;
        }
    }
}
