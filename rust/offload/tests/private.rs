//! Files are for one user alone, and only regular files are opened.

mod common;

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Folder, Warnings, batch, check_all, chunk, open, small, store};
use hybrid_blocks_offload::Error;
use hybrid_blocks_offload::disk::{DiskTier, WarningKind};
use hybrid_blocks_offload::io::Threads;
use hybrid_blocks_offload::objects::{Location, ObjectConfig, Objects};
use hybrid_blocks_offload::plan::{Previous, Tier};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// All tests of this binary run with this mask: it takes nothing from the modes of files.
fn without_mask() {
    rustix::process::umask(Mode::empty());
}

/// Paths and modes of all that lies below a folder, itself included.
fn modes_below(path: &Path) -> Vec<(String, u32)> {
    let found = fs::symlink_metadata(path).expect("it is there");
    let mut modes = vec![(path.display().to_string(), found.mode() & 0o777)];
    if found.is_dir() {
        for entry in fs::read_dir(path).expect("it can be read") {
            modes.extend(modes_below(&entry.expect("it is there").path()));
        }
    }
    modes
}

fn assert_private(path: &Path) {
    for (path, mode) in modes_below(path) {
        let expected = if Path::new(&path).is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{path} has {mode:o}");
    }
}

fn refusal(path: &Path) -> String {
    let mut config = small(&Folder::new("unused"));
    path.clone_into(&mut config.path);
    match DiskTier::open(config, &common::namespace(), |_| {}) {
        Err(error @ Error::InvalidConfig(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn folders_and_files_of_a_disk_are_for_one_user() {
    without_mask();
    let folder = Folder::new("modes");
    let mut config = small(&folder);
    config.path = folder.path().join("a/b/c");
    let (disk, _) = open(config, Arc::new(Threads::new(1)));
    for round in 0..12 {
        store(&disk, &batch(round));
    }
    assert_private(&folder.path().join("a"));
}

#[test]
fn a_namespace_that_others_can_read_is_closed_to_them() {
    without_mask();
    let folder = Folder::new("closed");
    drop(open(small(&folder), Arc::new(Threads::new(1))));
    let inner = folder.namespace();
    fs::set_permissions(&inner, Permissions::from_mode(0o755)).expect("it is ours");
    drop(open(small(&folder), Arc::new(Threads::new(1))));
    assert_private(&inner);
}

#[test]
fn a_folder_that_others_can_write_to_or_own_is_refused_with_what_to_do() {
    without_mask();
    let folder = Folder::new("shared");
    for mode in [0o777, 0o775, 0o1777, 0o702] {
        fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("it is ours");
        let why = refusal(folder.path());
        assert!(why.contains("others can write to it"), "{why}");
        assert!(why.contains("/kv") && why.contains("chmod go-w"), "{why}");
    }
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
    // Only root can give a folder away.
    if std::os::unix::fs::chown(folder.path(), Some(65534), None).is_ok() {
        assert!(refusal(folder.path()).contains("user 65534 owns it"));
    }
    let inner = folder.path().join("kv");
    let mut config = small(&folder);
    config.path = inner.clone();
    drop(open(config, Arc::new(Threads::new(1))));
    assert_private(&inner);
}

/// In `/proc` what is made is not found, though the folder above it is there.
#[test]
fn a_folder_that_cannot_be_made_is_an_error() {
    for path in ["/proc/kv", "/proc/self/kv/kv"] {
        let mut config = small(&Folder::new("unused"));
        config.path = path.into();
        let refused = DiskTier::open(config, &common::namespace(), |_| {});
        assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
        assert!(Location::parse(&format!("file://{path}")).is_err());
    }
}

#[test]
fn a_namespace_that_is_a_link_is_refused() {
    let (folder, elsewhere) = (Folder::new("link"), Folder::new("elsewhere"));
    drop(open(small(&folder), Arc::new(Threads::new(1))));
    let inner = folder.namespace();
    fs::remove_dir_all(&inner).expect("it is ours");
    symlink(elsewhere.path(), &inner).expect("it is free");
    assert!(DiskTier::open(small(&folder), &common::namespace(), |_| {}).is_err());
    assert_eq!(fs::read_dir(elsewhere.path()).expect("it is there").count(), 0);
}

/// Links, pipes and devices by the names of segments: the start does not wait, and nothing outside changes.
#[test]
fn what_is_no_regular_file_is_never_opened() {
    let folder = Folder::new("odd");
    let (disk, _) = open(small(&folder), Arc::new(Threads::new(1)));
    store(&disk, &batch(1));
    drop(disk);
    let inner = folder.namespace();
    let outside = folder.path().join("outside");
    fs::copy(&folder.files("open")[0], &outside).expect("it can be copied");
    let before = fs::read(&outside).expect("it is there");
    for ending in ["seg", "open"] {
        symlink(&outside, inner.join(format!("{:016x}.{ending}", 100))).expect("it is free");
        let pipe = inner.join(format!("{:016x}.{ending}", 101));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).expect("it is free");
        fs::create_dir(inner.join(format!("{:016x}.{ending}", 102))).expect("it is free");
        // The device that is always full; only root can make one.
        let device = inner.join(format!("{:016x}.{ending}", 103));
        let full = rustix::fs::makedev(1, 7);
        let _ = mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR, full);
    }
    let (disk, warnings) = open(small(&folder), Arc::new(Threads::new(1)));
    assert_eq!(check_all(&disk, &batch(1)), 5);
    assert!(warnings.len() >= 6, "{warnings:?}");
    assert!(warnings.kinds().iter().all(|kind| *kind == WarningKind::Foreign), "{warnings:?}");
    assert!(
        fs::read(&outside).expect("it is there") == before,
        "nothing was written through a link"
    );
    for name in [format!("{:016x}.seg", 100), format!("{:016x}.open", 101)] {
        assert!(fs::symlink_metadata(inner.join(&name)).is_ok(), "{name} is left alone");
    }
}

#[test]
fn a_lock_that_is_a_link_or_a_pipe_is_refused() {
    let folder = Folder::new("locks");
    drop(open(small(&folder), Arc::new(Threads::new(1))));
    let lock = folder.namespace().join("lock");
    let target = folder.path().join("target");
    fs::remove_file(&lock).expect("it is ours");
    symlink(&target, &lock).expect("it is free");
    let refused = DiskTier::open(small(&folder), &common::namespace(), |_| {});
    assert!(refused.expect_err("a link").to_string().contains("lock"));
    assert!(!target.exists());
    fs::remove_file(&lock).expect("it is ours");
    mknodat(CWD, &lock, FileType::Fifo, Mode::RUSR, 0).expect("it is free");
    assert!(DiskTier::open(small(&folder), &common::namespace(), |_| {}).is_err());
}

#[test]
fn a_file_that_is_larger_than_any_segment_is_left_alone() {
    let folder = Folder::new("large");
    let (disk, _) = open(small(&folder), Arc::new(Threads::new(1)));
    store(&disk, &batch(1));
    disk.close();
    drop(disk);
    let path = folder.files("seg").pop().expect("a sealed segment");
    let file = File::options().write(true).open(&path).expect("it is ours");
    file.set_len(200 << 30).expect("a file with holes");
    let warnings = Warnings::default();
    let tier = DiskTier::open(small(&folder), &common::namespace(), warnings.callback());
    assert_eq!(tier.expect("it can be used").num_chunks(), 0);
    assert!(warnings.messages()[0].contains("larger than any segment"), "{warnings:?}");
    assert_eq!(fs::metadata(&path).expect("it is there").len(), 200 << 30);
}

fn objects_in(folder: &Path) -> Result<(Objects, Warnings), Error> {
    let warnings = Warnings::default();
    let config = ObjectConfig::new(Location::parse(&format!("file://{}", folder.display()))?);
    let objects = Objects::open(config, common::namespace(), warnings.callback())?;
    assert!(objects.wait(Duration::from_secs(60)), "it is listed");
    Ok((objects, warnings))
}

fn put(objects: &Objects) {
    for at in 0..20 {
        let chunk = chunk(at, 5000);
        objects.store(&[(chunk.key, chunk.num_tokens, &chunk.bytes)]);
    }
    assert!(objects.wait(Duration::from_secs(60)), "all are written");
}

#[test]
fn folders_and_files_of_objects_are_for_one_user() {
    without_mask();
    let folder = Folder::new("objects");
    let inner = folder.path().join("objects");
    let (objects, warnings) = objects_in(&inner).expect("it can be made");
    put(&objects);
    assert_eq!((objects.tier().num_chunks(), warnings.len()), (20, 0));
    assert_private(&inner);
    let (again, _) = objects_in(&inner).expect("it is there");
    assert_eq!(again.tier().num_chunks(), 20, "nothing but objects is listed");
    fs::set_permissions(&inner, Permissions::from_mode(0o777)).expect("it is ours");
    let refused = objects_in(&inner).expect_err("others can write to it").to_string();
    assert!(refused.contains("others can write to it"), "{refused}");
}

#[test]
fn an_object_that_is_a_link_or_a_pipe_is_a_miss() {
    let folder = Folder::new("odd-objects");
    let inner = folder.path().join("objects");
    put(&objects_in(&inner).expect("it can be made").0);
    let first = chunk(0, 5000);
    let layout = "01".repeat(16);
    let mut digest = String::new();
    for byte in first.key.digest.as_bytes() {
        write!(digest, "{byte:02x}").expect("it is a string");
    }
    let path = inner.join(layout).join("0").join(digest);
    let outside = folder.path().join("outside");
    fs::rename(&path, &outside).expect("the object of the first chunk");
    let pipe = || mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).expect("it is free");
    let link = || symlink(&outside, &path).expect("it is free");
    for place in [&link as &dyn Fn(), &pipe] {
        place();
        let (after, _) = objects_in(&inner).expect("it is there");
        assert!(after.tier().find(&first.key, Previous::default()).is_none());
        assert_eq!(after.tier().num_chunks(), 19);
        let mut bytes = vec![0; 5000];
        let result = after.load(&[first.key], &mut [&mut bytes]);
        assert!(result[0].is_err() && bytes == vec![0; 5000]);
        fs::remove_file(&path).expect("it is there");
    }
}
