//! A disk that dies, fills up, or tells lies: what is read is right or is not there.

mod common;

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use common::{Chunk, Folder, batch, check_all, chunk, open, small, store};
use hybrid_blocks_offload::disk::{Disk, DiskConfig, DiskTier, WarningKind};
use hybrid_blocks_offload::io::{BlockIo, OnRead, ReadOp, Threads, WriteOp, best_backend};

/// A backend that writes `left` bytes and then nothing more, as if the process had been killed.
#[derive(Debug)]
struct Dying {
    left: AtomicUsize,
}

impl BlockIo for Dying {
    fn read(&self, ops: &mut [ReadOp<'_>], done: &mut OnRead<'_>) {
        Threads::new(1).read(ops, done);
    }

    fn write(&self, ops: &[WriteOp<'_>], meanwhile: &mut dyn FnMut()) -> Vec<io::Result<()>> {
        meanwhile();
        ops.iter()
            .map(|op| {
                let len = op.buffer.len();
                let before = self.left.load(Ordering::Relaxed);
                let left = before.min(len);
                self.left.store(before - left, Ordering::Relaxed);
                op.file.write_all_at(&op.buffer[..left], op.offset)?;
                if left < len { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
            })
            .collect()
    }

    fn name(&self) -> &'static str {
        "dying"
    }
}

/// Each of 500 lives stores until it dies at another byte; the next one finds all that was stored.
#[test]
fn five_hundred_deaths_in_the_middle_of_a_write() {
    let mut random = 12_345u64;
    for life in 0..500u64 {
        let folder = Folder::new("death");
        let mut acknowledged: Vec<Chunk> = Vec::new();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let left = (random >> 33) as usize % 300_000;
        {
            // With a pause that outlasts it, a life does nothing after its last byte: no footer, no name.
            let mut config = small(&folder);
            config.retry_after = Duration::from_secs(3600);
            let (disk, _) = open(config, Arc::new(Dying { left: AtomicUsize::new(left) }));
            for round in 0.. {
                let chunks = batch(life * 100 + round);
                if store(&disk, &chunks) < chunks.len() {
                    break;
                }
                acknowledged.extend(chunks);
            }
            // The lock ends with the process, and here with the tier.
        }
        let (disk, _) = open(small(&folder), Arc::new(Threads::new(1)));
        let num_found = check_all(&disk, &acknowledged);
        assert_eq!(num_found, acknowledged.len(), "life {life}, {left} bytes");
        assert_eq!(store(&disk, &batch(life * 100 + 99)), 5, "the next life stores again");
    }
}

/// The child of `a_process_that_is_killed_loses_only_the_write_under_way`.
#[test]
fn child_that_stores_until_it_is_killed() {
    let Some(path) = std::env::var_os("HYBRID_BLOCKS_KILLED_CHILD") else { return };
    let life: u64 = std::env::var("HYBRID_BLOCKS_LIFE").expect("set").parse().expect("a number");
    let mut config = DiskConfig::new(path, 8 << 20);
    config.segment_bytes = Some(512 << 10);
    let tier = DiskTier::open(config, &common::namespace(), |_| {});
    let disk = Disk::new(tier.expect("it opens"), best_backend(8));
    for round in 0..100_000 {
        let chunks = batch(life * 1000 + round);
        if store(&disk, &chunks) == chunks.len() {
            eprintln!("stored {}", life * 1000 + round);
        }
    }
}

#[test]
fn a_process_that_is_killed_loses_only_the_write_under_way() {
    let folder = Folder::on_disk("killed");
    let mut newest = Vec::new();
    for life in 0..20u64 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "child_that_stores_until_it_is_killed", "--nocapture"])
            .env("HYBRID_BLOCKS_KILLED_CHILD", folder.path())
            .env("HYBRID_BLOCKS_LIFE", life.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut read = |most: u64| {
            for _ in 0..most {
                let Some(Ok(line)) = lines.next() else { break };
                if let Some(round) = line.strip_prefix("stored ") {
                    newest.push(round.parse::<u64>().expect("a number"));
                }
            }
        };
        read(1 + life * 7 % 40);
        // SIGKILL, at any point of a write, a seal or an eviction.
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        read(u64::MAX);
        let mut config = DiskConfig::new(folder.path(), 8 << 20);
        config.segment_bytes = Some(512 << 10);
        let (disk, warnings) = open(config, best_backend(8));
        assert_eq!(warnings.messages(), [""; 0], "life {life}");
        // The bound holds 1,000 chunks and more; the newest 40 batches are far from eviction.
        let recent: Vec<_> = newest.iter().rev().take(40).flat_map(|&round| batch(round)).collect();
        assert_eq!(check_all(&disk, &recent), recent.len(), "life {life}");
        assert!(disk.tier().num_bytes() <= 8 << 20);
    }
    assert!(newest.len() >= 100, "{} batches in all lives", newest.len());
}

/// A backend whose writes fail as on a full disk, while `num_failures` lasts.
#[derive(Debug)]
struct Full {
    num_failures: AtomicU32,
}

