//! The store on real files: what a user observes.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use marline_core::fetch::{ByteRange, RangeSet};

use super::*;
use crate::name::MAX_NAME_LEN;

const URL: &str = "http://example.net/file";

fn urls() -> Vec<Url> {
    vec![URL.parse().unwrap()]
}

fn etag(text: &str) -> Validator {
    Validator::Etag(format!("\"{text}\""))
}

/// Bytes with a prime period, so that no two pages are equal.
fn bytes(len: usize) -> Vec<u8> {
    let table: Vec<u8> = (0..65_521_usize).map(|i| (i.wrapping_mul(i) >> 3) as u8 | 1).collect();
    let mut bytes = table.repeat(len / table.len() + 1);
    bytes.truncate(len);
    bytes
}

fn new_store(path: &Path) -> Store {
    let opened = Store::open(path, &urls()).unwrap();
    assert_eq!((opened.resume, opened.restart_reason), (None, None));
    opened.store
}

/// A path for the file in a new directory.
fn new_path() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    (dir, path)
}

fn part_path(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.part", path.display()))
}

fn journal_path(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.part.journal", path.display()))
}

fn file_names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn identify_file(store: &mut Store, total: usize) {
    store.on_identified(Some(DataSize::from_bytes(total as u64)), Some(&etag("a"))).unwrap();
}

/// A new store of a file with this length.
fn identified_store(path: &Path, total: usize) -> Store {
    let mut store = new_store(path);
    identify_file(&mut store, total);
    store
}

#[test]
fn a_small_file_leaves_no_other_file() {
    let (dir, path) = new_path();
    let mut store = identified_store(&path, 10);
    store.write(5, b"world").unwrap();
    assert_eq!(file_names(dir.path()), ["file.part"]);
    store.write(0, b"hello").unwrap();
    assert_eq!(store.finish().unwrap(), Some(path.clone()));
    assert_eq!(std::fs::read(&path).unwrap(), b"helloworld");
    assert_eq!(file_names(dir.path()), ["file"]);
}

#[test]
fn empty_files_and_files_of_unknown_length_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = new_store(&dir.path().join("empty"));
    identify_file(&mut store, 0);
    store.finish().unwrap();
    let mut store = new_store(&dir.path().join("unknown"));
    store.on_identified(None, None).unwrap();
    store.write(0, b"abc").unwrap();
    store.finish().unwrap();
    assert_eq!(file_names(dir.path()), ["empty", "unknown"]);
    assert_eq!(std::fs::read(dir.path().join("unknown")).unwrap(), b"abc");
}

#[test]
fn an_older_file_stays_until_the_new_one_is_complete() {
    let (_dir, path) = new_path();
    std::fs::write(&path, "old").unwrap();
    let mut store = identified_store(&path, 6);
    store.write(0, b"new").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    store.write(3, b"est").unwrap();
    store.finish().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"newest");
}

#[test]
fn bytes_of_a_killed_run_are_resumed() {
    let (dir, path) = new_path();
    let data = bytes(5_000_000);
    let mut store = identified_store(&path, data.len());
    for at in (1_000_000..4_000_000).step_by(50_000) {
        store.write(at as u64, &data[at..at + 50_000]).unwrap();
    }
    // Like a kill: the store is not suspended, and no further records are written.
    drop(store);
    let Opened { mut store, resume, restart_reason } = Store::open(&path, &urls()).unwrap();
    let resume = resume.unwrap();
    assert_eq!((restart_reason, resume.total.bytes(), &resume.validator), (None, 5_000_000, &etag("a")));
    let [range] = resume.ranges[..] else { panic!("{:?}", resume.ranges) };
    assert_eq!(range.start, 1_000_000);
    assert!(range.end > 4_000_000 - (1 << 20) && range.end <= 4_000_000, "{range}");
    identify_file(&mut store, data.len());
    for (from, to) in [(0, 1_000_000), (range.end as usize, 5_000_000)] {
        store.write(from as u64, &data[from..to]).unwrap();
    }
    store.finish().unwrap();
    assert!(std::fs::read(&path).unwrap() == data);
    assert_eq!(file_names(dir.path()), ["file"]);
}

