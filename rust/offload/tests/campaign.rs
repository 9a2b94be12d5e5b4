//! Campaigns of faults. A few seeds of each run with the other tests; `make campaigns` runs many.

mod common;

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Chunk, Folder, batch, check_all, open, small, store};
use hybrid_blocks_offload::Error;
use hybrid_blocks_offload::disk::{Disk, DiskConfig, DiskTier};
use hybrid_blocks_offload::io::{Threads, best_backend};

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most.max(1)
    }
}

/// One fault in a folder of segments.
fn damage(folder: &Folder, random: &mut Random) -> &'static str {
    let mut files = folder.all();
    files.retain(|path| fs::symlink_metadata(path).is_ok_and(|it| it.is_file() && it.len() > 0));
    let Some(path) = files.get(random.below(files.len() as u64) as usize) else { return "nothing" };
    let other = &files[random.below(files.len() as u64) as usize];
    let len = fs::metadata(path).map_or(0, |it| it.len());
    let write = |bytes: &[u8], at: u64| {
        let file = OpenOptions::new().write(true).open(path).expect("it can be opened");
        file.write_all_at(bytes, at).expect("it can be written");
    };
    let fresh = || path.with_file_name(format!("{:016x}.seg", 1000 + len));
    match random.below(9) {
        0 => {
            let at = random.below(len);
            let mut byte = [0];
            let file = fs::File::open(path).expect("it can be opened");
            if file.read_exact_at(&mut byte, at).is_ok() {
                write(&[byte[0] ^ 1 << random.below(8)], at);
            }
            "a flipped bit"
        }
        1 => {
            let file = OpenOptions::new().write(true).open(path).expect("it can be opened");
            file.set_len(random.below(len)).expect("it can be cut");
            "a cut file"
        }
        2 => {
            write(&[0; 4096], random.below(len) / 4096 * 4096);
            "a page of zeros"
        }
        3 => {
            let _ = fs::copy(other, fresh()); // a link to itself may have that name
            "a file under another number"
        }
        4 => {
            let aside = path.with_file_name("aside");
            for (from, to) in [(path, &aside), (other, path), (&aside, other)] {
                let _ = fs::rename(from, to);
            }
            "two files swapped"
        }
        5 => {
            let mut page = [0; 4096];
            let file = fs::File::open(other).expect("it can be opened");
            let at = random.below(len) / 4096 * 4096;
            if file.read_exact_at(&mut page, at).is_ok() {
                write(&page, at);
            }
            "a page of another segment"
        }
        6 => {
            fs::remove_file(path).expect("it can be removed");
            "a file removed"
        }
        7 => {
            fs::remove_file(path).expect("it can be removed");
            std::os::unix::fs::symlink(path, path).expect("a link can be made");
            "a link to itself"
        }
        _ => {
            let number = ["ffffffffffffffff", "fffffffffffffffe", "0000000000000000"];
            let name = number[random.below(3) as usize];
            let ending = ["seg", "open"][random.below(2) as usize];
            let _ = fs::copy(other, path.with_file_name(format!("{name}.{ending}")));
            "a file with a number at an end"
        }
    }
}

/// Damages a folder between lives. Every read is right, and every life stores again.
fn faults_on_files(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut random = Random(seed);
        let folder = Folder::new("campaign-files");
        let mut batches: Vec<Vec<Chunk>> = Vec::new();
        for life in 0..4 {
            let (disk, _) = open(small(&folder), Arc::new(Threads::new(1)));
            for chunks in &batches {
                check_all(&disk, chunks);
            }
            let mut num_stored = 0;
            for round in 0..12 {
                let chunks = batch(seed * 1000 + life * 100 + round);
                num_stored += store(&disk, &chunks);
                batches.push(chunks);
            }
            assert!(num_stored > 0, "seed {seed}, life {life}: it stores again");
            if random.below(2) == 0 {
                disk.close();
            }
            drop(disk);
            let faults: Vec<_> =
                (0..=random.below(4)).map(|_| damage(&folder, &mut random)).collect();
            println!("seed {seed}, life {life}: {faults:?}");
        }
    }
}

#[test]
fn a_few_folders_with_faults_never_serve_a_wrong_byte() {
    faults_on_files(0..8);
}

#[test]
#[ignore = "minutes; make campaigns"]
fn many_folders_with_faults_never_serve_a_wrong_byte() {
    faults_on_files(8..1000);
}

const FOLDER: &str = "HYBRID_BLOCKS_CAMPAIGN_FOLDER";

