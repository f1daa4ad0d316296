//! Resume state that another user has planted beside a download: none of its bytes may become part of the file.
//!
//! Each test plants what an attacker can plant, and runs the genuine download. Only two results are accepted: the
//! genuine file, or an error that leaves the planted files unchanged.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use marline_core::wire::download_journal::{Header, Mac, PageCacheEpoch, Record, StoredValidator};
use tempfile::TempDir;

use super::mac_key::MacKey;
use super::*;

const URL: &str = "http://a.test/iso/ubuntu.iso";
const TOTAL: usize = 3_000_000;
/// Number of bytes that the attacker's journal records.
const CLAIMED_LEN: usize = 2_999_000;

fn urls(url: &str) -> Vec<Url> {
    vec![url.parse().unwrap()]
}

fn genuine_data() -> Vec<u8> {
    (0..TOTAL).map(|i| ((i * 7919) >> 3) as u8 | 1).collect()
}

fn etag() -> Validator {
    Validator::Etag("\"abc\"".into())
}

/// A directory with the files of one download.
struct TestDownload {
    dir: TempDir,
}

impl TestDownload {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("ubuntu.iso")
    }

    fn with_suffix(&self, ending: &str) -> PathBuf {
        let mut name = OsString::from(self.file());
        name.push(ending);
        name.into()
    }

    fn part(&self) -> PathBuf {
        self.with_suffix(".part")
    }

    fn journal(&self) -> PathBuf {
        self.with_suffix(".part.journal")
    }

    fn open(&self) -> Result<Opened, StoreError> {
        Store::open(&self.file(), &urls(URL))
    }

    /// A genuine download of `url` that was stopped after [`CLAIMED_LEN`] bytes of `data`.
    fn with_partial(url: &str, data: &[u8]) -> Self {
        let site = Self::new();
        let mut store = Store::open(&site.file(), &urls(url)).unwrap().store;
        store.on_identified(Some(DataSize::from_bytes(TOTAL as u64)), Some(&etag())).unwrap();
        store.write(0, &data[..CLAIMED_LEN]).unwrap();
        assert!(store.suspend().unwrap());
        site
    }

    /// Runs the genuine download. Whatever was planted, the file is genuine or does not exist. Returns the error,
    /// if any.
    fn download(&self, planted: &str) -> Option<StoreError> {
        let Opened { mut store, resume, restart_reason } = match self.open() {
            Ok(opened) => opened,
            Err(error) => {
                assert!(!self.file().exists(), "{planted}");
                return Some(error);
            }
        };
        assert_eq!(resume, None, "{planted}: foreign bytes count");
        // If there was any state, one line gives the reason why it is not used.
        let line = restart_reason.map(|why| why.to_string()).unwrap_or_default();
        assert!(line.is_empty() || line.starts_with("starting from zero: ") && !line.contains('\n'), "{planted}");
        let data = genuine_data();
        store.on_identified(Some(DataSize::from_bytes(TOTAL as u64)), Some(&etag())).unwrap();
        store.write(0, &data).unwrap();
        store.finish().unwrap();
        assert!(std::fs::read(self.file()).unwrap() == data, "{planted}: foreign bytes");
        None
    }
}

/// A journal in the documented format, with the MAC function of the attacker's choice.
fn forged_journal(part: [u8; 16], mac: impl Fn(&[u8]) -> Mac + Copy) -> Vec<u8> {
    let header = Header {
        nonce: 0x1122_3344_5566_7788,
        file_size: TOTAL as u64,
        url_digest: digest::url_digest(&URL.parse().unwrap()),
        epoch: PageCacheEpoch::default(),
        partial_file: part,
        validator: StoredValidator::Etag("\"abc\"".into()),
    };
    let (mut bytes, sealed) = header.emit(mac);
    bytes.extend(Record::Synced { start: 0, end: CLAIMED_LEN as u64 }.emit(&sealed, mac));
    bytes
}

