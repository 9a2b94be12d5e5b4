//! A file system that is slow, frozen or full, and backends that fail: no thread waits with the
//! look-ups' lock.

mod common;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use common::{Folder, Warnings, batch, check_all, chunk, namespace, small, store};
use hybrid_blocks_offload::disk::{Disk, DiskConfig, DiskTier, OsStorage, Storage, WarningKind};
use hybrid_blocks_offload::io::{BlockIo, OnRead, ReadOp, Ring, Threads, WriteOp};
use hybrid_blocks_offload::plan::{Previous, Tier};

/// The behaviour of a shim at each step with a file.
type OnStep = dyn Fn(&'static str) -> io::Result<()> + Send + Sync;

/// A file system that asks before each step.
struct Shim(Box<OnStep>);

impl std::fmt::Debug for Shim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shim")
    }
}

impl Storage for Shim {
    fn create(&self, path: &Path, num_bytes: u64, header: &[u8], direct: bool) -> io::Result<File> {
        (self.0)("create")?;
        OsStorage.create(path, num_bytes, header, direct)
    }

    fn open(&self, path: &Path, direct: bool) -> io::Result<File> {
        (self.0)("open")?;
        OsStorage.open(path, direct)
    }

    fn publish(&self, file: &File, from: &Path, to: &Path) -> io::Result<()> {
        (self.0)("publish")?;
        OsStorage.publish(file, from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        (self.0)("remove")?;
        OsStorage.remove(path)
    }
}

fn over(
    config: DiskConfig,
    io: Arc<dyn BlockIo>,
    on_step: impl Fn(&'static str) -> io::Result<()> + Send + Sync + 'static,
) -> (Arc<Disk>, Warnings) {
    let warnings = Warnings::default();
    let tier = DiskTier::open(config, &namespace(), warnings.callback()).expect("it opens");
    let storage = Arc::new(Shim(Box::new(on_step)));
    (Arc::new(Disk::with_backends(tier, Arc::clone(&io), io, storage)), warnings)
}

#[test]
fn every_step_with_a_file_leaves_the_tier_free() {
    let folder = Folder::new("free");
    let me: Arc<OnceLock<Weak<Disk>>> = Arc::default();
    let counts: Arc<[AtomicU32; 4]> = Arc::default();
    let (this, steps) = (Arc::clone(&me), Arc::clone(&counts));
    let (disk, _) = over(small(&folder), Arc::new(Threads::new(2)), move |step| {
        let at = ["create", "open", "publish", "remove"].iter().position(|it| *it == step);
        steps[at.expect("a step")].fetch_add(1, Ordering::Relaxed);
        if let Some(disk) = this.get().and_then(Weak::upgrade) {
            assert!(disk.try_tier().is_some(), "{step} holds the lock of look-ups");
        }
        Ok(())
    });
    me.set(Arc::downgrade(&disk)).expect("it is set once");
    for round in 0..60 {
        assert_eq!(store(&disk, &batch(round)), 5);
        check_all(&disk, &batch(round / 2));
    }
    disk.close();
    check_all(&disk, &batch(59));
    for (count, step) in counts.iter().zip(["create", "open", "publish", "remove"]) {
        assert!(count.load(Ordering::Relaxed) > 3, "{step}");
    }
}

/// A disk that stands still for good in one step, while a look-up, a read and the counts go on.
#[test]
fn a_disk_that_stands_still_in_any_step_holds_up_no_look_up() {
    for frozen in ["create", "publish", "remove"] {
        let folder = Folder::new("frozen");
        let (freezes, stands) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (when, tells) = (Arc::clone(&freezes), Arc::clone(&stands));
        let (disk, _) = over(small(&folder), Arc::new(Threads::new(1)), move |step| {
            if step == frozen && when.load(Ordering::Acquire) {
                tells.store(true, Ordering::Release);
                while when.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            }
            Ok(())
        });
        for round in 0..40 {
            store(&disk, &batch(round));
        }
        freezes.store(true, Ordering::Release);
        let writer = Arc::clone(&disk);
        let thread = std::thread::spawn(move || {
            for round in 40..80 {
                store(&writer, &batch(round));
            }
        });
        while !stands.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let newest = batch(39);
        assert!(disk.tier().find(&newest[0].key, Previous::default()).is_some(), "{frozen}");
        assert_eq!(check_all(&disk, &newest), 5, "{frozen}");
        assert!(disk.tier().num_bytes() <= 1 << 20, "{frozen}");
        freezes.store(false, Ordering::Release);
        thread.join().expect("it ends");
        assert_eq!(store(&disk, &batch(99)), 5, "{frozen}");
    }
}

#[test]
fn a_full_file_system_evicts_the_oldest_segment_and_stores_on() {
    let folder = Folder::new("enospc");
    let mut config = small(&folder);
    config.retry_after = std::time::Duration::from_secs(60);
    let files = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&files);
    // Room for four files, whatever the bound says.
    let (disk, warnings) = over(config, Arc::new(Threads::new(1)), move |step| {
        match step {
            "create" if count.load(Ordering::Relaxed) >= 4 => {
                return Err(io::ErrorKind::StorageFull.into());
            }
            "create" => count.fetch_add(1, Ordering::Relaxed),
            "remove" => count.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        Ok(())
    });
    for round in 0..80 {
        assert_eq!(store(&disk, &batch(round)), 5, "round {round}");
    }
    assert_eq!(check_all(&disk, &batch(79)), 5);
    assert!(!disk.tier().is_paused());
    assert!(warnings.messages().iter().all(|it| it.contains("oldest segments make room")));
}

#[test]
fn a_full_file_system_without_a_segment_of_ours_pauses_writes() {
    let folder = Folder::new("none");
    let mut config = small(&folder);
    config.retry_after = std::time::Duration::from_secs(60);
    let full = |step| match step {
        "create" => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    };
    let (disk, warnings) = over(config, Arc::new(Threads::new(1)), full);
    assert_eq!((store(&disk, &batch(0)), store(&disk, &batch(1))), (0, 0));
    assert!(disk.tier().is_paused());
    assert_eq!(warnings.kinds(), [WarningKind::Write]);
    assert_eq!(disk.tier().num_bytes(), 0);
}

#[test]
fn a_file_that_is_in_the_way_stays_and_another_number_is_taken() {
    let folder = Folder::new("way");
    let (disk, warnings) = over(small(&folder), Arc::new(Threads::new(1)), |_| Ok(()));
    assert_eq!(store(&disk, &batch(0)), 5);
    let current = folder.files("open").pop().expect("the current segment");
    let taken = current.with_file_name(format!("{:016x}.open", 1));
    std::fs::write(&taken, "not ours").expect("it can be written");
    for round in 1..30 {
        assert_eq!(store(&disk, &batch(round)), 5);
    }
    assert_eq!(std::fs::read(&taken).expect("it is there"), b"not ours");
    assert_eq!(warnings.kinds(), [WarningKind::Foreign]);
}

/// A backend that does as the test says.
#[derive(Debug, Default)]
struct Moody {
    panics: AtomicU32,
    read_errors: AtomicU32,
}

fn take(left: &AtomicU32) -> bool {
    let less = |left: u32| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

impl BlockIo for Moody {
    fn read(&self, ops: &mut [ReadOp<'_>], done: &mut OnRead<'_>) {
        if take(&self.read_errors) {
            for (at, op) in ops.iter_mut().enumerate() {
                done(at, op.buffer, Err(io::Error::from_raw_os_error(5)));
            }
            return;
        }
        Threads::new(1).read(ops, done);
    }

    fn write(&self, ops: &[WriteOp<'_>], meanwhile: &mut dyn FnMut()) -> Vec<io::Result<()>> {
        assert!(!take(&self.panics), "no thread can be had");
        Threads::new(1).write(ops, meanwhile)
    }

    fn name(&self) -> &'static str {
        "moody"
    }
}

#[test]
fn a_write_that_panics_leaves_no_segment_behind() {
    let folder = Folder::new("panic");
    let io = Arc::new(Moody::default());
    let (disk, warnings) = over(small(&folder), Arc::clone(&io) as Arc<dyn BlockIo>, |_| Ok(()));
    for round in 0..30 {
        io.panics.store(1, Ordering::Relaxed);
        assert_eq!(store(&disk, &batch(round)), 0);
    }
    assert!(folder.files("open").len() <= 1, "each was sealed or evicted");
    assert!(warnings.messages()[0].contains("it panicked: no thread can be had"));
    for round in 0..30 {
        assert_eq!(store(&disk, &batch(round)), 5);
    }
    assert_eq!(check_all(&disk, &batch(29)), 5);
}

#[test]
fn a_chunk_that_cannot_be_read_once_is_found_again() {
    let folder = Folder::new("eio");
    let io = Arc::new(Moody::default());
    let mut config = small(&folder);
    config.retry_after = std::time::Duration::from_secs(60);
    let (disk, warnings) = over(config.clone(), Arc::clone(&io) as Arc<dyn BlockIo>, |_| Ok(()));
    let (bad, good) = (chunk(0, 5000), chunk(1, 5000));
    assert_eq!(store(&disk, &[bad.clone(), good.clone()]), 2);
    io.read_errors.store(1, Ordering::Relaxed);
    assert_eq!(check_all(&disk, std::slice::from_ref(&bad)), 0);
    assert_eq!(warnings.kinds(), [WarningKind::Read]);
    assert!(disk.tier().find(&bad.key, Previous::default()).is_none(), "it is a miss for a while");
    assert_eq!(check_all(&disk, std::slice::from_ref(&good)), 1, "others are read");
    assert_eq!(disk.tier().num_chunks(), 2, "it is kept");
    drop(disk);
    config.retry_after = std::time::Duration::ZERO;
    let (disk, _) = over(config, Arc::clone(&io) as Arc<dyn BlockIo>, |_| Ok(()));
    for tries in 1..=3 {
        io.read_errors.store(1, Ordering::Relaxed);
        assert_eq!(check_all(&disk, std::slice::from_ref(&bad)), 0);
        assert_eq!(disk.tier().num_chunks(), if tries < 3 { 2 } else { 1 });
    }
    assert_eq!(store(&disk, std::slice::from_ref(&bad)), 1, "it can be stored again");
    assert_eq!(check_all(&disk, &[bad, good]), 2);
}

#[cfg(target_os = "linux")]
#[test]
fn a_ring_that_broke_goes_on_as_threads() {
    let Ok(ring) = Ring::new(8) else { return };
    let ring = Arc::new(ring);
    let folder = Folder::new("broken");
    let (disk, warnings) = over(small(&folder), Arc::clone(&ring) as Arc<dyn BlockIo>, |_| Ok(()));
    assert_eq!(store(&disk, &batch(0)), 5);
    ring.break_down();
    assert_eq!(store(&disk, &batch(1)), 5);
    assert_eq!((check_all(&disk, &batch(0)), check_all(&disk, &batch(1))), (5, 5));
    assert_eq!(warnings.len(), 0);
}
