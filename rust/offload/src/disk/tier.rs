//! [`DiskTier`]: which chunks the disk holds, and which transfers are under way. It waits for the disk
//! only to open files; transfers are jobs that run without its lock.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hybrid_blocks::{BlockId, Key};

use super::entry::Entry;
use super::files::{Folder, Name, preallocate};
use super::format::{Header, MOST_ENTRIES};
use super::index::Index;
use super::jobs::{ReadJob, WriteJob, lay_out, padded};
use super::seal::SealJob;
use super::warning::{Warning, WarningKind, Warnings};
use crate::error::Error;
use crate::io::{Mode, PAGE, open};
use crate::key::Namespace;
use crate::plan::{Previous, Tier};

/// Files kept open for reads.
const OPEN_FILES: usize = 64;

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

    fn segment_bytes(&self) -> Result<u64, Error> {
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

/// A segment file.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// Bytes of the file.
    pub(super) num_bytes: u64,
    /// Its slots in the index; some may belong to another segment by now.
    pub(super) slots: Vec<u32>,
    pub(super) file: Option<Arc<File>>,
    /// `None` once it is sealed.
    pub(super) writer: Option<Writer>,
}

/// What a segment that is not sealed has beside its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    /// Where the next batch goes.
    end: u64,
    num_entries: u64,
    /// Write jobs, or a seal job, under way.
    num_pending: u32,
    /// No further batch goes to it.
    is_closing: bool,
}

