//! Measures look-ups, bookkeeping, restarts and the disk's rate, and prints one line each.
//!
//! `cargo bench --bench offload` measures in a folder of its own under `$TMPDIR`;
//! `HYBRID_BLOCKS_BENCH_DISK` names another place. Names of measurements as arguments choose some.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hybrid_blocks::{Digest, GroupId, GroupKind, Key};
use hybrid_blocks_offload::Namespace;
use hybrid_blocks_offload::disk::{Disk, DiskConfig, DiskTier};
use hybrid_blocks_offload::host::{HostGeometry, HostTier, UnitContent};
use hybrid_blocks_offload::io::{
    AlignedBuffer, BlockIo, Mode, ReadOp, WriteOp, best_backend, open,
};
use hybrid_blocks_offload::plan::{Costs, OffloadGroup, Planner, Previous, ReadCost, Tier};

type Measurement = fn();

fn main() {
    let chosen: Vec<_> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let all: [(&str, Measurement); 6] = [
        ("lookup", lookup),
        ("bookkeeping", bookkeeping),
        ("beside-writers", beside_writers),
        ("again", again),
        ("restart", restart),
        ("disk", disk_rate),
    ];
    for (name, measure) in all {
        if chosen.is_empty() || chosen.iter().any(|it| it == name) {
            measure();
        }
    }
}

/// A folder of its own, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let root = std::env::var_os("HYBRID_BLOCKS_BENCH_DISK")
            .map_or_else(std::env::temp_dir, PathBuf::from);
        let path = root.join(format!("hybrid-blocks-bench-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn digest(chat: u64, at: u64) -> Digest {
    let mut bytes = [0; 32];
    let mut mixed = (chat << 40) + at + 1;
    for word in bytes.chunks_mut(8) {
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word.copy_from_slice(&(mixed ^ mixed >> 31).to_le_bytes());
    }
    bytes.into()
}

fn key(group: u32, digest: Digest) -> Key {
    Key { digest, group: GroupId(group) }
}

fn namespace() -> Namespace {
    Namespace::new(vec![[1; 16].into(), [2; 16].into()])
}

fn tier(folder: &Folder, max_bytes: u64) -> DiskTier {
    let config = DiskConfig::new(&folder.0, max_bytes);
    DiskTier::open(config, &namespace(), |warning| eprintln!("{warning:?}")).expect("it opens")
}

/// The least time of several runs, after one that warms up.
fn least(num_runs: u32, mut run: impl FnMut()) -> Duration {
    run();
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..num_runs).map(time).min().unwrap_or_default()
}