#[test]
fn a_stopped_run_keeps_every_byte_even_in_its_first_second() {
    let (_dir, path) = new_path();
    let mut store = identified_store(&path, 1000);
    store.write(10, &[1; 90]).unwrap();
    assert!(store.suspend().unwrap());
    let resume = Store::open(&path, &urls()).unwrap().resume.unwrap();
    assert_eq!(resume.ranges, [ByteRange::new(10, 100)]);
}

#[test]
fn a_run_without_bytes_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("file"));
    assert!(!store.suspend().unwrap());
    assert_eq!(file_names(dir.path()), [""; 0]);
}

#[test]
fn the_journal_is_created_after_a_second_and_then_synced() {
    let (_dir, path) = new_path();
    let mut store = identified_store(&path, 1000);
    store.write(0, &[1; 90]).unwrap();
    for millis in [0, 900] {
        store.tick(Instant::from_millis(millis)).unwrap();
        assert!(!journal_path(&path).exists());
    }
    store.tick(Instant::from_millis(1000)).unwrap();
    let begun = std::fs::metadata(journal_path(&path)).unwrap().len();
    store.tick(Instant::from_millis(4000)).unwrap();
    // The sync thread needs real time; each tick polls for its result.
    for millis in 4001..9000 {
        store.tick(Instant::from_millis(millis)).unwrap();
        if std::fs::metadata(journal_path(&path)).unwrap().len() > begun {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("never synced");
}

#[test]
fn a_file_that_cannot_be_resumed_has_no_journal() {
    let (dir, path) = new_path();
    let mut store = new_store(&path);
    store.on_identified(Some(DataSize::from_mib(4)), None).unwrap();
    store.write(0, &bytes(3 << 20)).unwrap();
    assert!(!store.suspend().unwrap());
    assert_eq!(file_names(dir.path()), ["file.part"]);
    let opened = Store::open(&path, &urls()).unwrap();
    assert_eq!((opened.resume, opened.restart_reason), (None, Some(RestartReason::NoJournal)));
    assert_eq!(std::fs::metadata(part_path(&path)).unwrap().len(), 0);
}

#[test]
fn an_unusable_journal_restarts_from_zero_with_one_message() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm, &str); 4] = [
        (URL, |path| std::fs::write(journal_path(path), "hello").unwrap(), "not a journal of marline"),
        (
            URL,
            |path| std::fs::File::options().write(true).open(part_path(path)).unwrap().set_len(99).unwrap(),
            "but the file has only 99B",
        ),
        (URL, |path| std::fs::remove_file(part_path(path)).unwrap(), "another unfinished file (removed, "),
        ("http://example.net/another", |_| {}, "another URL"),
    ];
    for (url, harm, line) in harms {
        let (dir, path) = new_path();
        let mut store = identified_store(&path, 1000);
        store.write(10, &[1; 90]).unwrap();
        store.suspend().unwrap();
        harm(&path);
        let opened = Store::open(&path, &[url.parse().unwrap()]).unwrap();
        assert_eq!(opened.resume, None);
        let why = opened.restart_reason.unwrap().to_string();
        assert!(why.starts_with("starting from zero: ") && why.contains(line), "{why}");
        assert_eq!(file_names(dir.path()), ["file.part"]);
        assert_eq!(std::fs::metadata(part_path(&path)).unwrap().len(), 0);
    }
}

#[test]
fn a_mirror_resumes_a_download_of_the_first_url() {
    let (_dir, path) = new_path();
    let mut store = identified_store(&path, 1000);
    store.write(10, &[1; 90]).unwrap();
    store.suspend().unwrap();
    let mirrors: Vec<Url> = ["http://mirror.example/x", URL].iter().map(|url| url.parse().unwrap()).collect();
    assert!(Store::open(&path, &mirrors).unwrap().resume.is_some());
}

