//! Files that are not this namespace's own: of other models, of older versions, and with odd names.

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use common::{Chunk, Folder, Warnings, batch, check_all, chunk, namespace, open, small, store};
use hybrid_blocks_offload::Namespace;
use hybrid_blocks_offload::disk::{Disk, DiskTier, WarningKind};
use hybrid_blocks_offload::io::Threads;

const PAGE: usize = 4096;

/// The same tokens' chunks, as another model computes them.
fn of_another_model(chunks: &[Chunk]) -> Vec<Chunk> {
    let mut chunks = chunks.to_vec();
    chunks.iter_mut().flat_map(|chunk| &mut chunk.bytes).for_each(|byte| *byte = !*byte);
    chunks
}

/// A disk of the only segment of a model, and the segment's path.
fn segment(folder: &Folder, namespace: &Namespace, chunks: &[Chunk]) -> std::path::PathBuf {
    let tier = DiskTier::open(small(folder), namespace, |_| {}).expect("the folder can be used");
    let disk = Disk::new(tier, Arc::new(Threads::new(1)));
    assert_eq!(store(&disk, chunks), chunks.len());
    disk.close();
    folder.files("seg").pop().expect("a sealed segment")
}

/// As a misdirected write, a mixed-up restore or a copy that was cut off leaves it: some pages are those of
/// the same place of another model's segment.
#[test]
fn pages_of_another_models_segment_are_damage() {
    let chunks: Vec<_> = (0..8).map(|at| chunk(at, 3000 + 900 * at as usize)).collect();
    let (mine, theirs) = (Folder::new("mine"), Folder::new("theirs"));
    let other = Namespace::new(vec![[7; 16].into(), [8; 16].into(), [9; 16].into()]);
    let path = segment(&mine, &namespace(), &chunks);
    let before = fs::read(&path).expect("it is there");
    let foreign = segment(&theirs, &other, &of_another_model(&chunks));
    let foreign = fs::read(foreign).expect("it is there");
    assert_eq!(before.len(), foreign.len());
    let num_pages = before.len() / PAGE;
    for first in 0..num_pages {
        for end in first + 1..=num_pages {
            for ending in ["seg", "open"] {
                let mut bytes = before.clone();
                let range = first * PAGE..end * PAGE;
                bytes[range.clone()].copy_from_slice(&foreign[range]);
                for file in mine.all() {
                    fs::remove_file(file).expect("it is ours");
                }
                fs::write(path.with_extension(ending), bytes).expect("it can be written");
                let (disk, _) = open(small(&mine), Arc::new(Threads::new(1)));
                // Compares bytes: only what is this model's own may be there.
                let num_good = check_all(&disk, &chunks);
                if (first, end) == (1, num_pages) {
                    assert_eq!(num_good, 0);
                }
            }
        }
    }
}

fn put(folder: &Path, name: &str, magic: &[u8], num_pages: usize) {
    let mut bytes = vec![0; num_pages * PAGE];
    bytes[..magic.len()].copy_from_slice(magic);
    fs::write(folder.join(name), bytes).expect("it can be written");
}

#[test]
fn segments_of_an_older_format_stay_and_are_named_once() {
    let folder = Folder::new("old");
    drop(open(small(&folder), Arc::new(Threads::new(1))));
    let inner = folder.namespace();
    put(&inner, "0000000000000003.seg", b"HBSEGM01", 4);
    put(&inner, "0000000000000004.open", b"HBSEGM01", 2);
    let (disk, warnings) = open(small(&folder), Arc::new(Threads::new(1)));
    assert_eq!(warnings.kinds(), [WarningKind::Old]);
    assert!(warnings.messages()[0].contains("2 segments"), "{warnings:?}");
    assert_eq!(store(&disk, &batch(1)), 5);
    assert_eq!(check_all(&disk, &batch(1)), 5);
    assert_eq!(folder.all().len(), 3);
}