impl BlockIo for Full {
    fn read(&self, ops: &mut [ReadOp<'_>], done: &mut OnRead<'_>) {
        Threads::new(1).read(ops, done);
    }

    fn write(&self, ops: &[WriteOp<'_>], meanwhile: &mut dyn FnMut()) -> Vec<io::Result<()>> {
        meanwhile();
        let fails = self
            .num_failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match fails {
            Ok(_) => ops.iter().map(|_| Err(io::ErrorKind::StorageFull.into())).collect(),
            Err(_) => Threads::new(1).write(ops, &mut || ()),
        }
    }

    fn name(&self) -> &'static str {
        "full"
    }
}

#[test]
fn a_full_disk_pauses_writes_and_goes_on_reading() {
    let folder = Folder::new("full");
    let mut config = small(&folder);
    config.retry_after = Duration::from_secs(3600);
    let io = Arc::new(Full { num_failures: AtomicU32::new(0) });
    let (disk, warnings) = open(config, Arc::clone(&io) as Arc<dyn BlockIo>);
    assert_eq!(store(&disk, &batch(1)), 5);
    io.num_failures.store(1, Ordering::Relaxed);
    assert_eq!(store(&disk, &batch(2)), 0);
    assert!(disk.tier().is_paused());
    assert_eq!(store(&disk, &batch(3)), 0, "nothing is tried");
    assert_eq!(check_all(&disk, &batch(1)), 5);
    assert_eq!(warnings.kinds(), [WarningKind::Write]);
}

#[test]
fn a_full_disk_is_written_again_after_the_pause() {
    let folder = Folder::new("full-again");
    let mut config = small(&folder);
    config.retry_after = Duration::ZERO;
    let io = Arc::new(Full { num_failures: AtomicU32::new(1) });
    let (disk, _) = open(config, Arc::clone(&io) as Arc<dyn BlockIo>);
    assert_eq!(store(&disk, &batch(1)), 0);
    assert_eq!(store(&disk, &batch(2)), 5);
    assert_eq!(check_all(&disk, &batch(2)), 5);
}

#[test]
fn a_folder_that_takes_no_files_any_more_stops_nothing() {
    let folder = Folder::new("gone");
    let (disk, warnings) = open(small(&folder), Arc::new(Threads::new(1)));
    assert_eq!(store(&disk, &batch(1)), 5);
    fs::remove_dir_all(folder.namespace()).expect("it can be removed");
    let mut num_stored = 0;
    for round in 2..20 {
        num_stored += store(&disk, &batch(round));
        // Chunks in the open file can still be read.
        check_all(&disk, &batch(round));
    }
    assert!(num_stored < 18 * 5);
    assert!(warnings.kinds().contains(&WarningKind::Write));
}

/// Reads that end early, as at the end of a file that was cut, and errors of the disk.
#[derive(Debug)]
struct Short;

impl BlockIo for Short {
    fn read(&self, ops: &mut [ReadOp<'_>], done: &mut OnRead<'_>) {
        for (at, op) in ops.iter_mut().enumerate() {
            let half = op.buffer.len() / 2;
            let result = op.file.read_exact_at(&mut op.buffer[..half], op.offset);
            let lies = at % 2 == 0;
            // A backend that says that all is well, and one that notices.
            let result = if lies { result } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            done(at, op.buffer, result);
        }
    }

    fn write(&self, ops: &[WriteOp<'_>], meanwhile: &mut dyn FnMut()) -> Vec<io::Result<()>> {
        meanwhile();
        Threads::new(1).write(ops, &mut || ())
    }

    fn name(&self) -> &'static str {
        "short"
    }
}

#[test]
fn a_read_that_ends_early_is_never_data() {
    let folder = Folder::new("short");
    let (disk, warnings) = open(small(&folder), Arc::new(Short));
    let chunks: Vec<_> = (0..6).map(|at| chunk(at, 9000)).collect();
    assert_eq!(store(&disk, &chunks), 6);
    assert_eq!(check_all(&disk, &chunks), 0);
    assert!(warnings.kinds().contains(&WarningKind::Damaged));
    assert_eq!(disk.tier().num_chunks(), 0, "what cannot be read is forgotten");
}

#[test]
fn files_that_were_cut_give_an_error_in_every_backend() {
    for io in [best_backend(4), Arc::new(Threads::new(2)) as Arc<dyn BlockIo>] {
        let folder = Folder::new("cut");
        let (disk, warnings) = open(small(&folder), Arc::clone(&io));
        let chunks: Vec<_> = (0..3).map(|at| chunk(at, 9000)).collect();
        store(&disk, &chunks);
        let path = folder.files("open").pop().expect("the current segment");
        let file = fs::File::options().write(true).open(path).expect("it can be opened");
        file.set_len(2 * 4096 + 5000).expect("it can be cut");
        assert_eq!(check_all(&disk, &chunks), 0, "{}", io.name());
        assert_eq!(warnings.kinds().first(), Some(&WarningKind::Read));
    }
}
