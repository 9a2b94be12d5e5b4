//! The object tier: a folder and a store in memory, shared, slow, damaged and refusing.

mod common;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Chunk, Folder, Warnings, chunk, namespace};
use hybrid_blocks_offload::disk::WarningKind;
use hybrid_blocks_offload::objects::{Location, ObjectConfig, Objects};
use hybrid_blocks_offload::plan::{Previous, Tier};
use hybrid_blocks_offload::{Error, Namespace};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

/// No test comes near it, however busy the machine is.
const MOST: Duration = Duration::from_secs(60);

/// Longer than any test: a call that waited for it would not come back.
const NEVER: Duration = Duration::from_secs(3600);

fn config(location: Location) -> ObjectConfig {
    let retry_after = Duration::from_millis(500);
    ObjectConfig { retry_after, list_every: MOST, ..ObjectConfig::new(location) }
}

fn in_folder(folder: &Folder) -> ObjectConfig {
    config(Location::parse(&format!("file://{}", folder.path().display())).expect("a folder"))
}

fn over(store: impl ObjectStore) -> ObjectConfig {
    config(Location::over(Arc::new(store), "memory"))
}

fn open(config: ObjectConfig, namespace: Namespace) -> (Objects, Warnings) {
    let warnings = Warnings::default();
    let objects = Objects::open(config, namespace, warnings.callback());
    (objects.expect("a thread can be started"), warnings)
}

fn store(objects: &Objects, chunks: &[Chunk]) -> usize {
    let chunks: Vec<_> = chunks.iter().map(|it| (it.key, it.num_tokens, &it.bytes[..])).collect();
    objects.store(&chunks)
}

fn contains(objects: &Objects, chunk: &Chunk) -> bool {
    objects.tier().find(&chunk.key, Previous::default()).is_some()
}

/// How many of the chunks are read. All chunks that are read have the right bytes.
fn check_all(objects: &Objects, chunks: &[Chunk]) -> usize {
    let keys: Vec<_> = chunks.iter().map(|chunk| chunk.key).collect();
    let mut into: Vec<_> = chunks.iter().map(|chunk| vec![0; chunk.bytes.len() + 5]).collect();
    let mut buffers: Vec<_> = into.iter_mut().map(|buffer| &mut buffer[..]).collect();
    let results = objects.load(&keys, &mut buffers);
    let read = chunks.iter().zip(&into).zip(&results).filter(|(_, result)| result.is_ok());
    read.inspect(|((chunk, into), _)| assert!(into.starts_with(&chunk.bytes))).count()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < MOST, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs what must come back, and fails if it does not.
fn ends<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || drop(done.send(run())));
    match result.recv_timeout(MOST) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what}"),
        Err(_) => std::panic::resume_unwind(thread.join().expect_err("nothing was sent")),
        Ok(value) => value,
    }
}

fn some() -> Vec<Chunk> {
    (0..40).map(|at| chunk(at, 1 + 997 * at as usize)).collect()
}

