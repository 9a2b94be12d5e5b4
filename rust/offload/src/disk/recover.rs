//! The content of a folder when it is opened.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::entry::Entry;
use super::files::Name;
use super::format::{HEADER, Header, Trailer, is_old};
use super::jobs::padded;
use super::leftovers::{Leftovers, leftover};
use super::scan::Scan;
use super::seal::SealJob;
use super::segment::Segment;
use super::storage::OsStorage;
use super::tier::DiskTier;
use crate::error::Error;
use crate::io::{Mode, PAGE, open};
use crate::warning::WarningKind;

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// No segment was ever larger, unless this disk's are.
const LARGEST_SEGMENT: u64 = 256 << 20;

/// A file with a segment's name.
enum Found {
    /// A whole segment: entries, and bytes of the file.
    Segment(Vec<Entry>, u64),
    /// An empty file, which is removed.
    Empty,
    /// A segment of an older version of the format.
    Old,
    /// A file in no known format.
    Foreign,
    /// Larger than any segment.
    Large,
}

impl DiskTier {
    /// Reads the footers of all sealed segments. Segments without a good one are read through: their
    /// chunks that have their checksums are kept and get a footer.
    pub(super) fn recover(&mut self) -> Result<(), Error> {
        let cannot_read = Error::io("cannot read folder", &self.folder.path);
        let (names, others) = self.folder.list().map_err(cannot_read)?;
        for path in others {
            self.skip(&path, "it is no segment");
        }
        let mut found = Vec::with_capacity(names.len());
        let mut leftovers = self.folder.others();
        let mut num_old = leftovers.iter().filter(|it| is_old_file(&it.path)).count();
        for name in names {
            self.next_number = self.next_number.max(name.number + 1);
            let path = self.folder.path_of(name);
            let segment = match self.read(name, &path) {
                Ok(None) => self.rescue_patiently(name, &path),
                Ok(Some(segment)) => Ok(segment),
                Err(error) => Err(error),
            };
            match segment {
                Ok(Found::Segment(entries, num_bytes)) => {
                    found.push((name.number, (entries, num_bytes)));
                }
                Ok(Found::Empty) => {}
                Ok(Found::Large) => self.skip(&path, "it is larger than any segment"),
                unread => {
                    match unread {
                        Ok(Found::Old) => num_old += 1,
                        Err(error) => self.skip(&path, &error.to_string()),
                        _ => self.skip(&path, "it is no segment of this model"),
                    }
                    leftovers.extend(leftover(path, false).ok().flatten());
                }
            }
        }
        self.leftovers = Leftovers::new(leftovers);
        if num_old > 0 {
            let message = format!(
                "{num_old} segments under {} are of an older format: they are not read, and go first \
                 when room is needed",
                self.config.path.display()
            );
            self.warnings.warn(WarningKind::Old, message);
        }
        self.index.reserve(found.iter().map(|(_, (entries, _))| entries.len()).sum());
        for (number, (entries, num_bytes)) in found {
            let slots = entries.iter().map(|&entry| self.index.insert(entry, number).0).collect();
            let segment = Segment { num_bytes, slots, ..Segment::default() };
            if let Some(twice) = self.segments.insert(number, segment) {
                self.index.remove_segment(number, &twice.slots);
            }
        }
        Ok(())
    }

    fn skip(&mut self, path: &Path, why: &str) {
        let message = format!("{} is left alone: {why}", path.display());
        self.warnings.warn(WarningKind::Foreign, message);
    }

