//! Folders, chunks and warnings for the tests of disk and objects.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hybrid_blocks::{Digest, GroupId, Key};
use hybrid_blocks_offload::Namespace;
use hybrid_blocks_offload::disk::{Disk, DiskConfig, DiskTier, Warning, WarningKind};
use hybrid_blocks_offload::io::BlockIo;
use hybrid_blocks_offload::plan::{Previous, Tier};

/// A folder of its own, removed in the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// In memory, where the system has such a place: what these tests check is content.
    pub(crate) fn new(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Self::within(&root, name)
    }

    /// On a disk.
    pub(crate) fn on_disk(name: &str) -> Self {
        Self::within(&std::env::temp_dir(), name)
    }

    fn within(root: &Path, name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("hybrid-blocks-{name}-{}-{next}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.expect("a temporary folder can be made");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The folder of the only namespace.
    pub(crate) fn namespace(&self) -> PathBuf {
        let mut folders = fs::read_dir(&self.0).expect("it is there");
        folders.next().expect("a namespace").expect("it is there").path()
    }

    /// Paths of all segment files.
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        [self.files("seg"), self.files("open")].concat()
    }

    pub(crate) fn files(&self, ending: &str) -> Vec<PathBuf> {
        let files = fs::read_dir(self.namespace()).expect("it is there");
        let paths = files.map(|file| file.expect("it is there").path());
        let mut paths: Vec<_> =
            paths.filter(|path| path.extension().is_some_and(|it| it == ending)).collect();
        paths.sort();
        paths
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) key: Key,
    pub(crate) num_tokens: u32,
    pub(crate) bytes: Vec<u8>,
}

/// A chunk whose bytes follow from its number.
pub(crate) fn chunk(at: u64, num_bytes: usize) -> Chunk {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&(at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    digest[8..16].copy_from_slice(&at.to_le_bytes());
    let mut state = at.wrapping_mul(77) + num_bytes as u64;
    let bytes = (0..num_bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            (state >> 56) as u8
        })
        .collect();
    let key = Key { digest: Digest::from(digest), group: GroupId((at % 3) as u32) };
    Chunk { key, num_tokens: at as u32 + 1, bytes }
}

pub(crate) fn namespace() -> Namespace {
    Namespace::new(vec![[1; 16].into(), [2; 16].into(), [3; 16].into()])
}

pub(crate) fn config(folder: &Folder) -> DiskConfig {
    let mut config = DiskConfig::new(folder.path(), 64 << 20);
    config.segment_bytes = Some(1 << 20);
    config.retry_after = Duration::from_secs(60);
    config
}

/// Segments so small that a life fills several.
pub(crate) fn small(folder: &Folder) -> DiskConfig {
    let mut config = config(folder);
    config.max_bytes = 1 << 20;
    config.segment_bytes = Some(128 << 10);
    config.direct = false;
    config.retry_after = Duration::ZERO;
    config
}

pub(crate) fn batch(round: u64) -> Vec<Chunk> {
    (0..5).map(|at| chunk(round * 5 + at, 1500 + (round as usize * 977) % 9000)).collect()
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<Warning>>>);

impl Warnings {
    pub(crate) fn callback(&self) -> impl Fn(&Warning) + Send + 'static {
        let heard = self.clone();
        move |warning| heard.0.lock().expect("no panic").push(warning.clone())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().expect("no panic").len()
    }

    pub(crate) fn messages(&self) -> Vec<String> {
        self.0.lock().expect("no panic").iter().map(|warning| warning.message.clone()).collect()
    }

    pub(crate) fn kinds(&self) -> Vec<WarningKind> {
        self.0.lock().expect("no panic").iter().map(|warning| warning.kind).collect()
    }
}

pub(crate) fn open(config: DiskConfig, io: Arc<dyn BlockIo>) -> (Disk, Warnings) {
    let warnings = Warnings::default();
    let warn = warnings.callback();
    let tier = DiskTier::open(config, &namespace(), warn).expect("the folder can be used");
    (Disk::new(tier, io), warnings)
}

/// How many chunks were written.
pub(crate) fn store(disk: &Disk, chunks: &[Chunk]) -> usize {
    let chunks: Vec<_> =
        chunks.iter().map(|chunk| (chunk.key, chunk.num_tokens, &chunk.bytes[..])).collect();
    disk.store(&chunks)
}

/// Reads all chunks that are there, and compares them byte for byte. Returns how many there were.
pub(crate) fn check_all(disk: &Disk, chunks: &[Chunk]) -> usize {
    let mut num_good = 0;
    for chunk in chunks {
        let slot = disk.tier().find(&chunk.key, Previous::default());
        let Some(slot) = slot else { continue };
        let mut bytes = vec![0; chunk.bytes.len()];
        let Some(results) = disk.load(&[(chunk.key, slot)], &mut [&mut bytes]) else { continue };
        if results[0].is_ok() {
            assert!(bytes == chunk.bytes, "wrong data");
            num_good += 1;
        }
    }
    num_good
}
