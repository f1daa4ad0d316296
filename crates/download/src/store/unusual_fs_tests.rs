//! The store on file systems with more restrictions than ext4: names, sizes, and the order of writes.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::fs_quirks::{self, FsQuirks};
use super::tests::{namespace_file, run_in_namespace};
use super::*;

/// FAT's restriction of the characters in names.
const DOS_QUIRKS: FsQuirks = FsQuirks {
    forbidden_chars: ":?\"<>|*\\",
    max_name_len: 0,
    reports_max_name: false,
    max_file_len: 0,
    seek_errno: None,
    forbids_read_write: false,
    forbids_rename: false,
};

fn urls() -> Vec<Url> {
    vec!["http://example.net/file".parse().unwrap()]
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn identify_file(store: &mut Store, total: usize) {
    let etag = Validator::Etag("\"a\"".into());
    store.on_identified(Some(DataSize::from_bytes(total as u64)), Some(&etag)).unwrap();
}

fn complete_download(mut store: Store) -> PathBuf {
    identify_file(&mut store, 3);
    store.write(0, b"abc").unwrap();
    store.finish().unwrap().unwrap()
}

#[test]
fn a_suggested_name_is_adapted_and_a_name_from_the_user_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let named = |name: &str| dir.path().join(name);
    fs_quirks::with_quirks(DOS_QUIRKS, || {
        let mut store = Store::open_suggested(&named("Report: Q3?.pdf"), &urls()).unwrap().store;
        let note = store.take_note().unwrap();
        assert_eq!(
            note,
            "the name \"Report: Q3?.pdf\" is changed to \"Report_ Q3_.pdf\": the file system rejects the original name"
        );
        assert_eq!((store.take_note(), complete_download(store)), (None, named("Report_ Q3_.pdf")));
        let error = Store::open(&named("Report: Q3?.pdf"), &urls()).unwrap_err().to_string();
        assert!(error.ends_with("choose another name with -o, for example \"Report_ Q3_.pdf\""), "{error}");
        // The name from a server is known later, and is tested then.
        let mut store = Store::open_suggested(&named("x"), &urls()).unwrap().store;
        store.suggest_name(OsStr::new("a|b*.txt"));
        assert!(store.take_note().unwrap().contains("\"a_b_.txt\""));
        assert_eq!(complete_download(store), named("a_b_.txt"));
    });
    // On a file system that accepts them, the names are kept.
    let mut store = Store::open_suggested(&named("Report: Q3?.pdf"), &urls()).unwrap().store;
    store.suggest_name(OsStr::new("con: 1.txt"));
    assert_eq!((store.take_note(), complete_download(store)), (None, named("con: 1.txt")));
    assert_eq!(names(dir.path()), ["Report_ Q3_.pdf", "a_b_.txt", "con: 1.txt"]);
}

#[test]
fn a_suggested_name_is_as_long_as_the_file_system_allows() {
    for reports_longest in [true, false] {
        for longest_name in [143, 70] {
            let dir = tempfile::tempdir().unwrap();
            let long = format!("{}.tar.gz", "x".repeat(230));
            fs_quirks::with_quirks(
                FsQuirks { max_name_len: longest_name, reports_max_name: reports_longest, ..FsQuirks::default() },
                || {
                    let mut store = Store::open_suggested(&dir.path().join(&long), &urls()).unwrap().store;
                    assert!(store.take_note().unwrap().contains(".tar.gz\": the file system"));
                    store.suggest_name(OsStr::new(&format!("{}.iso", "y".repeat(200))));
                    assert!(store.take_note().unwrap().contains(".iso\": the file system"));
                    let path = complete_download(store);
                    let name = path.file_name().unwrap().to_str().unwrap();
                    assert!(name.len() <= longest_name && name.len() > 40 && name.ends_with("y.iso"), "{name}");
                    let error = Store::open(&dir.path().join(&long), &urls()).unwrap_err();
                    assert!(matches!(error, StoreError::NameTooLong { .. }), "{error}");
                },
            );
        }
    }
}

#[test]
fn a_file_system_without_random_writes_is_written_sequentially() {
    // `sequential`: the error of a write anywhere but at the end.
    let quirk = |sequential| FsQuirks { seek_errno: sequential, ..FsQuirks::default() };
    let all = [
        quirk(Some(Errno::SPIPE)),
        quirk(Some(Errno::INVAL)),
        quirk(Some(Errno::OPNOTSUPP)),
        FsQuirks { forbids_read_write: true, ..quirk(Some(Errno::INVAL)) },
    ];
    for quirks in all {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs_quirks::with_quirks(quirks, || {
            let open = || {
                let mut opened = Store::open(&path, &urls()).unwrap();
                assert_eq!((opened.resume, opened.restart_reason), (None, None));
                assert!(opened.store.take_note().unwrap().contains("accepts only sequential writes"));
                assert_eq!(opened.store.window(), Some(STREAM_WINDOW));
                opened.store
            };
            let mut store = open();
            identify_file(&mut store, 10);
            store.write(5, b"world").unwrap();
            assert!(matches!(store.write(STREAM_WINDOW.bytes(), b"x"), Err(StoreError::BeyondWindow { .. })));
            store.write(0, b"hello").unwrap();
            store.suggest_name(OsStr::new("named"));
            assert_eq!(store.finish().unwrap(), Some(dir.path().join("named")));
            assert_eq!(std::fs::read(dir.path().join("named")).unwrap(), b"helloworld");
            // A run that ends early must not block the next one.
            let mut store = open();
            identify_file(&mut store, 10);
            store.write(0, b"hello").unwrap();
            assert!(!store.suspend().unwrap());
            let mut store = open();
            store.expect_checksum(format!("sha256={}", "0".repeat(64)).parse().unwrap());
            identify_file(&mut store, 1);
            store.write(0, b"x").unwrap();
            assert!(matches!(store.finish(), Err(StoreError::ChecksumMismatch { .. })));
            assert!(!path.exists());
        });
    }
}

