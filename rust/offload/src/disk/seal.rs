//! [`SealJob`]: a full segment gets its footer and its final name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::entry::Entry;
use super::format::{Header, encode_footer};
use super::storage::Storage;

/// The sealing of one segment. It waits for the disk, so it runs without the tier's lock.
#[derive(Debug)]
pub struct SealJob {
    pub(super) header: Header,
    pub(super) file: Arc<File>,
    /// Where the footer starts: after the last chunk.
    pub(super) end: u64,
    pub(super) entries: Vec<Entry>,
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
}

impl SealJob {
    /// Writes the footer and renames the file. Returns the bytes of the file.
    ///
    /// # Errors
    /// As the operating system's. The file is then as it was, or has a footer that recovery writes
    /// again.
    pub fn run(&self, storage: &dyn Storage) -> io::Result<u64> {
        let footer = encode_footer(self.header, self.end, &self.entries);
        self.file.write_all_at(&footer, self.end)?;
        let num_bytes = self.end + footer.len() as u64;
        self.file.set_len(num_bytes)?;
        storage.publish(&self.file, &self.from, &self.to)?;
        Ok(num_bytes)
    }
}
