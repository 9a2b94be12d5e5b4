//! Files that cannot be opened or removed for now: the disk keeps what it holds, and its bound.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use common::{Chunk, Folder, Warnings, batch, check_all, open, small, store};
use hybrid_blocks_offload::disk::{Disk, WarningKind};
use hybrid_blocks_offload::io::Threads;

/// Bytes of all segment files.
fn on_disk(folder: &Folder) -> u64 {
    let all = folder.all().into_iter().map(|path| fs::metadata(path).expect("it is there"));
    all.filter(fs::Metadata::is_file).map(|it| it.len()).sum()
}

/// Chunks, and bytes of segments.
fn held(disk: &Disk) -> (usize, u64) {
    let tier = disk.tier();
    (tier.num_chunks(), tier.num_bytes())
}

/// A disk with one sealed segment, of batch 1.
fn sealed(folder: &Folder) -> (Disk, Warnings) {
    let (disk, warnings) = open(small(folder), Arc::new(Threads::new(1)));
    assert_eq!(store(&disk, &batch(1)), 5);
    disk.close();
    (disk, warnings)
}

#[test]
fn a_segment_whose_file_cannot_be_opened_for_now_is_kept() {
    let folder = Folder::new("closed");
    let (disk, warnings) = sealed(&folder);
    let before = held(&disk);
    let path = folder.files("seg").pop().expect("a segment");
    let aside = folder.path().join("aside");
    fs::rename(&path, &aside).expect("it can be renamed");
    // Too many links: an error for every user that does not say that the file is gone.
    symlink(&path, &path).expect("a link can be made");
    assert_eq!(check_all(&disk, &batch(1)), 0);
    assert_eq!(held(&disk), before);
    assert!(warnings.kinds().iter().all(|kind| *kind == WarningKind::Read));
    assert!(warnings.len() > 0);
    fs::rename(&aside, &path).expect("it can be renamed");
    assert_eq!(check_all(&disk, &batch(1)), 5);
}

#[test]
fn a_segment_whose_file_is_gone_is_dropped() {
    let folder = Folder::new("lost");
    let (disk, warnings) = sealed(&folder);
    fs::remove_file(folder.files("seg").pop().expect("a segment")).expect("it can be removed");
    assert_eq!(check_all(&disk, &batch(1)), 0);
    assert_eq!(held(&disk), (0, 0));
    assert_eq!(warnings.kinds(), [WarningKind::Read]);
}

#[test]
fn a_file_that_cannot_be_removed_counts_until_it_can() {
    let folder = Folder::new("stuck");
    let config = small(&folder);
    let (disk, warnings) = open(config.clone(), Arc::new(Threads::new(1)));
    let batches: Vec<Vec<Chunk>> = (0..200).map(batch).collect();
    let mut batches = batches.iter();
    while folder.files("seg").len() < 4 {
        store(&disk, batches.next().expect("the disk fills"));
    }
    let path = folder.files("seg").remove(0);
    let stuck_bytes = fs::metadata(&path).expect("it is there").len();
    fs::remove_file(&path).expect("it can be removed");
    // No user can remove a folder as a file.
    fs::create_dir(&path).expect("a folder can be made");
    let mut num_stored = 0;
    for chunks in batches.by_ref().take(60) {
        num_stored = store(&disk, chunks);
        assert_eq!(disk.tier().num_bytes(), on_disk(&folder) + stuck_bytes);
        assert!(disk.tier().num_bytes() <= config.max_bytes);
    }
    assert_eq!(num_stored, 5, "other segments are evicted in its place");
    assert!(warnings.kinds().contains(&WarningKind::Write));
    fs::remove_dir(&path).expect("it can be removed");
    for chunks in batches.take(60) {
        assert_eq!(store(&disk, chunks), 5);
    }
    assert_eq!(disk.tier().num_bytes(), on_disk(&folder), "it is removed in the end");
}
