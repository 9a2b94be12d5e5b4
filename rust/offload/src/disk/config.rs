//! [`DiskConfig`]: what a disk tier may use.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::io::PAGE;

/// What a disk tier may use.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The folder; each namespace has its own below it.
    pub path: PathBuf,
    /// Bytes of all segment files of the namespace together, at most.
    pub max_bytes: u64,
    /// Bytes of a segment file, at most; a multiple of 4,096. `None`: a 64th of `max_bytes`, between
    /// 16 MiB and 256 MiB where that leaves four segments.
    pub segment_bytes: Option<u64>,
    /// Whether transfers bypass the page cache where the file system allows it.
    pub direct: bool,
    /// For how long nothing is written after a failed write, and how far apart warnings of a kind are.
    pub retry_after: Duration,
}

impl DiskConfig {
    /// `max_bytes` under `path`, direct transfers, and one minute between tries and warnings.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, max_bytes: u64) -> Self {
        let retry_after = Duration::from_secs(60);
        Self { path: path.into(), max_bytes, segment_bytes: None, direct: true, retry_after }
    }

    pub(super) fn segment_bytes(&self) -> Result<u64, Error> {
        let page = PAGE as u64;
        let default = (self.max_bytes / 64).clamp(16 << 20, 256 << 20).min(self.max_bytes / 4);
        let bytes = self.segment_bytes.unwrap_or(default / page * page);
        if bytes < 4 * page || !bytes.is_multiple_of(page) || bytes > self.max_bytes / 4 {
            return Err(Error::InvalidConfig(format!(
                "segments of {bytes} bytes on a disk of {} bytes: a segment must be a multiple of \
                 4,096 bytes, at least 16,384, and at most a quarter of the disk",
                self.max_bytes
            )));
        }
        Ok(bytes)
    }
}
