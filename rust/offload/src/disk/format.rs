//! Pages of a segment file that are not chunks: header, batch pages and footer. All numbers are stored
//! low byte first; `docs/reference/offload-files.md` lists every byte.

use super::entry::{Entry, Seed, u32_at, u64_at};
use crate::io::{AlignedBuffer, PAGE};

pub(super) const HEADER: [u8; 8] = *b"HBSEGM02";
const BATCH: [u8; 8] = *b"HBBATC02";
const FOOTER: [u8; 8] = *b"HBFOOT02";
/// How headers began before the format's number rose.
const OLD_HEADERS: [[u8; 8]; 1] = [*b"HBSEGM01"];

/// Entries of a batch page.
pub(super) const MOST_ENTRIES: usize = (PAGE - CHECKSUM - BATCH_HEAD) / Entry::LEN;
const BATCH_HEAD: usize = 32;
/// The last bytes of each page are the checksum of those before.
const CHECKSUM: usize = 4;
const _: () = assert!(MOST_ENTRIES == 63);

/// The content of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) namespace: [u8; 32],
    pub(super) number: u64,
}

fn close(page: &mut [u8], seed: Seed) {
    let end = page.len() - CHECKSUM;
    let checksum = seed.checksum(&page[..end]);
    page[end..].copy_from_slice(&checksum.to_le_bytes());
}

fn is_closed(page: &[u8], magic: [u8; 8], seed: Seed) -> bool {
    let end = page.len() - CHECKSUM;
    page[..8] == magic && seed.checksum(&page[..end]) == u32_at(page, end)
}

/// Whether a file that begins so is a segment of an older version of this format.
pub(super) fn is_old(page: &[u8]) -> bool {
    OLD_HEADERS.iter().any(|magic| page.starts_with(magic))
}

impl Header {
    pub(super) fn seed(&self) -> Seed {
        Seed::of(&self.namespace)
    }

    pub(super) fn encode(&self) -> AlignedBuffer {
        let mut page = AlignedBuffer::new(PAGE);
        page[..8].copy_from_slice(&HEADER);
        page[8..40].copy_from_slice(&self.namespace);
        page[40..48].copy_from_slice(&self.number.to_le_bytes());
        close(&mut page, self.seed());
        page
    }

    /// The header of a page that begins with `magic`, if the page is whole.
    pub(super) fn decode(page: &[u8], magic: [u8; 8]) -> Option<Self> {
        let header =
            Self { namespace: std::array::from_fn(|i| page[8 + i]), number: u64_at(page, 40) };
        is_closed(page, magic, header.seed()).then_some(header)
    }
}

/// A page before up to 63 chunks that were written with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BatchPage {
    pub(super) number: u64,
    /// Where the next batch page lies, if there is one.
    pub(super) next: u64,
    pub(super) entries: Vec<Entry>,
}

impl BatchPage {
    pub(super) fn encode(&self, seed: Seed) -> AlignedBuffer {
        let mut page = AlignedBuffer::new(PAGE);
        page[..8].copy_from_slice(&BATCH);
        page[8..16].copy_from_slice(&self.number.to_le_bytes());
        page[16..24].copy_from_slice(&self.next.to_le_bytes());
        page[24..28].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for (entry, out) in self.entries.iter().zip(page[BATCH_HEAD..].chunks_mut(Entry::LEN)) {
            entry.encode(out);
        }
        close(&mut page, seed);
        page
    }

    pub(super) fn decode(page: &[u8], seed: Seed) -> Option<Self> {
        let num_entries = u32_at(page, 24) as usize;
        if !is_closed(page, BATCH, seed) || num_entries > MOST_ENTRIES {
            return None;
        }
        let entries = page[BATCH_HEAD..].chunks_exact(Entry::LEN).take(num_entries);
        Some(Self {
            number: u64_at(page, 8),
            next: u64_at(page, 16),
            entries: entries.map(Entry::decode).collect(),
        })
    }
}

/// The last bytes of a sealed segment: all entries, zeros up to a page border, and a last page that
/// tells where they start.
pub(super) fn encode_footer(header: Header, start: u64, entries: &[Entry]) -> AlignedBuffer {
    let entries_bytes = (entries.len() * Entry::LEN).next_multiple_of(PAGE);
    let mut footer = AlignedBuffer::new(entries_bytes + PAGE);
    for (entry, out) in entries.iter().zip(footer.chunks_exact_mut(Entry::LEN)) {
        entry.encode(out);
    }
    let checksum = header.seed().checksum(&footer[..entries_bytes]);
    let last = &mut footer[entries_bytes..];
    last[..8].copy_from_slice(&FOOTER);
    last[8..40].copy_from_slice(&header.namespace);
    last[40..48].copy_from_slice(&header.number.to_le_bytes());
    last[48..56].copy_from_slice(&start.to_le_bytes());
    last[56..64].copy_from_slice(&(entries.len() as u64).to_le_bytes());
    last[64..68].copy_from_slice(&checksum.to_le_bytes());
    close(last, header.seed());
    footer
}

/// The content of the last page of a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) header: Header,
    pub(super) start: u64,
    pub(super) num_entries: u64,
    checksum: u32,
}

impl Trailer {
    pub(super) fn decode(page: &[u8]) -> Option<Self> {
        Header::decode(page, FOOTER).map(|header| Self {
            header,
            start: u64_at(page, 48),
            num_entries: u64_at(page, 56),
            checksum: u32_at(page, 64),
        })
    }

    /// Bytes of the entries, padding included.
    pub(super) fn num_bytes(&self) -> Option<usize> {
        let bytes = usize::try_from(self.num_entries).ok()?.checked_mul(Entry::LEN)?;
        bytes.checked_next_multiple_of(PAGE)
    }

    /// The entries, if `bytes` are what was written.
    pub(super) fn entries(&self, bytes: &[u8]) -> Option<Vec<Entry>> {
        if self.header.seed().checksum(bytes) != self.checksum {
            return None;
        }
        let entries = bytes.chunks_exact(Entry::LEN).take(self.num_entries as usize);
        Some(entries.map(Entry::decode).collect())
    }
}
