//! The store on file systems that take less than ext4 does: names, sizes, and the order of writes.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::quirks::{self, Quirks};
use super::tests::{in_namespace, inside};
use super::*;

/// FAT's.
const DOS: Quirks = Quirks {
    characters: ":?\"<>|*\\",
    longest_name: 0,
    says_longest: false,
    longest_file: 0,
    sequential: None,
    write_only: false,
    no_rename: false,
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

fn identify(store: &mut Store, total: usize) {
    let etag = Validator::Etag("\"a\"".into());
    store.identified(Some(DataSize::from_bytes(total as u64)), Some(&etag)).unwrap();
}

fn complete(mut store: Store) -> PathBuf {
    identify(&mut store, 3);
    store.write(0, b"abc").unwrap();
    store.finish().unwrap().unwrap()
}

#[test]
fn a_suggested_name_is_adapted_and_one_of_the_users_refused() {
    let dir = tempfile::tempdir().unwrap();
    let named = |name: &str| dir.path().join(name);
    quirks::with(DOS, || {
        let mut store = Store::open_suggested(&named("Report: Q3?.pdf"), &urls()).unwrap().store;
        let note = store.take_note().unwrap();
        assert_eq!(
            note,
            "the name \"Report: Q3?.pdf\" is changed to \"Report_ Q3_.pdf\": the file system does not take it as it is"
        );
        assert_eq!((store.take_note(), complete(store)), (None, named("Report_ Q3_.pdf")));
        let error = Store::open(&named("Report: Q3?.pdf"), &urls()).unwrap_err().to_string();
        assert!(error.ends_with("choose another name with -o, for example \"Report_ Q3_.pdf\""), "{error}");
        // A server's name comes later, and is tried when it comes.
        let mut store = Store::open_suggested(&named("x"), &urls()).unwrap().store;
        store.name(OsStr::new("a|b*.txt"));
        assert!(store.take_note().unwrap().contains("\"a_b_.txt\""));
        assert_eq!(complete(store), named("a_b_.txt"));
    });
    // Where they are possible, they stay.
    let mut store = Store::open_suggested(&named("Report: Q3?.pdf"), &urls()).unwrap().store;
    store.name(OsStr::new("con: 1.txt"));
    assert_eq!((store.take_note(), complete(store)), (None, named("con: 1.txt")));
    assert_eq!(names(dir.path()), ["Report_ Q3_.pdf", "a_b_.txt", "con: 1.txt"]);
}

#[test]
fn a_suggested_name_is_as_long_as_the_file_system_allows() {
    for says_longest in [true, false] {
        for longest_name in [143, 70] {
            let dir = tempfile::tempdir().unwrap();
            let long = format!("{}.tar.gz", "x".repeat(230));
            quirks::with(Quirks { longest_name, says_longest, ..Quirks::default() }, || {
                let mut store = Store::open_suggested(&dir.path().join(&long), &urls()).unwrap().store;
                assert!(store.take_note().unwrap().contains(".tar.gz\": the file system"));
                store.name(OsStr::new(&format!("{}.iso", "y".repeat(200))));
                assert!(store.take_note().unwrap().contains(".iso\": the file system"));
                let path = complete(store);
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(name.len() <= longest_name && name.len() > 40 && name.ends_with("y.iso"), "{name}");
                let error = Store::open(&dir.path().join(&long), &urls()).unwrap_err();
                assert!(matches!(error, StoreError::NameTooLong { .. }), "{error}");
            });
        }
    }
}

#[test]
fn a_file_system_that_takes_bytes_only_in_order_gets_them_in_order() {
    let quirk = |sequential| Quirks { sequential, ..Quirks::default() };
    let all = [
        quirk(Some(Errno::SPIPE)),
        quirk(Some(Errno::INVAL)),
        quirk(Some(Errno::OPNOTSUPP)),
        Quirks { write_only: true, ..quirk(Some(Errno::INVAL)) },
    ];
    for quirks in all {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        quirks::with(quirks, || {
            let open = || {
                let mut opened = Store::open(&path, &urls()).unwrap();
                assert_eq!((opened.resume, opened.start_over), (None, None));
                assert!(opened.store.take_note().unwrap().contains("takes bytes only in order"));
                assert_eq!(opened.store.window(), Some(WINDOW));
                opened.store
            };
            let mut store = open();
            identify(&mut store, 10);
            store.write(5, b"world").unwrap();
            assert!(matches!(store.write(WINDOW.bytes(), b"x"), Err(StoreError::Window { .. })));
            store.write(0, b"hello").unwrap();
            store.name(OsStr::new("named"));
            assert_eq!(store.finish().unwrap(), Some(dir.path().join("named")));
            assert_eq!(std::fs::read(dir.path().join("named")).unwrap(), b"helloworld");
            // A run that ends early leaves nothing in the next one's way.
            let mut store = open();
            identify(&mut store, 10);
            store.write(0, b"hello").unwrap();
            assert!(!store.suspend().unwrap());
            let mut store = open();
            store.expect(format!("sha256={}", "0".repeat(64)).parse().unwrap());
            identify(&mut store, 1);
            store.write(0, b"x").unwrap();
            assert!(matches!(store.finish(), Err(StoreError::Checksum { .. })));
            assert!(!path.exists());
        });
    }
}

#[test]
fn a_complete_file_that_cannot_be_renamed_is_kept_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let quirks = Quirks { sequential: Some(Errno::INVAL), no_rename: true, ..Quirks::default() };
    let error = quirks::with(quirks, || {
        let mut store = Store::open(&dir.path().join("file"), &urls()).unwrap().store;
        identify(&mut store, 3);
        store.write(0, b"abc").unwrap();
        store.finish().unwrap_err()
    });
    assert!(error.to_string().contains("cannot rename files; the complete file is"), "{error}");
    assert_eq!(std::fs::read(dir.path().join("file.part")).unwrap(), b"abc");
}

