//! [`DiskTier`]: which chunks the disk holds, and which transfers are under way. Once it is open it waits
//! for no disk: transfers, and all that is done with files, are jobs that run without its lock.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Instant;

use hybrid_blocks::{BlockId, Key};

use super::config::DiskConfig;
use super::files::Folder;
use super::index::Index;
use super::leftovers::Leftovers;
use super::segment::Segment;
use crate::error::Error;
use crate::failures::Failures;
use crate::key::Namespace;
use crate::plan::{Previous, Tier};
use crate::warning::{Warning, WarningKind, Warnings};

/// Bookkeeping of one namespace on one disk.
#[derive(Debug)]
pub struct DiskTier {
    pub(super) config: DiskConfig,
    pub(super) segment_bytes: u64,
    pub(super) namespace: [u8; 32],
    pub(super) folder: Folder,
    pub(super) index: Index,
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) leftovers: Leftovers,
    pub(super) next_number: u64,
    /// The segment that new chunks go to.
    pub(super) current: Option<u64>,
    /// Sealed segments whose files are open, in the order of opening.
    pub(super) opened: VecDeque<u64>,
    pub(super) warnings: Warnings,
    /// The segment whose file is being made.
    pub(super) making: Option<u64>,
    /// Bytes of segments when the file system was found to be full.
    pub(super) full_at: Option<u64>,
    /// Chunks that could not be read lately.
    pub(super) failures: Failures,
    paused_until: Option<Instant>,
}

impl DiskTier {
    /// Opens or makes the folder of a namespace and reads which chunks it holds. `warn` gets what goes
    /// wrong later, and files that cannot be used.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], [`Error::InUse`], and [`Error::Io`] where the folder cannot be made,
    /// read or written.
    pub fn open(
        config: DiskConfig,
        namespace: &Namespace,
        warn: impl Fn(&Warning) + Send + 'static,
    ) -> Result<Self, Error> {
        let namespace = namespace.fingerprint();
        let mut tier = Self {
            segment_bytes: config.segment_bytes()?,
            folder: Folder::open(&config.path, &namespace)?,
            namespace,
            index: Index::default(),
            segments: BTreeMap::new(),
            leftovers: Leftovers::default(),
            next_number: 0,
            current: None,
            opened: VecDeque::new(),
            warnings: Warnings::new(Box::new(warn), config.retry_after),
            making: None,
            full_at: None,
            failures: Failures::new(config.retry_after),
            paused_until: None,
            config,
        };
        tier.recover()?;
        Ok(tier)
    }

    /// Chunks that can be read.
    pub fn num_chunks(&self) -> usize {
        self.index.len()
    }

    /// Bytes of all segment files under the folder, but those of other namespaces that are in use.
    pub fn num_bytes(&self) -> u64 {
        let made: u64 = self.segments.values().map(|segment| segment.num_bytes).sum();
        let making = self.making.map_or(0, |_| self.segment_bytes);
        made + making + self.leftovers.num_bytes
    }

    /// Whether nothing is written for now because a write failed.
    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Notes that a request used chunks, wherever it read them: they are moved when their segment goes. Those that
    /// are not here are passed over.
    pub fn touch(&mut self, keys: &[Key]) {
        for slot in keys.iter().filter_map(|key| self.index.find(key)).collect::<Vec<_>>() {
            self.index.mark_used(slot);
        }
    }

    pub(super) fn pause(&mut self, what: &str, error: &io::Error) {
        self.paused_until = Some(Instant::now() + self.config.retry_after);
        let message = format!(
            "{what} in {} failed: {error}; nothing is stored there for {} s, requests go on",
            self.folder.path.display(),
            self.config.retry_after.as_secs()
        );
        self.warnings.warn(WarningKind::Write, message);
    }
}

impl Tier for DiskTier {
    #[inline]
    fn find(&self, key: &Key, previous: Previous) -> Option<BlockId> {
        let slot = self.index.find_after(key, previous.last().0)?;
        (!self.failures.contains(key)).then_some(BlockId(slot))
    }
}