#[test]
fn a_changed_file_starts_from_zero() {
    let (dir, path) = new_path();
    let mut store = identified_store(&path, 3 << 20);
    store.write(0, &bytes(2 << 20)).unwrap();
    store.restart().unwrap();
    assert_eq!(file_names(dir.path()), ["file.part"]);
    identify_file(&mut store, 3);
    store.write(0, b"abc").unwrap();
    store.finish().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"abc");
}

#[test]
fn a_file_with_a_hole_is_never_finished() {
    let (_dir, path) = new_path();
    let mut store = identified_store(&path, 10);
    store.write(0, b"abc").unwrap();
    store.write(5, b"fghij").unwrap();
    let error = store.finish().unwrap_err();
    assert!(matches!(error, StoreError::Incomplete { first: 3, .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_second_run_on_the_same_file_fails() {
    let (_dir, path) = new_path();
    let store = new_store(&path);
    let error = Store::open(&path, &urls()).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }));
    assert!(error.to_string().contains("another run of marline"), "{error}");
    drop(store);
    new_store(&path);
}

/// As if a program that is being started held the lock, between its fork and its exec.
#[test]
fn a_lock_that_briefly_outlives_its_owner_is_waited_for() {
    let (_dir, path) = new_path();
    drop(new_store(&path));
    let locked_file = std::fs::File::open(part_path(&path)).unwrap();
    rustix::fs::flock(&locked_file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(locked_file);
        });
        new_store(&path);
    });
}

#[test]
fn a_file_with_a_wrong_checksum_is_not_published() {
    let right = "sha256=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let (dir, path) = new_path();
    for (content, good) in [(b"abd", false), (b"abc", true)] {
        let mut store = Store::open(&path, &urls()).unwrap().store;
        store.expect_checksum(right.parse().unwrap());
        identify_file(&mut store, 3);
        store.write(0, content).unwrap();
        match store.finish() {
            Ok(_) => assert!(good),
            Err(error) => {
                let text = error.to_string();
                assert!(!good && text.contains("ba7816bf") && text.contains("file.part"), "{text}");
                assert!(!path.exists() && part_path(&path).exists());
            }
        }
    }
    assert_eq!(file_names(dir.path()), ["file"]);
}

#[test]
fn a_suggested_name_replaces_no_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("nice.iso"), "mine").unwrap();
    let mut store = new_store(&dir.path().join("download"));
    store.suggest_name(OsStr::new("nice.iso"));
    for bad in ["../up", "a/b", "..", ""] {
        store.suggest_name(OsStr::new(bad));
    }
    identify_file(&mut store, 1);
    store.write(0, b"x").unwrap();
    assert_eq!(store.finish().unwrap(), Some(dir.path().join("nice.iso.1")));
    assert_eq!(file_names(dir.path()), ["nice.iso", "nice.iso.1"]);
}

#[test]
fn the_target_of_a_symbolic_link_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("real"), "old").unwrap();
    std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
    let mut store = new_store(&dir.path().join("link"));
    identify_file(&mut store, 3);
    store.write(0, b"new").unwrap();
    store.finish().unwrap();
    assert_eq!(file_names(dir.path()), ["link", "real"]);
    assert_eq!(std::fs::read(dir.path().join("real")).unwrap(), b"new");
}

#[test]
fn unusable_paths_give_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &Path| Store::open(path, &urls()).unwrap_err().to_string();
    assert!(at(dir.path()).contains("is a directory"));
    assert!(at(&dir.path().join("no/file")).contains("does not exist"));
    assert!(at(&dir.path().join("x".repeat(256))).contains("too long"));
    assert!(at(Path::new("/proc/file")).contains("/proc/file.part"));
}