#[test]
fn a_file_that_is_too_large_for_the_file_system_is_refused_before_its_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let store = quirks::with(Quirks { longest_file: 1 << 20, ..Quirks::default() }, || {
        let mut store = Store::open(&dir.path().join("file"), &urls()).unwrap().store;
        let error = store.identified(Some(DataSize::from_mib(2)), None).unwrap_err().to_string();
        assert!(
            error.ends_with("takes only smaller files; choose a directory on another file system with -o"),
            "{error}"
        );
        store
    });
    store.suspend().unwrap();
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn the_limit_of_a_real_file_system_is_known_before_the_first_byte() {
    in_namespace(
        "store::odd::inside_a_file_system_with_a_limit",
        "dd if=/dev/zero of=/run/img bs=1M count=16 2>/dev/null; mkfs.ext4 -q -F -b 1024 -O ^extent,^64bit,^huge_file,^has_journal /run/img; \
         mount -o loop /run/img /mnt",
    );
}

#[test]
#[ignore = "run by the_limit_of_a_real_file_system_is_known_before_the_first_byte"]
fn inside_a_file_system_with_a_limit() {
    let Some(path) = inside() else { return };
    let mut store = Store::open(&path, &urls()).unwrap().store;
    let error = store.identified(Some(DataSize::from_mib(20 << 10)), None).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
    identify(&mut store, 3);
}

#[test]
fn a_limit_of_the_process_is_known_before_the_first_byte() {
    in_namespace("store::odd::inside_a_process_with_a_limit", "mount -t tmpfs tmpfs /mnt; ulimit -f 2048");
}

#[test]
#[ignore = "run by a_limit_of_the_process_is_known_before_the_first_byte"]
fn inside_a_process_with_a_limit() {
    let Some(path) = inside() else { return };
    let mut store = Store::open(&path, &urls()).unwrap().store;
    let error = store.identified(Some(DataSize::from_mib(4)), None).unwrap_err().to_string();
    assert!(error.contains("this process may write only 1.0MB to a file (ulimit -f)"), "{error}");
}

#[test]
fn fat_is_served_as_it_is() {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.contains("vfat") || !Path::new("/usr/sbin/mkfs.vfat").exists() {
        return eprintln!("skipped: no vfat in this kernel, or no mkfs.vfat (dosfstools)");
    }
    in_namespace(
        "store::odd::inside_fat",
        "rm -f /run/img; /usr/sbin/mkfs.vfat -C /run/img 8192 >/dev/null; mount -o loop /run/img /mnt",
    );
}

#[test]
#[ignore = "run by fat_is_served_as_it_is"]
fn inside_fat() {
    let Some(path) = inside() else { return };
    let mut store = Store::open_suggested(Path::new("/mnt/Report: Q3?.pdf"), &urls()).unwrap().store;
    assert!(store.take_note().unwrap().contains("\"Report_ Q3_.pdf\""));
    let error = store.identified(Some(DataSize::from_mib(4096)), None).unwrap_err().to_string();
    assert!(error.contains("FAT takes only files of less than 4 GiB"), "{error}");
    assert_eq!(complete(store), Path::new("/mnt/Report_ Q3_.pdf"));
    let mut store = Store::open(&path, &urls()).unwrap().store;
    identify(&mut store, 100);
    store.write(0, b"abc").unwrap();
    assert!(store.suspend().unwrap());
    assert!(Store::open(&path, &urls()).unwrap().resume.is_some(), "no resume on FAT");
}