/// The child of the campaign below: it stores once it has the folder, and says so.
#[test]
fn child_that_stores_when_the_folder_is_free() {
    let Some(path) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let seed: u64 = std::env::var("HYBRID_BLOCKS_SEED").expect("set").parse().expect("a number");
    let mut config = DiskConfig::new(path, 8 << 20);
    config.segment_bytes = Some(512 << 10);
    let tier = loop {
        match DiskTier::open(config.clone(), &common::namespace(), |_| {}) {
            Ok(tier) => break tier,
            Err(Error::InUse { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    };
    let disk = Disk::new(tier, best_backend(8));
    eprintln!("has {seed}");
    for round in 0..100_000 {
        let chunks = batch(seed * 1000 + round);
        if store(&disk, &chunks) == chunks.len() {
            eprintln!("stored {}", seed * 1000 + round);
        }
    }
}

fn child(
    folder: &Folder,
    seed: u64,
) -> (Child, std::io::Lines<BufReader<std::process::ChildStderr>>) {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_that_stores_when_the_folder_is_free", "--nocapture"])
        .env(FOLDER, folder.path())
        .env("HYBRID_BLOCKS_SEED", seed.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    (child, lines)
}

/// Two processes want one folder. The one that has it is killed in the middle of a store, and the other goes
/// on; it finds what was acknowledged.
fn kills_with_two_processes(num_kills: u64) {
    let folder = Folder::on_disk("campaign-kills");
    let (mut owner, mut says) = child(&folder, 0);
    let mut newest: Vec<u64> = Vec::new();
    for kill in 1..=num_kills {
        // Else the next one may get the folder first.
        let has = says.by_ref().map_while(Result::ok).any(|line| line.starts_with("has "));
        assert!(has, "process {} ended without the folder", kill - 1);
        let (next, next_says) = child(&folder, kill);
        let mut num_lines = 0;
        for line in says.by_ref().map_while(Result::ok) {
            if let Some(round) = line.strip_prefix("stored ") {
                newest.push(round.parse().expect("a number"));
                num_lines += 1;
            }
            if num_lines > kill * 7 % 23 {
                break;
            }
        }
        owner.kill().expect("it runs");
        owner.wait().expect("it ends");
        let rest = says.map_while(Result::ok);
        newest.extend(rest.filter_map(|line| line.strip_prefix("stored ")?.parse::<u64>().ok()));
        (owner, says) = (next, next_says);
    }
    owner.kill().expect("it runs");
    owner.wait().expect("it ends");
    newest.extend(
        says.map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("stored ")?.parse::<u64>().ok()),
    );
    let mut config = DiskConfig::new(folder.path(), 8 << 20);
    config.segment_bytes = Some(512 << 10);
    let (disk, warnings) = open(config, best_backend(8));
    assert_eq!(warnings.messages(), [""; 0]);
    let recent: Vec<_> = newest.iter().rev().take(40).flat_map(|&round| batch(round)).collect();
    assert_eq!(check_all(&disk, &recent), recent.len());
    assert!(disk.tier().num_bytes() <= 8 << 20);
}

#[test]
fn a_few_kills_with_two_processes_lose_only_the_write_under_way() {
    kills_with_two_processes(4);
}

#[test]
#[ignore = "minutes; make campaigns"]
fn many_kills_with_two_processes_lose_only_the_write_under_way() {
    kills_with_two_processes(300);
}

/// A file system of its own, 24 MiB in a file; `None` where this process may not mount one.
struct Mount {
    folder: Folder,
    path: PathBuf,
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Mount {
    fn new() -> Option<Self> {
        let folder = Folder::on_disk("campaign-mount");
        let (image, path) = (folder.path().join("image"), folder.path().join("mount"));
        fs::create_dir(&path).expect("a folder");
        fs::File::create(&image).and_then(|it| it.set_len(24 << 20)).expect("an image");
        let (image, target) = (image.to_str()?, path.to_str()?);
        let is_mounted =
            run("mkfs.ext4", &["-q", image]) && run("mount", &["-o", "loop", image, target]);
        is_mounted.then(|| Self { folder, path })
    }

    fn config(&self) -> DiskConfig {
        // More than there is.
        let mut config = DiskConfig::new(self.path.join("kv"), 64 << 20);
        config.segment_bytes = Some(1 << 20);
        config.retry_after = Duration::ZERO;
        config
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let path = self.path.to_str().unwrap_or_default();
        run("fsfreeze", &["-u", path]);
        run("umount", &["-l", path]);
        let _ = &self.folder;
    }
}

/// A file system that is smaller than the bound, then frozen while it is written to.
#[test]
#[ignore = "needs root; make campaigns"]
fn a_mounted_file_system_that_is_full_and_frozen_holds_up_no_look_up() {
    let mount = Mount::new().expect("an ext4 image can be mounted by root");
    let (disk, _) = open(mount.config(), Arc::new(Threads::new(2)));
    let disk = Arc::new(disk);
    let mut num_stored = 0;
    for round in 0..2000 {
        num_stored += store(&disk, &batch(round));
    }
    assert!(num_stored > 1900 * 5, "{num_stored}: old segments make room");
    let newest = batch(1999);
    assert_eq!(check_all(&disk, &newest), 5);
    let path = mount.path.to_str().expect("a path").to_owned();
    assert!(run("fsfreeze", &["-f", &path]), "fsfreeze is refused here: run the campaign as root");
    let writer = Arc::clone(&disk);
    let thread = std::thread::spawn(move || {
        for round in 2000..2400 {
            store(&writer, &batch(round));
        }
    });
    let until = Instant::now() + Duration::from_secs(3);
    let mut num_looks = 0;
    while Instant::now() < until {
        // A look-up that waited for the file system would end only once it is thawed.
        drop(disk.tier());
        num_looks += 1;
    }
    assert!(run("fsfreeze", &["-u", &path]));
    thread.join().expect("it goes on");
    assert!(num_looks > 100);
    assert_eq!(check_all(&disk, &batch(2399)), 5);
}
