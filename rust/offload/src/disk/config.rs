//! [`DiskConfig`]: what a disk tier may use.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::io::PAGE;

/// The limits of a disk tier.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The folder; each namespace has its own below it.
    pub path: PathBuf,
    /// Bytes of all segment files of the namespace together, at most.
    pub max_bytes: u64,
    /// Bytes of a segment file, at most; a multiple of 4,096. `None`: a 64th of `max_bytes`, between
    /// 16 MiB and 256 MiB where that leaves four segments, and more where the largest chunk needs it.
    pub segment_bytes: Option<u64>,
    /// Bytes of the largest chunk that will be stored. Every segment has room for it.
    pub largest_chunk: u64,
    /// Whether transfers bypass the page cache where the file system allows it.
    pub direct: bool,
    /// For how long nothing is written after a failed write, and how far apart warnings of a kind are.
    pub retry_after: Duration,
}

impl DiskConfig {
    /// `max_bytes` under `path`, direct transfers, and one minute between tries and warnings.
    pub fn new(path: impl Into<PathBuf>, max_bytes: u64) -> Self {
        let retry_after = Duration::from_secs(60);
        let path = path.into();
        Self { path, max_bytes, segment_bytes: None, largest_chunk: 0, direct: true, retry_after }
    }

    pub(super) fn segment_bytes(&self) -> Result<u64, Error> {
        let page = PAGE as u64;
        let least = segment_of(self.largest_chunk);
        if self.largest_chunk > 0 && least > self.max_bytes / FEWEST_SEGMENTS {
            return Err(Error::InvalidConfig(format!(
                "a disk limit of {} is too small: the largest chunk has {}, so that at least {} are \
                 needed for {FEWEST_SEGMENTS} segments",
                in_gib(self.max_bytes),
                in_gib(self.largest_chunk),
                in_gib(least.saturating_mul(FEWEST_SEGMENTS)),
            )));
        }
        let most = self.max_bytes / FEWEST_SEGMENTS;
        let default = (self.max_bytes / 64).clamp(16 << 20, 256 << 20).min(most).max(least);
        let bytes = self.segment_bytes.unwrap_or(default / page * page);
        if bytes < least || !bytes.is_multiple_of(page) || bytes > most {
            return Err(Error::InvalidConfig(format!(
                "segments of {bytes} bytes on a disk of {} bytes: a segment must be a multiple of \
                 4,096 bytes, at least {least}, and at most a quarter of the disk",
                self.max_bytes
            )));
        }
        Ok(bytes)
    }
}

/// The least number of segments of a disk: one is written, one sealed, and one may be evicted.
const FEWEST_SEGMENTS: u64 = 4;

/// Bytes of a segment that holds one chunk: header, batch page, entries and trailer have a page each.
fn segment_of(num_bytes: u64) -> u64 {
    let page = PAGE as u64;
    num_bytes.max(1).div_ceil(page).saturating_add(4).saturating_mul(page)
}

/// Bytes in words, rounded up: what an error asks for is enough.
fn in_gib(num_bytes: u64) -> String {
    const STEPS: u64 = 1000;
    let steps = (u128::from(num_bytes) * u128::from(STEPS)).div_ceil(1 << 30);
    format!("{}.{:03} GiB", steps / u128::from(STEPS), steps % u128::from(STEPS))
}
