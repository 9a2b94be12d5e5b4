//! [`WriteJob`] and [`ReadJob`]: transfers that run without the tier's lock.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::entry::{Entry, Seed};
use super::format::{BatchPage, MOST_ENTRIES};
use super::storage::{OsStorage, Storage};
use crate::io::{AlignedBuffer, BlockIo, PAGE, ReadOp, WriteOp, is_aligned};

/// Chunks that go to one segment, at places that no other job writes to.
#[derive(Debug)]
#[must_use = "its segment is not sealed before the job is completed"]
pub struct WriteJob {
    pub(super) number: u64,
    pub(super) seed: Seed,
    pub(super) file: Arc<File>,
    pub(super) batches: Vec<Batch>,
    /// Indexes of the chunks that were asked for, in the order of the batches' entries.
    pub(super) chunks: Vec<usize>,
}

/// A page of entries and the chunks behind it.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) offset: u64,
    pub(super) page: BatchPage,
}

impl Batch {
    /// Whether its chunks lie where [`lay_out`] puts them: in a row behind the page.
    pub(super) fn is_in_place(&self) -> bool {
        let mut end = self.offset + PAGE as u64;
        self.page.entries.iter().all(|entry| {
            let is_next = entry.offset == end;
            end += padded(entry.num_bytes);
            is_next
        }) && self.page.next == end
    }
}

/// An error once more, as far as errors can be copied.
fn same(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Bytes of a chunk on the disk.
pub(super) fn padded(num_bytes: u32) -> u64 {
    u64::from(num_bytes).next_multiple_of(PAGE as u64)
}

impl WriteJob {
    /// Indexes of the chunks that are written, of those that were asked for. The others are there already.
    pub fn chunks(&self) -> &[usize] {
        &self.chunks
    }

    /// Writes the chunks, computes their checksums meanwhile, and then writes the pages that name them.
    /// `bytes_of` gives the bytes of a chunk by its index. Chunks at page borders and of whole pages are
    /// written from where they lie; others are copied first.
    ///
    /// # Errors
    /// The first error of the operating system. [`io::ErrorKind::InvalidInput`] if a chunk has
    /// another length than the job.
    pub fn run<'a>(
        &mut self,
        io: &dyn BlockIo,
        bytes_of: impl Fn(usize) -> &'a [u8],
    ) -> io::Result<()> {
        let file = &*self.file;
        let chunks: Vec<_> = self.chunks.iter().map(|&at| bytes_of(at)).collect();
        let entries: Vec<_> =
            self.batches.iter().flat_map(|batch| batch.page.entries.iter().copied()).collect();
        if entries.iter().zip(&chunks).any(|(entry, bytes)| bytes.len() != entry.num_bytes as usize)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let copies: Vec<_> = chunks.iter().map(|bytes| copy_unless_aligned(bytes)).collect();
        let buffers = chunks.iter().zip(&copies);
        let buffers = buffers.map(|(&bytes, copy)| copy.as_deref().unwrap_or(bytes));
        let ops: Vec<_> = entries
            .iter()
            .zip(buffers)
            .map(|(entry, buffer)| WriteOp { file, offset: entry.offset, buffer })
            .collect();
        let all = self.batches.iter_mut().flat_map(|batch| &mut batch.page.entries);
        let mut unchecked: Vec<_> = all.zip(&chunks).collect();
        let seed = self.seed;
        let results = io.write(&ops, &mut || {
            for (entry, bytes) in &mut unchecked {
                entry.checksum = entry.checksum_of(seed, bytes);
            }
        });
        results.into_iter().collect::<io::Result<()>>()?;
        let pages: Vec<_> = self.batches.iter().map(|batch| batch.page.encode(seed)).collect();
        let pages = self.batches.iter().zip(&pages);
        let pages = pages.map(|(batch, page)| WriteOp { file, offset: batch.offset, buffer: page });
        io.write(&pages.collect::<Vec<_>>(), &mut || ()).into_iter().collect()
    }
}

fn copy_unless_aligned(bytes: &[u8]) -> Option<AlignedBuffer> {
    (!is_aligned(bytes)).then(|| {
        let mut copy = AlignedBuffer::new(bytes.len());
        copy[..bytes.len()].copy_from_slice(bytes);
        copy
    })
}