#[test]
fn a_complete_file_that_cannot_be_renamed_is_kept_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let quirks = FsQuirks { seek_errno: Some(Errno::INVAL), forbids_rename: true, ..FsQuirks::default() };
    let error = fs_quirks::with_quirks(quirks, || {
        let mut store = Store::open(&dir.path().join("file"), &urls()).unwrap().store;
        identify_file(&mut store, 3);
        store.write(0, b"abc").unwrap();
        store.finish().unwrap_err()
    });
    assert!(error.to_string().contains("cannot rename files; the complete file is"), "{error}");
    assert_eq!(std::fs::read(dir.path().join("file.part")).unwrap(), b"abc");
}

#[test]
fn a_file_that_is_too_large_for_the_file_system_fails_before_its_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let store = fs_quirks::with_quirks(FsQuirks { max_file_len: 1 << 20, ..FsQuirks::default() }, || {
        let mut store = Store::open(&dir.path().join("file"), &urls()).unwrap().store;
        let error = store.on_identified(Some(DataSize::from_mib(2)), None).unwrap_err().to_string();
        assert!(
            error.ends_with("stores only smaller files; choose a directory on another file system with -o"),
            "{error}"
        );
        store
    });
    store.suspend().unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn the_limit_of_a_real_file_system_is_known_before_the_first_byte() {
    // ext4 without extents and with blocks of 1 KiB stores files of up to 16 GiB; the test inside tries 20 GiB.
    run_in_namespace(
        "store::unusual_fs_tests::inside_a_file_system_with_a_limit",
        "dd if=/dev/zero of=/run/img bs=1M count=16 2>/dev/null; mkfs.ext4 -q -F -b 1024 -O ^extent,^64bit,^huge_file,^has_journal /run/img; \
         mount -o loop /run/img /mnt",
    );
}

#[test]
#[ignore = "run by the_limit_of_a_real_file_system_is_known_before_the_first_byte"]
fn inside_a_file_system_with_a_limit() {
    let Some(path) = namespace_file() else { return };
    let mut store = Store::open(&path, &urls()).unwrap().store;
    let error = store.on_identified(Some(DataSize::from_mib(20 << 10)), None).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
    identify_file(&mut store, 3);
}

#[test]
fn a_limit_of_the_process_is_known_before_the_first_byte() {
    // `ulimit -f` counts blocks of 512 bytes.
    run_in_namespace(
        "store::unusual_fs_tests::inside_a_process_with_a_limit",
        "mount -t tmpfs tmpfs /mnt; ulimit -f 2048",
    );
}

#[test]
#[ignore = "run by a_limit_of_the_process_is_known_before_the_first_byte"]
fn inside_a_process_with_a_limit() {
    let Some(path) = namespace_file() else { return };
    let mut store = Store::open(&path, &urls()).unwrap().store;
    let error = store.on_identified(Some(DataSize::from_mib(4)), None).unwrap_err().to_string();
    assert!(error.contains("this process may write only 1.0MB to a file (ulimit -f)"), "{error}");
}

#[test]
fn fat_is_supported_within_its_limits() {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.contains("vfat") || !Path::new("/usr/sbin/mkfs.vfat").exists() {
        return eprintln!("skipped: no vfat in this kernel, or no mkfs.vfat (dosfstools)");
    }
    run_in_namespace(
        "store::unusual_fs_tests::inside_fat",
        "rm -f /run/img; /usr/sbin/mkfs.vfat -C /run/img 8192 >/dev/null; mount -o loop /run/img /mnt",
    );
}

#[test]
#[ignore = "run by fat_is_supported_within_its_limits"]
fn inside_fat() {
    let Some(path) = namespace_file() else { return };
    let mut store = Store::open_suggested(Path::new("/mnt/Report: Q3?.pdf"), &urls()).unwrap().store;
    assert!(store.take_note().unwrap().contains("\"Report_ Q3_.pdf\""));
    let error = store.on_identified(Some(DataSize::from_mib(4096)), None).unwrap_err().to_string();
    assert!(error.contains("FAT stores only files smaller than 4 GiB"), "{error}");
    assert_eq!(complete_download(store), Path::new("/mnt/Report_ Q3_.pdf"));
    let mut store = Store::open(&path, &urls()).unwrap().store;
    identify_file(&mut store, 100);
    store.write(0, b"abc").unwrap();
    assert!(store.suspend().unwrap());
    assert!(Store::open(&path, &urls()).unwrap().resume.is_some(), "no resume on FAT");
}