#[test]
fn a_name_from_the_user_may_have_the_maximum_length() {
    let dir = tempfile::tempdir().unwrap();
    for name in
        ["x".repeat(MAX_NAME_LEN), "x".repeat(MAX_NAME_LEN + 1), "é".repeat(127), format!("{}y", "x".repeat(254))]
    {
        let path = dir.path().join(&name);
        let mut store = identified_store(&path, 3);
        store.write(0, b"new").unwrap();
        assert!(file_names(dir.path()).iter().all(|name| name.len() <= 255));
        assert!(Store::open(&path, &urls()).is_err(), "another run has locked it");
        assert_eq!(store.finish().unwrap().unwrap(), path);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
    assert_eq!(file_names(dir.path()).len(), 4);
}

#[test]
fn dev_null_accepts_bytes_in_any_order() {
    let mut store = new_store(Path::new("/dev/null"));
    assert_eq!(store.window(), None);
    store.write(1 << 40, b"far").unwrap();
    assert_eq!(store.finish().unwrap().as_deref(), Some(Path::new("/dev/null")));
}

/// Environment variable with the file for tests that another test runs in a prepared namespace.
const NAMESPACE_FILE_VAR: &str = "MARLINE_TEST_FILE";

pub(super) fn namespace_file() -> Option<PathBuf> {
    let path = std::env::var_os(NAMESPACE_FILE_VAR).map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: another test runs this one");
    }
    path
}