/// A journal in format 1, which had checksums instead of MACs.
fn old_journal() -> Vec<u8> {
    let mut out = b"MARLINEJ\x01\0\x01\0\x05\0\0\0".to_vec();
    out.extend(1_u64.to_le_bytes());
    out.extend((TOTAL as u64).to_le_bytes());
    out.extend(digest::url_digest(&URL.parse().unwrap()));
    out.extend([0; 32]);
    out.extend(b"\"abc\"");
    out.extend(crc32fast::hash(&out).to_le_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    let mut record: Vec<u8> = [0, CLAIMED_LEN as u64, 1].iter().flat_map(|n| n.to_le_bytes()).collect();
    record.extend(2_u32.to_le_bytes());
    record.extend(crc32fast::hash(&record).to_le_bytes());
    out.extend(record);
    out
}

fn malicious_data() -> Vec<u8> {
    vec![b'E'; CLAIMED_LEN]
}

#[test]
fn forged_journals_prove_nothing() {
    let other_key = MacKey::from_bytes(&[7; 32]);
    let (empty, zero) = (MacKey::from_bytes(&[]), MacKey::from_bytes(&[0; 32]));
    let journals: Vec<(&str, Vec<u8>)> = vec![
        ("no MAC", forged_journal([0; 16], |_| [0; 16])),
        ("another key", forged_journal([0; 16], |bytes| other_key.mac(bytes))),
        (
            "another key for the same purpose",
            forged_journal([0; 16], |bytes| other_key.for_purpose(KEY_PURPOSE).mac(bytes)),
        ),
        ("an empty key", forged_journal([0; 16], |bytes| empty.for_purpose(KEY_PURPOSE).mac(bytes))),
        ("a zero key", forged_journal([0; 16], |bytes| zero.for_purpose(KEY_PURPOSE).mac(bytes))),
        ("the first format", old_journal()),
        ("nothing", Vec::new()),
        ("zeros", vec![0; 4096]),
        ("text", b"precious".to_vec()),
    ];
    for (description, journal) in journals {
        let site = TestDownload::new();
        std::fs::write(site.part(), malicious_data()).unwrap();
        std::fs::write(site.journal(), &journal).unwrap();
        let error = site.download(description).unwrap();
        assert!(matches!(error, StoreError::ForeignFile { .. }), "{description}: {error}");
        assert!(
            std::fs::read(site.part()).unwrap() == malicious_data(),
            "{description}: a stranger's file was changed"
        );
        assert!(std::fs::read(site.journal()).unwrap() == journal, "{description}: a stranger's file was changed");
        // Now the unfinished file alone, then the journal alone.
        std::fs::remove_file(site.journal()).unwrap();
        assert!(matches!(site.download(description), Some(StoreError::ForeignFile { .. })), "{description}");
        std::fs::remove_file(site.part()).unwrap();
        std::fs::write(site.journal(), &journal).unwrap();
        match site.download(description) {
            None => assert!(!site.journal().exists(), "{description}"),
            Some(_) => {
                assert_eq!(description, "text");
                assert_eq!(std::fs::read(site.journal()).unwrap(), b"precious");
            }
        }
    }
}

/// Even if the attacker can set the extended attribute, for example by an archive.
#[test]
fn a_planted_mark_does_not_make_bytes_count() {
    for value in [b"1".to_vec(), b"".to_vec(), vec![0; 16], vec![7; 16], vec![7; 40]] {
        let site = TestDownload::new();
        std::fs::write(site.part(), malicious_data()).unwrap();
        let file = File::open(site.part()).unwrap();
        let set = rustix::fs::fsetxattr(&file, "user.marline.part", &value, rustix::fs::XattrFlags::empty());
        if set.is_err() {
            return eprintln!("skipped: no extended attributes here");
        }
        let tag = value.clone().try_into().unwrap_or([0; 16]);
        std::fs::write(site.journal(), forged_journal(tag, |_| [0; 16])).unwrap();
        // Values of these lengths are taken for marline's mark: the file is emptied and downloaded from zero.
        let is_marked = matches!(value.len(), 1 | 16);
        let error = site.download("a mark");
        assert_eq!(error.is_none(), is_marked, "{error:?}");
    }
}

#[test]
fn a_genuine_journal_of_something_else_proves_nothing() {
    // A journal of the same URL, beside a planted unfinished file.
    let (donor, site) = (TestDownload::with_partial(URL, &genuine_data()), TestDownload::new());
    std::fs::copy(donor.journal(), site.journal()).unwrap();
    std::fs::write(site.part(), malicious_data()).unwrap();
    assert!(matches!(site.download("another file's journal"), Some(StoreError::ForeignFile { .. })));
    // A journal of another URL, with its own unfinished file.
    let foreign: Vec<u8> = vec![b'E'; TOTAL];
    let site = TestDownload::with_partial("http://b.test:8080/plant/ubuntu.iso", &foreign);
    let Opened { resume, restart_reason, .. } = site.open().unwrap();
    assert_eq!((resume, restart_reason), (None, Some(RestartReason::OtherUrl)));
    let site = TestDownload::with_partial("http://b.test:8080/plant/ubuntu.iso", &foreign);
    assert!(site.download("another URL's").is_none());
    // An older journal of the same unfinished file, which was restarted since.
    let site = TestDownload::with_partial(URL, &foreign);
    let journal_bytes = std::fs::read(site.journal()).unwrap();
    let mut store = site.open().unwrap().store;
    store.restart().unwrap();
    store.on_identified(Some(DataSize::from_bytes(TOTAL as u64)), Some(&etag())).unwrap();
    store.write(0, &foreign[..CLAIMED_LEN]).unwrap();
    store.suspend().unwrap();
    std::fs::write(site.journal(), journal_bytes).unwrap();
    assert_eq!(site.open().unwrap().restart_reason, Some(RestartReason::OtherPartialFile));
    // Records of another journal behind a genuine header, which takes 160 bytes here; a record takes 32.
    let (site, donor) =
        (TestDownload::with_partial(URL, &genuine_data()), TestDownload::with_partial(URL, &foreign));
    let (journal, other) = (std::fs::read(site.journal()).unwrap(), std::fs::read(donor.journal()).unwrap());
    let begin = journal.len() - 32 * ((journal.len() - 160) / 32);
    std::fs::write(site.journal(), [&journal[..begin], &other[begin..]].concat()).unwrap();
    assert!(site.open().unwrap().resume.unwrap().ranges.is_empty());
}

#[test]
fn an_unfinished_file_that_was_replaced_or_copied_starts_from_zero_and_a_moved_one_does_not() {
    let site = TestDownload::with_partial(URL, &genuine_data());
    std::fs::remove_file(site.part()).unwrap();
    std::fs::write(site.part(), malicious_data()).unwrap();
    assert!(matches!(site.download("a replaced part"), Some(StoreError::ForeignFile { .. })));
    let (from, to) = (TestDownload::with_partial(URL, &genuine_data()), TestDownload::new());
    for name in [".part", ".part.journal"] {
        std::fs::rename(from.with_suffix(name), to.with_suffix(name)).unwrap();
    }
    assert_eq!(to.open().unwrap().resume.unwrap().ranges.len(), 1);
}

#[test]
fn files_that_others_could_have_written_to_are_not_trusted() {
    type Spoil = fn(&Path);
    let spoil: [(&str, Spoil); 3] = [
        ("a hard link", |path| std::fs::hard_link(path, path.with_extension("second")).unwrap()),
        ("a group that may write", |path| std::fs::set_permissions(path, Permissions::from_mode(0o664)).unwrap()),
        ("a world that may write", |path| std::fs::set_permissions(path, Permissions::from_mode(0o646)).unwrap()),
    ];
    for (description, spoil) in spoil {
        for name in [".part", ".part.journal"] {
            let site = TestDownload::with_partial(URL, &genuine_data());
            // The attacker has it open, or has another name for it.
            let file = File::options().write(true).open(site.with_suffix(name)).unwrap();
            spoil(&site.with_suffix(name));
            let Opened { store, resume, restart_reason } = site.open().unwrap();
            assert_eq!(resume, None, "{description} {name}");
            assert!(
                matches!(restart_reason, Some(RestartReason::Untrusted(_))),
                "{description} {name}: {restart_reason:?}"
            );
            drop(store);
            file.write_all_at(&malicious_data(), 0).unwrap();
            assert!(site.download(description).is_none(), "{description} {name}");
            // A file of this user that marline did not write is left alone.
            let site = TestDownload::new();
            std::fs::write(site.with_suffix(name), if name == ".part" { "" } else { "precious" }).unwrap();
            spoil(&site.with_suffix(name));
            assert!(matches!(site.open(), Err(StoreError::ForeignFile { .. })), "{description} {name}");
        }
    }
}

#[test]
fn a_file_replaced_during_the_download_is_not_published() {
    let site = TestDownload::new();
    let mut store = site.open().unwrap().store;
    store.on_identified(Some(DataSize::from_bytes(TOTAL as u64)), Some(&etag())).unwrap();
    store.write(0, &genuine_data()).unwrap();
    std::fs::remove_file(site.part()).unwrap();
    std::fs::write(site.part(), malicious_data()).unwrap();
    let error = store.finish().unwrap_err();
    assert!(matches!(error, StoreError::PartReplaced { .. }), "{error}");
    assert!(!site.file().exists() && std::fs::read(site.part()).unwrap() == malicious_data());
}

#[test]
fn links_pipes_and_directories_are_left_alone() {
    for name in [".part", ".part.journal", ".part.journal.new"] {
        let site = TestDownload::new();
        symlink("/etc/passwd", site.with_suffix(name)).unwrap();
        assert!(site.download("a symbolic link").is_some(), "{name}");
        let site = TestDownload::new();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, site.with_suffix(name), fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(site.download("a pipe"), Some(StoreError::ForeignFile { .. })), "{name}");
        let site = TestDownload::new();
        std::fs::create_dir(site.with_suffix(name)).unwrap();
        assert!(site.download("a directory").is_some(), "{name}");
        if name == ".part.journal.new" {
            let site = TestDownload::new();
            std::fs::write(site.with_suffix(name), "precious").unwrap();
            assert!(matches!(site.download("a file"), Some(StoreError::ForeignFile { .. })));
            assert_eq!(std::fs::read(site.with_suffix(name)).unwrap(), b"precious");
        }
    }
}

