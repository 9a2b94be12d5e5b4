//! The disk tier: restarts, bounds, damaged and foreign files.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use common::{Chunk, Folder, check_all, chunk, config, namespace, open, store};
use hybrid_blocks_offload::disk::{Disk, DiskConfig, DiskTier, WarningKind};
use hybrid_blocks_offload::io::{BlockIo, Threads, best_backend};
use hybrid_blocks_offload::plan::{Previous, Tier};
use hybrid_blocks_offload::{Error, Namespace};

fn chunks(range: std::ops::Range<u64>, num_bytes: usize) -> Vec<Chunk> {
    range.map(|at| chunk(at, num_bytes)).collect()
}

#[test]
fn what_was_stored_is_read_by_every_backend() {
    for io in [best_backend(8), Arc::new(Threads::new(3)) as Arc<dyn BlockIo>] {
        for direct in [false, true] {
            let folder = Folder::on_disk("backends");
            let mut config = config(&folder);
            config.direct = direct;
            let (disk, _) = open(config, Arc::clone(&io));
            // Sizes around a page, and chunks that lie at no page border.
            let all: Vec<_> = [1, 4095, 4096, 4097, 50_000, 65_536]
                .into_iter()
                .zip(0..)
                .map(|(n, at)| chunk(at, n))
                .collect();
            assert_eq!(store(&disk, &all), all.len());
            assert_eq!(check_all(&disk, &all), all.len(), "{} direct {direct}", io.name());
            assert_eq!(store(&disk, &all), 0, "they are there already");
        }
    }
}

#[test]
fn a_restart_finds_everything_whether_closed_or_not() {
    for closes in [true, false] {
        let folder = Folder::new("restart");
        let all = chunks(0..300, 3000);
        {
            let (disk, _) = open(config(&folder), best_backend(8));
            for some in all.chunks(7) {
                assert_eq!(store(&disk, some), some.len());
            }
            if closes {
                disk.close();
            }
        }
        let (disk, warnings) = open(config(&folder), best_backend(8));
        assert_eq!(check_all(&disk, &all), all.len());
        assert_eq!(warnings.len(), 0);
        assert_eq!(folder.files("open").len(), 0, "what was open is sealed now");
    }
}

#[test]
fn the_disk_keeps_its_bound_and_what_was_read() {
    let folder = Folder::new("bound");
    let mut config = config(&folder);
    config.max_bytes = 1 << 20;
    config.segment_bytes = Some(128 << 10);
    let (disk, _) = open(config.clone(), best_backend(8));
    let loved = chunks(0..4, 4096);
    store(&disk, &loved);
    for round in 1..60 {
        let some = chunks(round * 100..round * 100 + 10, 4096);
        assert_eq!(store(&disk, &some), 10, "round {round}");
        assert_eq!(
            check_all(&disk, &loved),
            loved.len(),
            "round {round}: they are read all the time"
        );
        let on_disk: u64 =
            folder.all().iter().map(|path| fs::metadata(path).expect("it is there").len()).sum();
        assert!(on_disk <= config.max_bytes, "{on_disk} bytes in round {round}");
        assert_eq!(disk.tier().num_bytes(), on_disk);
    }
    assert!(check_all(&disk, &chunks(100..110, 4096)) == 0, "the oldest went");
    assert!(disk.tier().num_chunks() > 100, "most of the disk is in use");
    drop(disk);
    let (disk, _) = open(config, best_backend(8));
    assert_eq!(check_all(&disk, &loved), loved.len());
}

#[test]
fn what_requests_used_without_a_read_outlives_its_segment() {
    let folder = Folder::new("used");
    let mut config = config(&folder);
    config.max_bytes = 1 << 20;
    config.segment_bytes = Some(128 << 10);
    let (disk, _) = open(config, best_backend(8));
    let (used, unused) = (chunks(0..4, 4096), chunks(4..8, 4096));
    store(&disk, &used);
    store(&disk, &unused);
    let keys: Vec<_> = used.iter().chain(&chunks(90..91, 4096)).map(|chunk| chunk.key).collect();
    for round in 1..60 {
        disk.tier().touch(&keys);
        store(&disk, &chunks(round * 100..round * 100 + 10, 4096));
    }
    assert_eq!(check_all(&disk, &used), used.len());
    assert_eq!(check_all(&disk, &unused), 0);
}