fn files(folder: &Folder) -> Vec<PathBuf> {
    let mut folders = vec![folder.path().to_owned()];
    let mut files = Vec::new();
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("it is there") {
            let path = entry.expect("it is there").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

#[test]
fn another_process_finds_what_was_stored_once() {
    let folder = Folder::new("objects");
    let (first, _) = open(in_folder(&folder), namespace());
    assert_eq!(store(&first, &some()), 40);
    assert!(first.wait(MOST));
    assert_eq!(store(&first, &some()), 0, "they are there already");
    assert_eq!(check_all(&first, &some()), 40);
    first.close();
    assert_eq!(check_all(&first, &some()), 0, "it is closed");

    let (second, warnings) = open(in_folder(&folder), namespace());
    assert!(second.wait(MOST));
    assert_eq!(second.tier().num_chunks(), 40);
    assert!(some().iter().all(|chunk| contains(&second, chunk)));
    assert_eq!(check_all(&second, &some()), 40);
    assert_eq!(warnings.len(), 0);
}

#[test]
fn other_layouts_see_nothing_of_it() {
    let folder = Folder::new("objects-layouts");
    let (first, _) = open(in_folder(&folder), namespace());
    store(&first, &some());
    assert!(first.wait(MOST));
    let (other, _) = open(in_folder(&folder), Namespace::new(vec![[9; 16].into(); 3]));
    assert!(other.wait(MOST));
    assert_eq!(other.tier().num_chunks(), 0);
    assert_eq!(check_all(&other, &some()), 0);
    // A name of another layout over the same bytes.
    let path = files(&folder).pop().expect("an object");
    let group = path.parent().expect("a group");
    let copy = folder.path().join("09".repeat(16)).join(group.file_name().expect("its number"));
    fs::create_dir_all(&copy).expect("a folder");
    fs::copy(&path, copy.join(path.file_name().expect("a name"))).expect("a copy");
    assert_eq!(check_all(&other, &some()), 0, "the object names its layout");
}

#[test]
fn an_object_that_is_there_is_not_written_over() {
    let shared = Arc::new(InMemory::new());
    let location = || Location::over(shared.clone(), "memory");
    let (first, _) = open(config(location()), namespace());
    let (second, _) = open(config(location()), namespace());
    assert!(first.wait(MOST) && second.wait(MOST));
    let ours = chunk(1, 1000);
    store(&first, std::slice::from_ref(&ours));
    assert!(first.wait(MOST));
    let mut theirs = ours.clone();
    theirs.bytes.fill(7);
    assert!(!contains(&second, &ours), "it was not listed since");
    assert_eq!(store(&second, &[theirs]), 1);
    assert!(second.wait(MOST));
    assert_eq!(check_all(&second, &[ours]), 1);
}

#[test]
fn a_flipped_byte_never_becomes_data_and_is_written_anew() {
    let ours = chunk(3, 60);
    let whole = {
        let folder = Folder::new("objects-size");
        let (objects, _) = open(in_folder(&folder), namespace());
        store(&objects, std::slice::from_ref(&ours));
        assert!(objects.wait(MOST));
        fs::read(&files(&folder)[0]).expect("an object").len()
    };
    for at in (0..whole).step_by(7).chain([whole - 1]) {
        let folder = Folder::new("objects-flipped");
        let (objects, warnings) = open(in_folder(&folder), namespace());
        store(&objects, std::slice::from_ref(&ours));
        assert!(objects.wait(MOST));
        let path = &files(&folder)[0];
        let mut content = fs::read(path).expect("an object");
        content[at] ^= 0x10;
        fs::write(path, &content).expect("it can be changed");
        assert_eq!(check_all(&objects, std::slice::from_ref(&ours)), 0, "byte {at}");
        assert_eq!(warnings.kinds(), [WarningKind::Damaged]);
        assert!(!contains(&objects, &ours));
        assert_eq!(store(&objects, std::slice::from_ref(&ours)), 1);
        assert!(objects.wait(MOST));
        assert_eq!(check_all(&objects, std::slice::from_ref(&ours)), 1);
    }
}

#[test]
fn a_store_that_refuses_is_not_used_for_a_while() {
    let folder = Folder::new("objects-refused");
    let root = folder.path().join("root");
    let url = format!("file://{}", root.display());
    let refused = config(Location::parse(&url).expect("a folder"));
    // Long enough to look at the pause on a busy machine.
    let refused = ObjectConfig { retry_after: Duration::from_secs(3), ..refused };
    let (objects, warnings) = open(refused, namespace());
    store(&objects, &some()[..20]);
    assert!(objects.wait(MOST));
    fs::remove_dir_all(&root).expect("it can be removed");
    fs::write(&root, "a file").expect("a file");
    store(&objects, &some()[20..]);
    wait_until("the refusal is noticed", || objects.tier().is_paused());
    assert_eq!(warnings.kinds(), [WarningKind::Refused]);
    assert!(!contains(&objects, &some()[0]), "look-ups pass it by");
    assert_eq!(store(&objects, &some()[20..]), 0);
    fs::remove_file(&root).expect("it can be removed");
    fs::create_dir(&root).expect("a folder");
    wait_until("it is tried again", || !objects.tier().is_paused());
    assert!(store(&objects, &some()[20..]) > 0);
    assert!(objects.wait(MOST));
    // An object that is gone is a miss, and no reason to pause.
    assert_eq!(check_all(&objects, &some()[..20]), 0);
    assert!(!objects.tier().is_paused());
    assert_eq!(store(&objects, &some()[..20]), 20);
}

#[test]
fn uploads_wait_in_a_bounded_queue_and_hold_nobody_up() {
    let slow = ThrottleConfig { wait_put_per_call: NEVER, ..ThrottleConfig::default() };
    let slow = over(ThrottledStore::new(InMemory::new(), slow));
    let (objects, _) = open(ObjectConfig { queue_bytes: 2500, ..slow }, namespace());
    let chunks: Vec<_> = (0..5).map(|at| chunk(at, 1000)).collect();
    ends("an upload holds a caller up", move || {
        assert_eq!(store(&objects, &chunks), 2);
        assert_eq!(objects.tier().num_uploads(), 2);
        assert!(!contains(&objects, &chunks[0]), "it is not there yet");
        drop(objects);
    });
}

#[test]
fn a_store_that_does_not_answer_holds_a_read_up_for_its_time_out_once() {
    let hangs = ThrottleConfig { wait_get_per_call: NEVER, ..ThrottleConfig::default() };
    let config = over(ThrottledStore::new(InMemory::new(), hangs));
    let timeout = Duration::from_millis(200);
    let (objects, warnings) =
        open(ObjectConfig { timeout, retry_after: NEVER, ..config }, namespace());
    let objects = ends("a read outlives its time-out", move || {
        assert_eq!(check_all(&objects, &some()), 0);
        objects
    });
    assert!(objects.tier().is_paused());
    assert_eq!(warnings.kinds(), [WarningKind::Refused]);
    assert!(warnings.messages()[0].contains("reading from memory failed: no answer in 0.2 s"));
}

#[test]
fn a_later_listing_finds_what_others_wrote_and_forgets_what_is_gone() {
    let folder = Folder::new("objects-listing");
    let often = ObjectConfig { list_every: Duration::from_millis(20), ..in_folder(&folder) };
    let (reader, _) = open(often, namespace());
    assert!(reader.wait(MOST));
    let (writer, _) = open(in_folder(&folder), namespace());
    store(&writer, &some());
    wait_until("all are listed", || reader.tier().num_chunks() == 40);
    assert_eq!(check_all(&reader, &some()), 40);
    for path in files(&folder) {
        fs::remove_file(path).expect("it can be removed");
    }
    wait_until("all are forgotten", || reader.tier().num_chunks() == 0);
}

#[test]
fn a_location_that_makes_no_sense_is_refused_with_what_would_do() {
    let refusals = [
        (
            "bucket/prefix",
            "names no bucket and no folder; write for example \"s3://bucket/prefix\"",
        ),
        ("s3://", "names no bucket"),
        ("ftp://host/x", "names no bucket"),
        ("file:///nope/kv/x", "there is no folder /nope/kv; mount or make it"),
        ("file://kv", "no absolute path; write for example \"file:///mnt/kv\""),
    ];
    for (url, message) in refusals {
        let Err(Error::InvalidConfig(text)) = Location::parse(url) else {
            panic!("{url} is refused");
        };
        assert!(text.contains(message) && text.contains(url), "{text}");
    }
}

/// Ways in which the file of one object cannot be read.
fn spoil(path: &std::path::Path, way: &str) {
    fs::remove_file(path).expect("it can be removed");
    match way {
        "link to itself" => std::os::unix::fs::symlink(path, path).expect("a link"),
        "folder" => fs::create_dir(path).expect("a folder"),
        _ => {
            let above = path.parent().expect("a folder");
            std::os::unix::fs::symlink(above, path).expect("a link");
        }
    }
}

#[test]
fn one_object_that_cannot_be_read_is_a_miss_and_no_more() {
    for way in ["link to itself", "folder", "link to its folder"] {
        let folder = Folder::new("objects-one");
        let (first, _) = open(in_folder(&folder), namespace());
        let (bad, good) = (chunk(1, 1000), chunk(4, 1000));
        assert_eq!(store(&first, std::slice::from_ref(&bad)), 1);
        assert!(first.wait(MOST));
        let path = files(&folder).pop().expect("an object");
        assert_eq!(store(&first, std::slice::from_ref(&good)), 1);
        assert!(first.wait(MOST));
        spoil(&path, way);
        for _ in 0..5 {
            assert_eq!(check_all(&first, std::slice::from_ref(&bad)), 0, "{way}");
            assert_eq!(check_all(&first, std::slice::from_ref(&good)), 1, "{way}: others are read");
        }
        assert!(!first.tier().is_paused(), "{way}");
        let (second, _) = open(in_folder(&folder), namespace());
        assert!(second.wait(MOST), "{way}: it is listed to the end");
        assert!(contains(&second, &good), "{way}");
        assert_eq!(check_all(&second, std::slice::from_ref(&good)), 1, "{way}");
    }
}

#[test]
fn several_objects_in_a_row_that_cannot_be_read_pause_the_store() {
    let folder = Folder::new("objects-row");
    let config = ObjectConfig { retry_after: MOST, ..in_folder(&folder) };
    let (objects, warnings) = open(config, namespace());
    let bad: Vec<_> = (0..4).map(|at| chunk(at * 3, 1000)).collect();
    assert_eq!(store(&objects, &bad), 4);
    assert!(objects.wait(MOST));
    for path in files(&folder) {
        spoil(&path, "link to itself");
    }
    for chunk in &bad[..2] {
        assert_eq!(check_all(&objects, std::slice::from_ref(chunk)), 0);
        assert!(!contains(&objects, chunk), "it is a miss");
        assert!(contains(&objects, &bad[3]));
    }
    assert_eq!(check_all(&objects, &bad[2..3]), 0);
    assert!(objects.tier().is_paused());
    assert!(warnings.kinds().contains(&WarningKind::Refused));
}

#[test]
fn an_object_with_bytes_too_many_is_damaged_and_can_be_stored_again() {
    for more in [1, 100, 5000] {
        let folder = Folder::new("objects-long");
        let (objects, warnings) = open(in_folder(&folder), namespace());
        let ours = chunk(3, 60);
        store(&objects, std::slice::from_ref(&ours));
        assert!(objects.wait(MOST));
        let path = &files(&folder)[0];
        let mut content = fs::read(path).expect("an object");
        content.resize(content.len() + more, 7);
        fs::write(path, &content).expect("it can be changed");
        let mut bytes = vec![0; ours.bytes.len()];
        assert!(objects.load(&[ours.key], &mut [&mut bytes])[0].is_err());
        assert_eq!(warnings.kinds(), [WarningKind::Damaged], "{more}");
        assert!(!contains(&objects, &ours));
        assert_eq!(store(&objects, std::slice::from_ref(&ours)), 1);
        assert!(objects.wait(MOST));
        assert_eq!(check_all(&objects, std::slice::from_ref(&ours)), 1);
    }
}