/// Look-ups of one chunk while four threads write batches of 2 MiB, for three seconds, and without them.
fn beside_writers() {
    const SECONDS: u64 = 3;
    let folder = Folder::new();
    let disk = Disk::new(tier(&folder, 1 << 30), best_backend(32));
    let one = AlignedBuffer::new(4096);
    disk.store(&[(key(0, digest(1, 0)), 16, &one[..])]);
    let measure = || {
        let (begin, mut times) = (Instant::now(), Vec::new());
        while begin.elapsed() < Duration::from_secs(SECONDS) {
            let start = Instant::now();
            disk.tier().touch(&[key(0, digest(1, 0))]);
            black_box(disk.tier().find(&key(0, digest(1, 0)), Previous::default()));
            times.push(start.elapsed());
            std::thread::sleep(Duration::from_micros(200));
        }
        times.sort_unstable();
        times
    };
    let alone = measure();
    let ends = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let beside = std::thread::scope(|scope| {
        for thread in 0..4 {
            let (disk, ends, written) = (&disk, &ends, &written);
            scope.spawn(move || {
                let bytes = AlignedBuffer::new(64 << 10);
                for batch in 0.. {
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                    let digests = (0..32).map(|at| digest(100 + thread, batch * 32 + at));
                    let chunks: Vec<_> =
                        digests.map(|digest| (key(0, digest), 16, &bytes[..])).collect();
                    disk.store(&chunks);
                    written.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        let times = measure();
        ends.store(true, Ordering::Relaxed);
        times
    });
    let at = |times: &[Duration], per_mille: usize| {
        times[(times.len() - 1) * per_mille / 1000].as_secs_f64() * 1e6
    };
    println!(
        "look-up of a chunk: p99 {:.1} µs; while four threads write {} MiB/s: p99 {:.1} µs, p99.9 {:.1} µs, \
         longest {:.1} µs",
        at(&alone, 990),
        written.load(Ordering::Relaxed) / SECONDS,
        at(&beside, 990),
        at(&beside, 999),
        at(&beside, 1000),
    );
}

/// A store of 16,000 chunks that are there.
fn again() {
    let folder = Folder::new();
    let disk = Disk::new(tier(&folder, 1 << 30), best_backend(32));
    let bytes = AlignedBuffer::new(4096);
    let chunks: Vec<_> = (0..16_000).map(|at| (key(0, digest(3, at)), 16, &bytes[..])).collect();
    disk.store(&chunks);
    let time = least(50, || {
        assert_eq!(disk.store(black_box(&chunks)), 0);
    });
    println!("store of 16,000 chunks that are there: {:.2} ms", time.as_secs_f64() * 1e3);
}

/// A prompt of 100,000 tokens: the first half on the disk, the second in host memory, a state at the end;
/// beside it 200,000 other chunks in host memory.
fn lookup() {
    const TOKENS: u32 = 100_000;
    for chunk in [16u32, 64, 784] {
        let folder = Folder::new();
        let num_chunks = TOKENS / chunk;
        let group =
            |kind| OffloadGroup { kind, chunk_tokens: chunk, chunk_bytes: 4096, use_eagle: false };
        let groups = [group(GroupKind::Full), group(GroupKind::State { slots: 1 })];
        let planner = Planner::new(&groups, chunk).expect("it fits");
        let digests: Vec<_> = (0..u64::from(num_chunks)).map(|at| digest(7, at)).collect();
        let disk = Disk::new(tier(&folder, 256 << 20), best_backend(32));
        let bytes = AlignedBuffer::new(4096);
        let half = num_chunks as usize / 2;
        let chunks: Vec<_> =
            digests[..half].iter().map(|&digest| (key(0, digest), chunk, &bytes[..])).collect();
        disk.store(&chunks);
        let geometry = HostGeometry::new(220_000 * 4096, &[4096, 4096]).expect("it fits");
        let mut host = HostTier::new(geometry).expect("it fits");
        let mut fill = |path: &[Digest], end: Option<Digest>| {
            let path: Vec<_> = path.iter().map(|&digest| (key(0, digest), chunk)).collect();
            let end: Vec<_> = end.iter().map(|&digest| (key(1, digest), chunk)).collect();
            let content = UnitContent { parent: None, path: &path, end: &end };
            let ticket = host.prepare_store(content).expect("it fits");
            host.complete_store(ticket, true);
        };
        for chat in 100..300 {
            let other: Vec<_> = (0..1000).map(|at| digest(chat, at)).collect();
            fill(&other, None);
        }
        fill(&digests[half..], digests.last().copied());
        let disk = disk.tier();
        let tiers: [&dyn Tier; 2] = [&host, &*disk];
        let plan = planner.plan(&tiers, &digests, 0, TOKENS);
        assert_eq!(plan.num_tokens, num_chunks * chunk);
        let hit = least(2000, || {
            black_box(planner.plan(&tiers, black_box(&digests), 0, TOKENS));
        });
        // Reads from the disk and tokens have their costs, and the longest is the soonest.
        let reads = [Some(ReadCost::default()), Some(ReadCost { latency: 1e-3, per_byte: 1e-9 })];
        let costs = Costs { reads: &reads, per_token: Some(1e-4) };
        let weighed = least(2000, || {
            black_box(planner.plan_soonest(&tiers, &costs, black_box(&digests), 0, TOKENS));
        });
        // The disk has the attention and no state, so the planner looks up every length.
        let without: [&dyn Tier; 1] = [&*disk];
        let miss = least(2000, || {
            black_box(planner.plan(&without, black_box(&digests), 0, TOKENS));
        });
        println!(
            "look-up of 100,000 tokens, {chunk} a chunk, half host and half disk: {:.1} µs, weighed \
             {:.1} µs; half on disk without any state: {:.1} µs",
            hit.as_secs_f64() * 1e6,
            weighed.as_secs_f64() * 1e6,
            miss.as_secs_f64() * 1e6
        );
    }
}

/// Units of 200 attention chunks and a state in a full region: each store evicts as much.
fn bookkeeping() {
    let geometry = HostGeometry::new(200_000 * 4096, &[4096, 65536]).expect("it fits");
    let mut tier = HostTier::new(geometry).expect("it fits");
    let unit = |chat| {
        let path: Vec<_> = (0..200).map(|at| (key(0, digest(chat, at)), at as u32 * 16)).collect();
        let end = [(key(1, digest(chat, 199)), 3200)];
        (path, end)
    };
    let units: Vec<_> = (1..=3000).map(unit).collect();
    let (mut best, mut best_on_cpu) = (f64::INFINITY, f64::INFINITY);
    for batch in units.chunks(250).cycle().take(60).skip(12) {
        let (start, on_cpu) = (Instant::now(), nanos_on_cpu());
        for (path, end) in batch {
            let content = UnitContent { parent: None, path, end };
            let ticket = tier.prepare_store(content).expect("units are evicted for it");
            tier.complete_store(ticket, true);
        }
        let num_blocks = (batch.len() * 201) as f64;
        best = best.min(start.elapsed().as_nanos() as f64 / num_blocks);
        best_on_cpu = best_on_cpu.min((nanos_on_cpu() - on_cpu) as f64 / num_blocks);
    }
    println!(
        "store and eviction in host memory: {best:.0} ns a block, {best_on_cpu:.0} ns on the CPU"
    );
}

/// How long this thread has run, without the time in which others had its core.
fn nanos_on_cpu() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}

/// A folder of segments with 1,000,000 chunks in all.
fn restart() {
    const CHUNKS: u64 = 1_000_000;
    let folder = Folder::new();
    let disk = Disk::new(tier(&folder, 40 << 30), best_backend(64));
    let bytes = AlignedBuffer::new(4096);
    for first in (0..CHUNKS).step_by(10_000) {
        let chunks: Vec<_> =
            (first..first + 10_000).map(|at| (key(0, digest(1, at)), 16, &bytes[..])).collect();
        assert_eq!(disk.store(&chunks), chunks.len());
    }
    disk.close();
    drop(disk);
    let mut num_files = 0;
    let time = least(3, || {
        let tier = tier(&folder, 40 << 30);
        assert_eq!(tier.num_chunks() as u64, CHUNKS);
        num_files = tier.num_bytes() / (256 << 20);
    });
    println!(
        "restart with {CHUNKS} chunks in about {num_files} segments: {:.2} s",
        time.as_secs_f64()
    );
}

const BLOCK: usize = 2 << 20;
const BLOCKS: usize = 512;
/// Chunks a call, as of a long prompt: more than are in flight at once.
const BATCH: usize = 128;

/// 1 GiB in chunks of 2 MiB through the tier, as raw transfers of the same size, depth and pattern, and by `fio` where
/// it is installed: in turns, as the rate of a disk changes.
fn disk_rate() {
    let folder = Folder::new();
    let io = best_backend(32);
    let mut bytes: Vec<_> = (0..BATCH).map(|_| AlignedBuffer::new(BLOCK)).collect();
    for (at, buffer) in (0u8..).zip(&mut bytes) {
        buffer.iter_mut().zip(0u8..=255).for_each(|(byte, value)| *byte = value ^ at);
    }
    let rate = |time: Duration| (BLOCKS * BLOCK) as f64 / time.as_secs_f64() / 1e9;
    let mut rounds = Vec::new();
    for round in 0..5u64 {
        let ours = through_tier(&folder, &io, &mut bytes, round);
        let raw = raw_transfers(&folder, &*io, &mut bytes);
        // The fio read comes second: it reads the file that the fio write left.
        let fio = [fio(&folder, "write"), fio(&folder, "read")];
        let _ = fs::remove_file(folder.0.join(FIO_FILE));
        rounds.push([
            [Some(rate(ours.0)), Some(rate(raw.0)), fio[0]],
            [Some(rate(ours.1)), Some(rate(raw.1)), fio[1]],
        ]);
    }
    for (at, what) in ["write", "read"].into_iter().enumerate() {
        let best = |who: usize| rounds.iter().filter_map(|it| it[at][who]).reduce(f64::max);
        let ours = best(0).expect("every round has it");
        print!("disk {what}, 2 MiB chunks, {}: {ours:.2} GB/s", io.name());
        for (who, name) in [(1, "raw transfers"), (2, "fio, depth 32")] {
            let Some(other) = best(who) else { continue };
            let ratios = rounds.iter().filter_map(|it| Some(it[at][0]? / it[at][who]?));
            let mut ratios: Vec<f64> = ratios.collect();
            ratios.sort_by(f64::total_cmp);
            let (best, median) = (100.0 * ours / other, 100.0 * ratios[ratios.len() / 2]);
            print!("; {name} {other:.2}, best to best {best:.0} %, median of turns {median:.0} %");
        }
        println!();
    }
}

fn through_tier(
    folder: &Folder,
    io: &Arc<dyn BlockIo>,
    bytes: &mut [AlignedBuffer],
    round: u64,
) -> (Duration, Duration) {
    let disk = Disk::new(tier(folder, 16 << 30), Arc::clone(io));
    let keys: Vec<_> = (0..BLOCKS as u64).map(|at| key(0, digest(round, at))).collect();
    let start = Instant::now();
    for keys in keys.chunks(BATCH) {
        let chunks: Vec<_> =
            keys.iter().zip(&*bytes).map(|(&key, bytes)| (key, 16, &bytes[..])).collect();
        assert_eq!(disk.store(&chunks), BATCH);
    }
    disk.close();
    let written = start.elapsed();
    let start = Instant::now();
    for keys in keys.chunks(BATCH) {
        let wanted: Vec<_> = keys
            .iter()
            .map(|&key| (key, disk.tier().find(&key, Previous::default()).expect("it is there")))
            .collect();
        let mut buffers: Vec<_> = bytes.iter_mut().map(|buffer| &mut buffer[..]).collect();
        let results = disk.load(&wanted, &mut buffers).expect("it is there");
        assert!(results.iter().all(Result::is_ok));
    }
    let read = start.elapsed();
    drop(disk);
    for namespace in fs::read_dir(&folder.0).expect("it is there").flatten() {
        let _ = fs::remove_dir_all(namespace.path());
    }
    (written, read)
}

/// As the tier's segments: four files of 256 MiB, preallocated, synced in the end.
fn raw_transfers(
    folder: &Folder,
    io: &dyn BlockIo,
    bytes: &mut [AlignedBuffer],
) -> (Duration, Duration) {
    let paths: Vec<_> = (0..4).map(|at| folder.0.join(format!("raw-{at}"))).collect();
    let per_file = BLOCKS / paths.len();
    let start = Instant::now();
    for path in &paths {
        let file = open(path, Mode::Create, true).expect("it can be made");
        let _ = rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::empty(),
            0,
            (per_file * BLOCK) as u64,
        );
        for first in (0..per_file).step_by(BATCH) {
            let ops: Vec<_> = (first..)
                .zip(&*bytes)
                .map(|(at, bytes)| WriteOp {
                    file: &file,
                    offset: (at * BLOCK) as u64,
                    buffer: bytes,
                })
                .collect();
            assert!(io.write(&ops, &mut || ()).iter().all(Result::is_ok));
        }
        file.sync_all().expect("it can be synced");
    }
    let written = start.elapsed();
    let start = Instant::now();
    for path in &paths {
        let file: File = open(path, Mode::Read, true).expect("it can be read");
        for first in (0..per_file).step_by(BATCH) {
            let mut ops: Vec<_> = (first..)
                .zip(&mut *bytes)
                .map(|(at, bytes)| ReadOp {
                    file: &file,
                    offset: (at * BLOCK) as u64,
                    buffer: &mut bytes[..],
                })
                .collect();
            io.read(&mut ops, &mut |_, _, result| assert!(result.is_ok()));
        }
    }
    let read = start.elapsed();
    let mut last = [0; 1];
    for path in paths {
        let _ = File::open(&path).and_then(|file| file.read_exact_at(&mut last, 0));
        let _ = fs::remove_file(path);
    }
    (written, read)
}

const FIO_FILE: &str = "fio";

/// The rate that `fio` reports, in GB/s, where it is installed.
fn fio(folder: &Folder, rw: &str) -> Option<f64> {
    let output = Command::new("fio")
        .args([
            "--name=raw",
            "--bs=2M",
            "--size=1G",
            "--ioengine=io_uring",
            "--iodepth=32",
            "--direct=1",
        ])
        .args(["--end_fsync=1", "--fallocate=posix", "--output-format=terse", "--terse-version=3"])
        .arg(format!("--rw={rw}"))
        .arg(format!("--filename={}", folder.0.join(FIO_FILE).display()))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    // Fields 7 and 48 of the terse format: KiB/s of reads and of writes.
    let field = if rw == "read" { 6 } else { 47 };
    let kib: f64 = text.lines().last()?.split(';').nth(field)?.parse().ok()?;
    Some(kib * 1024.0 / 1e9)
}