#[test]
fn a_read_goes_on_while_its_segment_is_evicted() {
    let folder = Folder::new("evicted");
    let mut config = config(&folder);
    config.max_bytes = 512 << 10;
    config.segment_bytes = Some(64 << 10);
    let io = best_backend(8);
    let (disk, _) = open(config, Arc::clone(&io));
    let old = chunk(1, 4096);
    store(&disk, std::slice::from_ref(&old));
    let slot = disk.tier().find(&old.key, Previous::default()).expect("it is held");
    let job = disk.tier().plan_read(&[(old.key, slot)]).expect("it is held");
    for round in 1..40 {
        store(&disk, &chunks(round * 100..round * 100 + 10, 4096));
    }
    assert_eq!(disk.tier().find(&old.key, Previous::default()), None);
    let mut bytes = vec![0; 4096];
    let results = job.run(&*io, &mut [&mut bytes]);
    assert!(results[0].is_ok() && bytes == old.bytes);
    disk.tier().complete_read(&job, &results);
    assert!(disk.tier().plan_read(&[(old.key, slot)]).is_none(), "the slot is another chunk's now");
}

/// Every byte of a segment file, one after the other: a chunk is itself or not there.
#[test]
fn a_flipped_byte_never_becomes_data() {
    let folder = Folder::new("flip");
    let mut config = config(&folder);
    config.direct = false;
    config.retry_after = Duration::ZERO;
    let all: Vec<_> = [100, 4096, 700].into_iter().zip(0..).map(|(n, at)| chunk(at, n)).collect();
    {
        let (disk, _) = open(config.clone(), Arc::new(Threads::new(1)));
        store(&disk, &all);
        disk.close();
    }
    let path = folder.files("seg").pop().expect("one segment");
    let good = fs::read(&path).expect("it can be read");
    let (mut num_lost, mut num_warned) = (0, 0);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, &bad).expect("it can be written");
        let (disk, warnings) = open(config.clone(), Arc::new(Threads::new(1)));
        // `check_all` compares all bytes of what it can read.
        let num_lost_here = all.len() - check_all(&disk, &all);
        // Only chunks, or the header beside a bad footer, can be lost: the rest is written twice.
        assert!(num_lost_here <= 1 || at < 4096, "{num_lost_here} lost by byte {at}");
        num_lost += num_lost_here;
        num_warned += usize::from(warnings.len() > 0);
        drop(disk);
        for left in folder.files("seg") {
            fs::remove_file(left).expect("it can be removed");
        }
    }
    assert!(num_lost >= 100 + 4096 + 700, "a flipped byte of a chunk is noticed");
    assert!(num_warned >= num_lost);
}

#[test]
fn foreign_and_cut_files_are_left_alone_and_warned_of_once() {
    let folder = Folder::new("foreign");
    let all = chunks(0..20, 5000);
    {
        let (disk, _) = open(config(&folder), best_backend(8));
        store(&disk, &all);
        disk.close();
    }
    let home = folder.namespace();
    for (name, bytes) in [
        ("00ffffffffffff00.seg", &b"not a segment"[..]),
        ("00ffffffffffff01.seg", &[0; 9000]),
        ("00ffffffffffff02.open", &[7; 9000]),
        ("notes.txt", b"mine"),
        ("5.seg", b"a name that is not ours"),
    ] {
        fs::write(home.join(name), bytes).expect("it can be written");
    }
    let before = fs::read_dir(&home).expect("it is there").count();
    let (disk, warnings) = open(config(&folder), best_backend(8));
    assert_eq!(check_all(&disk, &all), all.len());
    assert_eq!(store(&disk, &chunks(50..60, 5000)), 10);
    assert_eq!(warnings.kinds(), [WarningKind::Foreign], "the others of the kind are left out");
    disk.close();
    drop(disk);
    assert!(fs::read_dir(&home).expect("it is there").count() > before, "nothing was removed");
    // A segment that was cut, as by a copy that was broken off: what is whole is found.
    let path = folder.files("seg").into_iter().next().expect("a segment");
    let file = fs::File::options().write(true).open(&path).expect("it can be opened");
    file.set_len(4096 * 20).expect("it can be cut");
    let (disk, _) = open(config(&folder), best_backend(8));
    let num_found = check_all(&disk, &all);
    assert!((5..20).contains(&num_found), "{num_found}");
}