/// In a shared directory, for root as well: another user can change its own files at any time.
#[test]
fn files_of_another_user_are_left_alone_also_by_root() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can give a file to another user");
    }
    for (name, content) in [(".part", vec![]), (".part", malicious_data()), (".part.journal", vec![])] {
        let site = TestDownload::new();
        std::fs::write(site.with_suffix(name), &content).unwrap();
        let file = File::open(site.with_suffix(name)).unwrap();
        let _ = rustix::fs::fsetxattr(&file, "user.marline.part", b"1", rustix::fs::XattrFlags::empty());
        chown(site.with_suffix(name), Some(65534), None).unwrap();
        std::fs::set_permissions(site.with_suffix(name), Permissions::from_mode(0o666)).unwrap();
        let error = site.download("another user's").unwrap();
        assert!(error.to_string().contains("belongs to another user"), "{error}");
    }
    // A genuine file that was given to another user meanwhile.
    let site = TestDownload::with_partial(URL, &genuine_data());
    chown(site.part(), Some(65534), None).unwrap();
    assert!(matches!(site.download("given away"), Some(StoreError::ForeignFile { .. })));
}

#[test]
fn a_journal_of_the_first_format_restarts_from_zero_with_a_message() {
    let site = TestDownload::with_partial(URL, &genuine_data());
    std::fs::write(site.journal(), old_journal()).unwrap();
    let line = site.open().unwrap().restart_reason.unwrap().to_string();
    assert_eq!(
        line,
        "starting from zero: the earlier run's journal cannot be used: it has format 1, this version of marline uses format 2"
    );
}