/// No number may follow these.
#[test]
fn a_number_that_would_wrap_is_foreign() {
    let folder = Folder::new("wrap");
    let (disk, _) = open(small(&folder), Arc::new(Threads::new(1)));
    store(&disk, &batch(0));
    disk.close();
    drop(disk);
    let names = ["ffffffffffffffff.seg", "fffffffffffffffe.open", "0001000000000001.seg"];
    for name in names {
        put(&folder.namespace(), name, b"HBSEGM02", 2);
    }
    let warnings = Warnings::default();
    for round in 1..3 {
        let tier = DiskTier::open(small(&folder), &namespace(), warnings.callback());
        let disk = Disk::new(tier.expect("it can be used"), Arc::new(Threads::new(1)));
        assert_eq!(store(&disk, &batch(round)), 5);
        disk.close();
        for round in 0..=round {
            assert_eq!(check_all(&disk, &batch(round)), 5, "no segment is written over");
        }
    }
    assert_eq!(warnings.kinds(), [WarningKind::Foreign; 6]);
    for name in names {
        let bytes = fs::read(folder.namespace().join(name)).expect("it is left alone");
        assert_eq!((&bytes[..8], bytes.len()), (&b"HBSEGM02"[..], 2 * PAGE));
    }
}

fn total(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).expect("it is there");
    let sizes = entries.map(|entry| {
        let entry = entry.expect("it is there");
        let found = entry.metadata().expect("it is there");
        if found.is_dir() { total(&entry.path()) } else { found.len() }
    });
    sizes.sum()
}

fn of_model(model: u8) -> Namespace {
    Namespace::new(vec![[model; 16].into(), [model + 50; 16].into(), [model + 100; 16].into()])
}

fn disk_of(folder: &Folder, model: u8) -> (Disk, Warnings) {
    let warnings = Warnings::default();
    let tier = DiskTier::open(small(folder), &of_model(model), warnings.callback());
    (Disk::new(tier.expect("the folder can be used"), Arc::new(Threads::new(1))), warnings)
}

/// One engine after another, each with another model, as when the configuration changes.
#[test]
fn namespaces_under_one_root_have_one_bound() {
    let folder = Folder::new("bound");
    let most = small(&folder).max_bytes;
    for model in 1..6 {
        let (disk, warnings) = disk_of(&folder, model);
        for round in 0..40 {
            assert_eq!(store(&disk, &batch(round)), 5, "model {model}, round {round}");
            assert!(total(folder.path()) <= most, "{} bytes", total(folder.path()));
        }
        assert_eq!(check_all(&disk, &batch(39)), 5);
        assert_eq!(warnings.messages(), [""; 0]);
    }
    let folders = fs::read_dir(folder.path()).expect("it is there").count();
    assert!(folders <= 2, "a namespace goes with its last file: {folders}");
}

#[test]
fn another_namespace_stays_while_there_is_room_or_while_it_is_in_use() {
    let held = |disk: &Disk| (0..8).map(|round| check_all(disk, &batch(round))).sum::<usize>();
    for is_in_use in [true, false] {
        let folder = Folder::new("stays");
        let (first, _) = disk_of(&folder, 1);
        for round in 0..8 {
            store(&first, &batch(round));
        }
        let first = is_in_use.then_some(first);
        let (second, _) = disk_of(&folder, 2);
        for round in 0..if is_in_use { 60 } else { 1 } {
            store(&second, &batch(round));
        }
        let first = first.unwrap_or_else(|| disk_of(&folder, 1).0);
        assert_eq!(held(&first), 40, "in use: {is_in_use}");
    }
}

/// Damage with each life: what cannot be read counts, and goes first.
#[test]
fn damaged_segments_count_and_go_first() {
    let folder = Folder::new("damage");
    let most = small(&folder).max_bytes;
    for life in 0..6_u64 {
        let (disk, _) = open(small(&folder), Arc::new(Threads::new(1)));
        for round in life * 30..life * 30 + 30 {
            assert_eq!(store(&disk, &batch(round)), 5);
        }
        assert_eq!(check_all(&disk, &batch(life * 30 + 29)), 5);
        disk.close();
        assert!(total(folder.path()) <= most, "{} bytes", total(folder.path()));
        assert_eq!(disk.tier().num_bytes(), total(folder.path()));
        drop(disk);
        for path in folder.files("seg") {
            let mut bytes = fs::read(&path).expect("it is there");
            bytes[..PAGE].fill(7);
            let end = bytes.len();
            bytes[end - PAGE..].fill(7);
            fs::write(&path, bytes).expect("it is ours");
        }
    }
}