#[test]
fn another_model_and_another_process_are_kept_out() {
    let folder = Folder::new("kept-out");
    let (disk, _) = open(config(&folder), best_backend(8));
    let one = chunk(1, 100);
    store(&disk, std::slice::from_ref(&one));
    let again = DiskTier::open(config(&folder), &namespace(), |_| {});
    assert!(matches!(again, Err(Error::InUse { .. })));
    let other = Namespace::new(vec![[9; 16].into()]);
    let other = DiskTier::open(config(&folder), &other, |_| {}).expect("a folder of its own");
    assert_eq!(other.find(&one.key, Previous::default()), None);
}

#[test]
fn wrong_sizes_and_folders_are_refused_with_what_is_right() {
    let folder = Folder::new("refused");
    let mut small = config(&folder);
    small.max_bytes = 1000;
    let error = DiskTier::open(small, &namespace(), |_| {}).unwrap_err().to_string();
    assert!(error.contains("at most a quarter"), "{error}");
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("it can be written");
    let mut wrong = config(&folder);
    wrong.path = file;
    assert!(matches!(DiskTier::open(wrong, &namespace(), |_| {}), Err(Error::Io { .. })));
}

#[test]
fn a_chunk_that_changed_place_is_not_taken_for_another() {
    let folder = Folder::new("swapped");
    let mut config = config(&folder);
    config.direct = false;
    let all = chunks(0..2, 4096);
    let (disk, warnings) = open(config, Arc::new(Threads::new(1)));
    store(&disk, &all);
    // Both chunks have good bytes, only in each other's place.
    let path = folder.files("open").pop().expect("the current segment");
    let file = fs::File::options().write(true).open(path).expect("it can be opened");
    file.write_all_at(&all[1].bytes, 2 * 4096).expect("it can be written");
    file.write_all_at(&all[0].bytes, 3 * 4096).expect("it can be written");
    assert_eq!(check_all(&disk, &all), 0);
    assert_eq!(warnings.kinds(), [WarningKind::Damaged]);
}

#[test]
fn the_smallest_disk_holds_chunks_larger_than_a_64th_of_it() {
    let largest = 20_000_000;
    let folder = Folder::new("small");
    let smaller = |max_bytes| {
        let mut config = DiskConfig::new(folder.path(), max_bytes);
        config.largest_chunk = largest as u64;
        config
    };
    let refused = DiskTier::open(smaller(72 << 20), &namespace(), |_| ()).err();
    let message = refused.map(|it| it.to_string()).expect("three chunks have room");
    assert_eq!(
        message,
        "a disk limit of 0.071 GiB is too small: the largest chunk has 0.019 GiB, so that at least \
         0.075 GiB are needed for 4 segments"
    );

    let max_bytes = (75 << 30) / 1000;
    let (disk, warnings) = open(smaller(max_bytes), best_backend(8));
    for at in 0..7 {
        let new = chunk(at, largest);
        assert_eq!(store(&disk, std::slice::from_ref(&new)), 1, "chunk {at} is refused");
        assert_eq!(check_all(&disk, &[new]), 1);
        assert!(disk.tier().num_bytes() <= max_bytes);
    }
    assert!(disk.tier().num_chunks() >= 3);
    assert_eq!(warnings.len(), 0);
}

#[test]
fn many_threads_store_and_read_at_once() {
    let folder = Folder::on_disk("threads");
    let mut config = config(&folder);
    config.max_bytes = 4 << 20;
    config.segment_bytes = Some(256 << 10);
    let (disk, _) = open(config, best_backend(8));
    let disk: &Disk = &disk;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                for round in 0..25 {
                    let first = (thread * 1000 + round * 20) % 2500;
                    let some = chunks(first..first + 20, 6000);
                    store(disk, &some);
                    check_all(disk, &some);
                }
            });
        }
    });
    assert!(disk.tier().num_bytes() <= 4 << 20);
}