    /// The entries of a sealed segment; `None` if its footer is missing or damaged.
    fn read(&self, name: Name, path: &Path) -> io::Result<Option<Found>> {
        if !name.is_sealed {
            return Ok(None);
        }
        let file = open(path, Mode::Read, false)?;
        let num_bytes = file.metadata()?.len();
        if num_bytes > LARGEST_SEGMENT.max(self.segment_bytes) {
            return Ok(Some(Found::Large));
        }
        let Some(last) = num_bytes.checked_sub(PAGE as u64) else { return Ok(None) };
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, last)?;
        let expected = Header { namespace: self.namespace, number: name.number };
        let Some(trailer) = Trailer::decode(&page).filter(|it| it.header == expected) else {
            return Ok(None);
        };
        let Some(len) = trailer.num_bytes().filter(|&len| trailer.start + len as u64 == last)
        else {
            return Ok(None);
        };
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, trailer.start)?;
        let entries = trailer.entries(&bytes);
        let is_inside = |entry: &Entry| {
            let end = entry.offset.checked_add(padded(entry.num_bytes));
            entry.offset.is_multiple_of(PAGE as u64) && end.is_some_and(|end| end <= trailer.start)
        };
        Ok(entries
            .filter(|entries| entries.iter().all(is_inside))
            .map(|entries| Found::Segment(entries, num_bytes)))
    }

    /// As [`DiskTier::rescue`]. The kernel may still finish the last writes of a process that was
    /// just killed. It then refuses reads of the same file for some milliseconds.
    fn rescue_patiently(&self, name: Name, path: &Path) -> io::Result<Found> {
        let mut result = self.rescue(name, path);
        for _ in 0..20 {
            if !result.as_ref().is_err_and(|error| error.raw_os_error() == Some(EIO)) {
                break;
            }
            thread::sleep(Duration::from_millis(50));
            result = self.rescue(name, path);
        }
        result
    }

    /// Reads a segment through, batch by batch, and seals what is whole.
    fn rescue(&self, name: Name, path: &Path) -> io::Result<Found> {
        let file = open(path, Mode::Write, false)?;
        let num_bytes = file.metadata()?.len();
        if num_bytes > LARGEST_SEGMENT.max(self.segment_bytes) {
            return Ok(Found::Large);
        }
        let header = Header { namespace: self.namespace, number: name.number };
        let mut page = [0; PAGE];
        if num_bytes < PAGE as u64 {
            // The process died before it had written the header.
            return if name.is_sealed { Ok(Found::Foreign) } else { remove(path) };
        }
        file.read_exact_at(&mut page, 0)?;
        if page == [0; PAGE] && !name.is_sealed {
            return remove(path);
        }
        if is_old(&page) {
            return Ok(Found::Old);
        }
        if Header::decode(&page, HEADER) != Some(header) {
            return Ok(Found::Foreign);
        }
        let (mut entries, mut end) = (Vec::new(), PAGE as u64);
        let mut chunk = Vec::new();
        let mut scan = Scan::new(&file, header, num_bytes);
        while let Some(batch) = scan.next()? {
            for entry in batch.page.entries {
                if entry.offset + padded(entry.num_bytes) > num_bytes {
                    continue;
                }
                chunk.resize(entry.num_bytes as usize, 0);
                file.read_exact_at(&mut chunk, entry.offset)?;
                if entry.checksum_of(header.seed(), &chunk) == entry.checksum {
                    entries.push(entry);
                }
            }
            end = batch.page.next;
        }
        if entries.is_empty() {
            return remove(path);
        }
        // `set_len` waits for writes under way, so none of them comes after the footer.
        file.set_len(end)?;
        let to = self.folder.path_of(Name { is_sealed: true, ..name });
        let job = SealJob {
            header,
            file: Arc::new(file),
            end,
            entries: entries.clone(),
            from: path.to_owned(),
            to,
        };
        let num_bytes = job.run(&OsStorage)?;
        Ok(Found::Segment(entries, num_bytes))
    }
}

fn is_old_file(path: &Path) -> bool {
    let mut magic = [0; 8];
    let file = open(path, Mode::Read, false);
    file.is_ok_and(|file| file.read_exact_at(&mut magic, 0).is_ok() && is_old(&magic))
}

/// Removes a segment of ours that holds nothing.
fn remove(path: &Path) -> io::Result<Found> {
    fs::remove_file(path)?;
    Ok(Found::Empty)
}
