//! A start after a life that ended amid writes and seals.

mod common;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use common::{Chunk, Folder, batch, check_all, open, small, store};
use hybrid_blocks_offload::disk::{DiskTier, OsStorage, WriteJob, WritePlan};
use hybrid_blocks_offload::io::Threads;

/// A tier whose transfers the test runs itself, as several threads of a store do at once.
fn tier(folder: &Folder) -> DiskTier {
    DiskTier::open(small(folder), &common::namespace(), |_| {}).expect("the folder can be used")
}

fn plan(tier: &mut DiskTier, chunks: &[Chunk]) -> WriteJob {
    let sizes = chunks.iter().map(|it| (it.key, it.num_tokens, it.bytes.len() as u32));
    let sizes: Vec<_> = sizes.collect();
    loop {
        match tier.plan_write(&sizes, false) {
            WritePlan::Job(job) => return job,
            WritePlan::NeedsSegment => {
                let job = tier.begin_segment(false).expect("there is room");
                let file = job.run(&OsStorage);
                tier.complete_segment(&job, file);
            }
            WritePlan::Nothing => panic!("it takes no chunks"),
        }
    }
}

fn write(tier: &mut DiskTier, chunks: &[Chunk]) {
    let mut job = plan(tier, chunks);
    let result = job.run(&Threads::new(1), |at| &chunks[at].bytes);
    assert!(result.is_ok());
    tier.complete_write(job, &result);
}

/// The only file that is not sealed, and its bytes.
fn open_segment(folder: &Folder) -> (PathBuf, Vec<u8>) {
    let path = folder.files("open").pop().expect("the current segment");
    let bytes = fs::read(&path).expect("it can be read");
    (path, bytes)
}

#[test]
fn a_write_that_ended_is_found_behind_one_that_did_not() {
    let folder = Folder::new("behind");
    let [first, unfinished, last] = [1, 2, 3].map(batch);
    let mut life = tier(&folder);
    write(&mut life, &first);
    let under_way = plan(&mut life, &unfinished);
    write(&mut life, &last);
    drop((under_way, life));
    let (disk, warnings) = open(small(&folder), Arc::new(Threads::new(1)));
    assert_eq!((check_all(&disk, &first), check_all(&disk, &last)), (5, 5));
    assert_eq!((check_all(&disk, &unfinished), warnings.len()), (0, 0));
    drop(disk);
    assert_eq!(tier(&folder).num_chunks(), 10, "the footer has them");
}

/// A batch page with a flipped bit, and one in whose place lies a good one of the same segment.
#[test]
fn a_damaged_batch_page_hides_no_other_batch() {
    for is_flipped in [true, false] {
        let folder = Folder::new("hides");
        let batches = [1, 2, 3].map(batch);
        let mut life = tier(&folder);
        for chunks in &batches {
            write(&mut life, chunks);
        }
        drop(life);
        let (path, mut bytes) = open_segment(&folder);
        let is_batch = |at: &usize| bytes[*at..].starts_with(b"HBBATC");
        let pages: Vec<_> = (0..bytes.len()).step_by(4096).filter(is_batch).collect();
        if is_flipped {
            bytes[pages[1] + 1000] ^= 1;
        } else {
            bytes.copy_within(pages[0]..pages[0] + 4096, pages[1]);
        }
        fs::write(&path, bytes).expect("it can be written");
        let (disk, _) = open(small(&folder), Arc::new(Threads::new(1)));
        assert_eq!(batches.map(|chunks| check_all(&disk, &chunks)), [5, 0, 5]);
    }
}

/// Where a write did not end lies a whole batch, in its place, of a segment with another number.
#[test]
fn a_batch_of_another_segment_is_never_taken_for_one_of_this() {
    let (mine, other) = (Folder::new("mine"), Folder::new("other"));
    let [stale, last, filler] = [1, 2, 3].map(batch);
    let mut life = tier(&other);
    write(&mut life, &filler);
    life.close_current();
    write(&mut life, &stale);
    let (_, bytes) = open_segment(&other);
    let mut life = tier(&mine);
    let under_way = plan(&mut life, &stale);
    write(&mut life, &last);
    drop((under_way, life));
    let (path, mut into) = open_segment(&mine);
    let end = into.len().min(4096 + 6 * 4096);
    into[4096..end].copy_from_slice(&bytes[4096..end]);
    fs::write(&path, into).expect("it can be written");
    let (disk, _) = open(small(&mine), Arc::new(Threads::new(1)));
    assert_eq!((check_all(&disk, &stale), check_all(&disk, &last)), (0, 5));
}

/// As a seal leaves it that renamed the file and could not sync the folder: the next try continues
/// there.
#[test]
fn a_seal_that_failed_after_its_rename_ends_at_the_next_try() {
    let folder = Folder::new("renamed");
    let (disk, warnings) = open(small(&folder), Arc::new(Threads::new(1)));
    assert_eq!(store(&disk, &batch(1)), 5);
    let (path, _) = open_segment(&folder);
    let sealed = path.with_extension("seg");
    fs::rename(&path, &sealed).expect("it can be renamed");
    disk.close();
    assert_eq!(warnings.messages(), [""; 0]);
    let num_bytes = fs::metadata(sealed).expect("it is there").len();
    assert_eq!(disk.tier().num_bytes(), num_bytes, "it is cut to size");
    for round in 2..60 {
        assert_eq!(store(&disk, &batch(round)), 5, "the disk fills and evicts in round {round}");
    }
    assert_eq!(warnings.messages(), [""; 0]);
}