/// Lays chunks out from `start`. Returns batches and the end.
pub(super) fn lay_out(number: u64, start: u64, mut entries: Vec<Entry>) -> (Vec<Batch>, u64) {
    let mut batches = Vec::new();
    let mut offset = start;
    for entries in entries.chunks_mut(MOST_ENTRIES) {
        let mut next = offset + PAGE as u64;
        for entry in &mut *entries {
            entry.offset = next;
            next += padded(entry.num_bytes);
        }
        batches.push(Batch { offset, page: BatchPage { number, next, entries: entries.to_vec() } });
        offset = next;
    }
    (batches, offset)
}

/// Chunks to read, each from its segment. A file that is evicted once it is open stays readable.
#[derive(Debug)]
pub struct ReadJob {
    pub(super) seed: Seed,
    pub(super) files: Vec<ReadFile>,
    /// Which of the files each chunk lies in, and where.
    pub(super) chunks: Vec<(usize, Entry)>,
    pub(super) direct: bool,
}

/// The file of a segment.
#[derive(Debug)]
pub(super) struct ReadFile {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// Whether the tier has it open.
    pub(super) was_open: bool,
    pub(super) file: OnceLock<io::Result<Arc<File>>>,
}

impl ReadFile {
    pub(super) fn is_unopened(&self) -> bool {
        matches!(self.file.get(), Some(Err(_)))
    }
}

impl ReadJob {
    /// The chunks that are read, in the order of the buffers.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().map(|(_, entry)| entry)
    }

    /// Opens the files that the tier has not open. Returns whether none of them is gone.
    pub(super) fn open(&self, storage: &dyn Storage) -> bool {
        let mut is_gone = false;
        for file in &self.files {
            let opened =
                file.file.get_or_init(|| storage.open(&file.path, self.direct).map(Arc::new));
            is_gone |= matches!(opened, Err(error) if error.kind() == io::ErrorKind::NotFound);
        }
        !is_gone
    }

    /// Fills a buffer a chunk and checks it. A buffer may be longer than its chunk. One at a page border
    /// that has room for whole pages is read into directly; what it then holds behind the chunk is
    /// unspecified.
    ///
    /// One result a chunk: that of opening its file, [`io::ErrorKind::InvalidData`] for a chunk without its checksum,
    /// [`io::ErrorKind::InvalidInput`] for a buffer that is too short or missing. The buffer's content is
    /// unspecified after an error.
    pub fn run(&self, io: &dyn BlockIo, buffers: &mut [&mut [u8]]) -> Vec<io::Result<()>> {
        self.open(&OsStorage);
        let mut results: Vec<io::Result<()>> =
            self.chunks.iter().map(|_| Err(io::ErrorKind::InvalidInput.into())).collect();
        let mut copies: Vec<Option<AlignedBuffer>> = Vec::with_capacity(self.chunks.len());
        for ((_, entry), buffer) in self.chunks.iter().zip(&*buffers) {
            let is_direct = buffer.get(..padded(entry.num_bytes) as usize).is_some_and(is_aligned);
            copies.push((!is_direct).then(|| AlignedBuffer::new(entry.num_bytes as usize)));
        }
        let mut places = Vec::with_capacity(self.chunks.len());
        let mut ops = Vec::with_capacity(self.chunks.len());
        let all = self.chunks.iter().zip(buffers.iter_mut()).zip(&mut copies).enumerate();
        for (at, (((file, entry), buffer), copy)) in all {
            let file = match self.files[*file].file.get() {
                Some(Ok(file)) => &**file,
                Some(Err(error)) => {
                    results[at] = Err(same(error));
                    continue;
                }
                None => continue,
            };
            if buffer.len() >= entry.num_bytes as usize {
                let buffer = match copy {
                    Some(copy) => &mut copy[..],
                    None => &mut buffer[..padded(entry.num_bytes) as usize],
                };
                places.push(at);
                ops.push(ReadOp { file, offset: entry.offset, buffer });
            }
        }
        io.read(&mut ops, &mut |op, buffer, result| {
            let (_, entry) = &self.chunks[places[op]];
            results[places[op]] = result.and_then(|()| {
                let bytes = &buffer[..entry.num_bytes as usize];
                let is_whole = entry.checksum_of(self.seed, bytes) == entry.checksum;
                if is_whole { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
            });
        });
        drop(ops);
        let all = self.chunks.iter().zip(buffers).zip(copies).zip(&results);
        for ((((_, entry), buffer), copy), result) in all {
            if let (Some(copy), Ok(())) = (copy, result) {
                let len = entry.num_bytes as usize;
                buffer[..len].copy_from_slice(&copy[..len]);
            }
        }
        results
    }
}