/// Runs one ignored test of this binary in a mount namespace of its own, after the given commands.
pub(super) fn run_in_namespace(test: &str, script: &str) {
    let me = std::env::current_exe().unwrap();
    let run = format!("set -e; {script}; exec \"$0\" --ignored --exact {test}");
    let ran = Command::new("unshare")
        .args(["-m", "sh", "-c", &run])
        .arg(me)
        .env(NAMESPACE_FILE_VAR, "/mnt/file")
        .output();
    let Ok(out) = ran else { return eprintln!("skipped: unshare is not available") };
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if text.contains("ermi") && text.contains("unshare") || text.contains("mount: ") {
        return eprintln!("skipped: no mount namespace here: {text}");
    }
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn a_full_disk_is_reported_early_and_a_disk_that_fills_up_is_survived() {
    run_in_namespace("store::tests::inside_a_full_disk", "mount -t tmpfs -o size=4m tmpfs /mnt");
}

#[test]
#[ignore = "run by a_full_disk_is_reported_early_and_a_disk_that_fills_up_is_survived, on a disk of 4 MiB"]
fn inside_a_full_disk() {
    let Some(path) = namespace_file() else { return };
    let mut store = new_store(&path);
    let error = store.on_identified(Some(DataSize::from_mib(250)), Some(&etag("a"))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "disk full: /mnt/file needs 262.1MB more, 4.1MB free on /mnt; free some space or choose another directory with -o"
    );
    drop(store);
    std::fs::remove_file("/mnt/file.part").unwrap();
    // Another program uses the space that was free at the start.
    let data = bytes(3 << 20);
    let mut store = identified_store(&path, data.len());
    let mut other = std::fs::File::create("/mnt/other").unwrap();
    other.write_all(&[1; 2 << 20]).unwrap();
    let full = (0..data.len()).step_by(65536).find_map(|at| store.write(at as u64, &data[at..at + 65536]).err());
    let full = full.unwrap();
    assert!(matches!(full, StoreError::DiskFull { .. }), "{full}");
    assert!(full.to_string().starts_with("disk full: /mnt/file.part"), "{full}");
    let _ = store.suspend();
    drop(other);
    std::fs::remove_file("/mnt/other").unwrap();
    let Opened { mut store, resume, .. } = Store::open(&path, &urls()).unwrap();
    let ranges = resume.unwrap().ranges;
    assert_eq!((ranges.len(), ranges[0].start), (1, 0));
    identify_file(&mut store, data.len());
    let from = ranges[0].end as usize;
    assert!(from > 1 << 20);
    store.write(from as u64, &data[from..]).unwrap();
    store.finish().unwrap();
    assert!(std::fs::read(&path).unwrap() == data);
}

#[test]
fn a_read_only_file_system_is_reported() {
    run_in_namespace("store::tests::inside_a_read_only_file_system", "mount -t tmpfs -o ro tmpfs /mnt");
}

#[test]
#[ignore = "run by a_read_only_file_system_is_reported, on a read-only file system"]
fn inside_a_read_only_file_system() {
    let Some(path) = namespace_file() else { return };
    let error = Store::open(&path, &urls()).unwrap_err();
    assert!(matches!(error, StoreError::NotWritable { .. }), "{error:?}");
    assert!(error.to_string().contains("/mnt/file.part: cannot be written: Read-only file system"), "{error}");
}

#[test]
fn without_extended_attributes_the_journal_proves_ownership() {
    run_in_namespace("store::tests::inside_a_file_system_without_extended_attributes", "mount -t ramfs ramfs /mnt");
}

#[test]
#[ignore = "run by without_extended_attributes_the_journal_proves_ownership, on a file system without extended attributes"]
fn inside_a_file_system_without_extended_attributes() {
    let Some(path) = namespace_file() else { return };
    let mut store = identified_store(&path, 1000);
    store.write(0, &[1; 90]).unwrap();
    assert!(store.suspend().unwrap());
    let opened = Store::open(&path, &urls()).unwrap();
    assert!(opened.resume.is_some());
    drop(opened);
    std::fs::remove_file(journal_path(&path)).unwrap();
    assert!(matches!(Store::open(&path, &urls()), Err(StoreError::ForeignFile { .. })));
    std::fs::remove_file(part_path(&path)).unwrap();
    // Bytes that cannot be resumed must not block the next run.
    let mut store = new_store(&path);
    store.on_identified(None, None).unwrap();
    store.write(0, b"abc").unwrap();
    assert!(!store.suspend().unwrap());
    new_store(&path);
}

#[test]
fn a_directory_without_permission_is_reported() {
    if rustix::process::geteuid().is_root() {
        return eprintln!("skipped: root may write everywhere");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    let error = Store::open(&dir.path().join("file"), &urls()).unwrap_err();
    assert!(matches!(error, StoreError::NotWritable { .. }), "{error:?}");
}

/// Size of the file that the child of the next test writes, as a download would, from known bytes.
const KILL_SIZE: usize = 12 << 20;

#[test]
fn fifty_kills_at_any_moment_cost_less_than_four_mebibytes_each_and_no_wrong_byte() {
    let (_dir, path) = new_path();
    let (me, data) = (std::env::current_exe().unwrap(), bytes(KILL_SIZE));
    let seed = std::process::id();
    let rng = super::fake_fs::TestRng::new(seed.into());
    let mut kills = 0;
    while kills < 50 {
        let mut child = Command::new(&me)
            .args(["--ignored", "--exact", "store::tests::inside_a_run_that_is_killed"])
            .env(NAMESPACE_FILE_VAR, &path)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_micros(rng.next_below(80_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        if path.exists() {
            assert!(std::fs::read(&path).unwrap() == data, "seed {seed}");
            std::fs::remove_file(&path).unwrap();
            continue;
        }
        kills += 1;
        let opened = Store::open(&path, &urls()).unwrap();
        let claimed: RangeSet = opened.resume.into_iter().flat_map(|resume| resume.ranges).collect();
        let stored = std::fs::read(part_path(&path)).unwrap();
        for span in claimed.iter() {
            let span = span.start as usize..span.end as usize;
            assert!(stored[span.clone()] == data[span.clone()], "{span:?}, seed {seed}");
        }
        let pages = stored.chunks(4096).zip(data.chunks(4096)).filter(|(stored, data)| stored == data);
        let lost = (pages.count() as u64 * 4096).saturating_sub(claimed.len().bytes());
        assert!(lost < 4 << 20, "{lost} bytes lost, seed {seed}");
    }
}

#[test]
#[ignore = "run and killed by fifty_kills_at_any_moment_cost_less_than_four_mebibytes_each_and_no_wrong_byte"]
fn inside_a_run_that_is_killed() {
    let Some(path) = namespace_file() else { return };
    let data = bytes(KILL_SIZE);
    let Opened { mut store, resume, .. } = Store::open(&path, &urls()).unwrap();
    identify_file(&mut store, data.len());
    let mut stored: RangeSet = resume.iter().flat_map(|resume| resume.ranges.clone()).collect();
    // Two connections, half the file apart.
    let begun = std::time::Instant::now();
    let mut from = 0;
    while let Some(gap) = stored.next_gap(from, KILL_SIZE as u64).or_else(|| stored.next_gap(0, KILL_SIZE as u64)) {
        let end = gap.end.min(gap.start + 20_000);
        store.write(gap.start, &data[gap.start as usize..end as usize]).unwrap();
        stored.insert(ByteRange::new(gap.start, end));
        from = (end + KILL_SIZE as u64 / 2) % KILL_SIZE as u64;
        // The store's time runs 50 times as fast, so that a journal exists before most of the kills.
        store.tick(Instant::from_nanos(begun.elapsed().as_nanos() as u64 * 50)).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    store.finish().unwrap();
}

#[test]
fn a_foreign_file_under_the_unfinished_name_is_left_alone() {
    let (_dir, path) = new_path();
    std::fs::write(part_path(&path), "precious").unwrap();
    let error = Store::open(&path, &urls()).unwrap_err();
    assert!(matches!(error, StoreError::ForeignFile { .. }), "{error:?}");
    assert!(error.to_string().contains("move it away, or choose another name with -o"), "{error}");
    assert_eq!(std::fs::read(part_path(&path)).unwrap(), b"precious");
    // An empty file has no contents to lose.
    std::fs::write(part_path(&path), "").unwrap();
    new_store(&path);
}

#[test]
fn nothing_is_written_through_a_symbolic_link_beside_the_file() {
    for name in [part_path, journal_path] {
        for content in ["", "precious"] {
            let dir = tempfile::tempdir().unwrap();
            let (path, victim) = (dir.path().join("file"), dir.path().join("victim"));
            std::fs::write(&victim, content).unwrap();
            std::os::unix::fs::symlink(&victim, name(&path)).unwrap();
            let error = Store::open(&path, &urls()).unwrap_err();
            assert!(error.to_string().contains("a symbolic link with this name exists"), "{error}");
            assert_eq!(std::fs::read_to_string(&victim).unwrap(), content);
            assert_eq!(file_names(dir.path()).len(), 2, "{:?}", file_names(dir.path()));
        }
    }
}

#[test]
fn a_pipe_under_the_unfinished_name_is_left_alone() {
    let (_dir, path) = new_path();
    rustix::fs::mknodat(rustix::fs::CWD, part_path(&path), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let error = Store::open(&path, &urls()).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn the_file_of_a_run_killed_in_its_first_second_is_recognized() {
    let (dir, path) = new_path();
    let mut store = identified_store(&path, 1000);
    store.write(0, &[1; 90]).unwrap();
    drop(store);
    assert_eq!(file_names(dir.path()), ["file.part"]);
    let opened = Store::open(&path, &urls()).unwrap();
    assert_eq!(opened.restart_reason, Some(RestartReason::NoJournal));
    let mut store = opened.store;
    identify_file(&mut store, 3);
    store.write(0, b"abc").unwrap();
    store.finish().unwrap();
    // Publishing has removed the mark, so the complete file is foreign under the unfinished name.
    std::fs::rename(&path, part_path(&path)).unwrap();
    assert!(matches!(Store::open(&path, &urls()), Err(StoreError::ForeignFile { .. })));
}

#[test]
fn a_checksum_is_verified_in_steps_and_can_be_suspended() {
    let (_dir, path) = new_path();
    let mut store = new_store(&path);
    store.expect_checksum(format!("sha256={}", "0".repeat(64)).parse().unwrap());
    identify_file(&mut store, 2 << 20);
    store.write(0, &bytes(2 << 20)).unwrap();
    assert_eq!(store.check_step().unwrap(), Some(CHECK_LEN as u64));
    assert!(store.suspend().unwrap());
    let resume = Store::open(&path, &urls()).unwrap().resume.unwrap();
    assert_eq!(resume.ranges, [ByteRange::new(0, 2 << 20)]);
}