#[test]
fn others_cannot_write_an_unfinished_file_and_the_complete_one_has_the_usual_mode() {
    let site = TestDownload::with_partial(URL, &genuine_data());
    for name in [".part", ".part.journal"] {
        assert_eq!(std::fs::metadata(site.with_suffix(name)).unwrap().permissions().mode() & 0o022, 0, "{name}");
    }
    // The usual mode results from the umask of this process.
    let other = site.dir.path().join("other");
    std::fs::write(&other, "").unwrap();
    let usual = std::fs::metadata(other).unwrap().permissions().mode();
    let mut store = site.open().unwrap().store;
    store.write(CLAIMED_LEN as u64, &genuine_data()[CLAIMED_LEN..]).unwrap();
    store.finish().unwrap();
    assert_eq!(std::fs::metadata(site.file()).unwrap().permissions().mode(), usual);
}

#[test]
fn the_state_of_another_download_is_rejected_as_target() {
    let site = TestDownload::with_partial(URL, &genuine_data());
    for name in [".part", ".part.journal"] {
        let error = Store::open(&site.with_suffix(name), &urls(URL)).unwrap_err();
        assert!(matches!(error, StoreError::IsPartialState { .. }), "{name}: {error}");
    }
    // The user may choose a name of that form if no download uses it.
    let path = site.dir.path().join("x.part");
    let mut store = Store::open(&path, &urls(URL)).unwrap().store;
    store.on_identified(Some(DataSize::from_bytes(1)), None).unwrap();
    store.write(0, b"x").unwrap();
    store.finish().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"x");
    // Such a file is not mistaken for the state of a download of `x`.
    let error = Store::open(&site.dir.path().join("x"), &urls(URL)).unwrap_err();
    assert!(matches!(error, StoreError::ForeignFile { .. }), "{error}");
}