/// Bookkeeping of one namespace on one disk.
#[derive(Debug)]
pub struct DiskTier {
    pub(super) config: DiskConfig,
    pub(super) segment_bytes: u64,
    pub(super) namespace: [u8; 32],
    pub(super) folder: Folder,
    pub(super) index: Index,
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) next_number: u64,
    current: Option<u64>,
    opened: VecDeque<u64>,
    pub(super) warnings: Warnings,
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
            next_number: 0,
            current: None,
            opened: VecDeque::new(),
            warnings: Warnings::new(Box::new(warn), config.retry_after),
            paused_until: None,
            config,
        };
        tier.recover()?;
        Ok(tier)
    }

    /// Chunks that can be read.
    #[must_use]
    pub fn num_chunks(&self) -> usize {
        self.index.len()
    }

    /// Bytes of all segment files.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.num_bytes).sum()
    }

    /// Whether nothing is written for now because a write failed.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    pub(super) fn pause(&mut self, what: &str, error: &io::Error) {
        self.paused_until = Some(Instant::now() + self.config.retry_after);
        let message = format!(
            "{what} in {} failed: {error}; nothing is stored there for {} s, requests go on",
            self.folder.path().display(),
            self.config.retry_after.as_secs()
        );
        self.warnings.warn(WarningKind::Write, message);
    }

    fn header(&self, number: u64) -> Header {
        Header { namespace: self.namespace, number }
    }

    /// Plans the writing of chunks (name, tokens and bytes each) that are not there yet, as many as one
    /// segment takes. `None` if all are there, too large for a segment, or nothing can be written now.
    /// With `replace`, chunks are written that are there already.
    pub fn plan_write(&mut self, chunks: &[(Key, u32, u32)], replace: bool) -> Option<WriteJob> {
        if self.is_paused() {
            return None;
        }
        let is_new = |(_, (key, _, num_bytes)): &(usize, &(Key, u32, u32))| {
            *num_bytes > 0
                && self.room_of(1) >= padded(*num_bytes)
                && (replace || self.index.find(key).is_none())
        };
        let wanted: Vec<_> = chunks.iter().enumerate().filter(is_new).collect();
        let &(_, &(_, _, first)) = wanted.first()?;
        let number = match self.current {
            Some(number) if self.room_in(number, 1) >= padded(first) => number,
            _ => self.roll()?,
        };
        let (mut used, mut taken) = (0, Vec::new());
        for (at, &(key, num_tokens, num_bytes)) in wanted {
            let after = used + padded(num_bytes);
            if after > self.room_in(number, taken.len() as u64 + 1) {
                break;
            }
            used = after;
            taken.push((at, Entry { key, num_tokens, offset: 0, num_bytes, checksum: 0 }));
        }
        let (chunks, entries): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        let segment = self.segments.get_mut(&number)?;
        let (file, writer) = (segment.file.clone()?, segment.writer.as_mut()?);
        writer.num_entries += entries.len() as u64;
        writer.num_pending += 1;
        let (batches, end) = lay_out(number, writer.end, entries);
        writer.end = end;
        Some(WriteJob { number, file, batches, chunks })
    }

    /// Bytes for chunks in an empty segment of `num_entries` entries.
    fn room_of(&self, num_entries: u64) -> u64 {
        self.room_after(PAGE as u64, 0, num_entries)
    }

    fn room_in(&self, number: u64, more: u64) -> u64 {
        let writer = self.segments.get(&number).and_then(|segment| segment.writer);
        writer.map_or(0, |writer| self.room_after(writer.end, writer.num_entries, more))
    }

    fn room_after(&self, end: u64, num_entries: u64, more: u64) -> u64 {
        let page = PAGE as u64;
        let batch_pages = more.div_ceil(MOST_ENTRIES as u64) * page;
        let entries = ((num_entries + more) * Entry::LEN as u64).next_multiple_of(page);
        self.segment_bytes.saturating_sub(end + batch_pages + entries + page)
    }

    /// Stops writing to the current segment. It is sealed once its jobs have ended.
    pub fn close_current(&mut self) {
        let segment = self.current.take().and_then(|number| self.segments.get_mut(&number));
        if let Some(writer) = segment.and_then(|segment| segment.writer.as_mut()) {
            writer.is_closing = true;
        }
    }

    /// Starts a new segment, if the disk's bound leaves room for one.
    fn roll(&mut self) -> Option<u64> {
        self.close_current();
        if self.needs_eviction() {
            return None;
        }
        let number = self.next_number;
        let path = self.folder.path_of(Name { number, is_sealed: false });
        let made = open(&path, Mode::Create, self.config.direct).and_then(|file| {
            preallocate(&file, self.segment_bytes)?;
            file.write_all_at(&self.header(number).encode(), 0)?;
            Ok(file)
        });
        match made {
            Ok(file) => {
                let end = PAGE as u64;
                let writer = Writer { end, num_entries: 0, num_pending: 0, is_closing: false };
                let segment = Segment {
                    num_bytes: self.segment_bytes,
                    file: Some(Arc::new(file)),
                    writer: Some(writer),
                    slots: Vec::new(),
                };
                self.segments.insert(number, segment);
                self.next_number += 1;
                self.current = Some(number);
                Some(number)
            }
            Err(error) => {
                // Half a file would take room; if it cannot be removed either, recovery will.
                let _ = std::fs::remove_file(&path);
                self.pause("making a segment", &error);
                None
            }
        }
    }

    /// Ends a write. After a success its chunks are found; after an error none of them is, its segment is
    /// closed, and nothing is written for a while.
    pub fn complete_write(&mut self, job: WriteJob, result: &io::Result<()>) {
        let Some(segment) = self.segments.get_mut(&job.number) else { return };
        if let Some(writer) = &mut segment.writer {
            writer.num_pending -= 1;
        }
        match result {
            Ok(()) => {
                for entry in job.batches.into_iter().flat_map(|batch| batch.page.entries) {
                    let (slot, _) = self.index.insert(entry, job.number);
                    segment.slots.push(slot);
                }
            }
            Err(error) => {
                if self.current == Some(job.number) {
                    self.close_current();
                }
                self.pause("a write", error);
            }
        }
    }

    /// Segments that are full and have no job under way, to be sealed.
    pub fn take_seals(&mut self) -> Vec<SealJob> {
        if self.is_paused() {
            return Vec::new();
        }
        let namespace = self.namespace;
        let ready = self.segments.iter_mut().filter_map(|(&number, segment)| {
            let writer = segment.writer.as_mut()?;
            if !writer.is_closing || writer.num_pending > 0 {
                return None;
            }
            let file = segment.file.clone()?;
            writer.num_pending += 1;
            let held = segment.slots.iter().filter_map(|&slot| self.index.get(slot));
            let entries = held.filter(|held| held.segment == number).map(|held| held.entry);
            Some(SealJob {
                header: Header { namespace, number },
                file,
                end: writer.end,
                entries: entries.collect(),
                from: self.folder.path_of(Name { number, is_sealed: false }),
                to: self.folder.path_of(Name { number, is_sealed: true }),
            })
        });
        ready.collect()
    }

    /// Ends the sealing of a segment. After an error it is tried again later.
    pub fn complete_seal(&mut self, job: &SealJob, result: &io::Result<u64>) {
        let Some(segment) = self.segments.get_mut(&job.header.number) else { return };
        match result {
            Ok(num_bytes) => {
                segment.num_bytes = *num_bytes;
                segment.writer = None;
                segment.file = None;
            }
            Err(error) => {
                if let Some(writer) = &mut segment.writer {
                    writer.num_pending -= 1;
                }
                self.pause("sealing a segment", error);
            }
        }
    }

    /// Plans the reading of chunks from the slots that a look-up gave. `None` if one of them is gone: look
    /// up again.
    pub fn plan_read(&mut self, wanted: &[(Key, BlockId)]) -> Option<ReadJob> {
        let mut chunks = Vec::with_capacity(wanted.len());
        for (key, slot) in wanted {
            let held = *self.index.get(slot.0).filter(|held| held.entry.key == *key)?;
            chunks.push((self.file_of(held.segment)?, held.entry));
        }
        Some(ReadJob { chunks })
    }

    fn file_of(&mut self, number: u64) -> Option<Arc<File>> {
        let segment = self.segments.get_mut(&number)?;
        if let Some(file) = &segment.file {
            return Some(Arc::clone(file));
        }
        let path = self.folder.path_of(Name { number, is_sealed: true });
        match open(&path, Mode::Read, self.config.direct) {
            Ok(file) => {
                let file = Arc::new(file);
                segment.file = Some(Arc::clone(&file));
                self.opened.push_back(number);
                if self.opened.len() > OPEN_FILES {
                    let oldest = self.opened.pop_front()?;
                    let oldest = self.segments.get_mut(&oldest);
                    if let Some(oldest) = oldest.filter(|segment| segment.writer.is_none()) {
                        oldest.file = None;
                    }
                }
                Some(file)
            }
            Err(error) => {
                let message = format!("cannot open {}: {error}; it is dropped", path.display());
                self.warnings.warn(WarningKind::Read, message);
                self.forget_segment(number);
                None
            }
        }
    }

    /// Ends a read. Chunks that could not be read or were damaged are forgotten.
    pub fn complete_read(&mut self, job: &ReadJob, results: &[io::Result<()>]) {
        for ((_, entry), result) in job.chunks.iter().zip(results) {
            let slot = self.index.find(&entry.key);
            let Some(slot) =
                slot.filter(|&slot| self.index.get(slot).is_some_and(|held| held.entry == *entry))
            else {
                continue;
            };
            match result {
                Ok(()) => self.index.mark_used(slot),
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                Err(error) => {
                    let kind = match error.kind() {
                        io::ErrorKind::InvalidData => WarningKind::Damaged,
                        _ => WarningKind::Read,
                    };
                    let message = format!(
                        "a chunk of {} bytes in {} could not be read: {error}; it is dropped and \
                         computed anew",
                        entry.num_bytes,
                        self.folder.path().display()
                    );
                    self.warnings.warn(kind, message);
                    self.index.remove(slot);
                }
            }
        }
    }
}

impl Tier for DiskTier {
    fn find(&self, key: &Key, previous: Previous) -> Option<BlockId> {
        self.index.find_after(key, previous.last().0).map(BlockId)
    }
}
