//! List of the files that earlier batches have completed, so that the next run of a batch does not fetch them
//! again.
//!
//! `$XDG_STATE_HOME/marline/finished` (default: `~/.local/state`) has one line of JSON for each completed file: its
//! size, its modification time, and the server's validator or the digest with which it was verified. A file counts
//! as complete if size and time have not changed, and the digest is the expected one or the server's validator is
//! still the same.
//!
//! 1. The list is private to its user, and [`super::mac_key`] requires the same of its directory. Otherwise no file
//!    is recognized.
//! 2. Lines are appended, so that several runs may write at once. A line that cannot be parsed is skipped.
//! 3. The list only saves work: without it, files are downloaded again, and nothing else changes.
//!
//! An extended attribute of the file was rejected: FAT and many network file systems have none.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use marline_core::fetch::Validator;
use marline_core::units::DataSize;
use marline_net::checksum::Checksum;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::mac_key;
use super::paths::parent_dir;
use marline_net::atomic_file;

/// The list, read once by each run.
#[derive(Debug, Default)]
pub(crate) struct CompletedFiles {
    /// Path of the list; none: it cannot be used.
    path: Option<PathBuf>,
    /// The newest record for each [`record_key`].
    records: BTreeMap<String, CompletedFile>,
}

/// Record of a completed file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct CompletedFile {
    /// Identifies the URL and the path that the batch assigned first ([`record_key`]).
    key: String,
    /// Path of the complete file.
    pub(crate) path: PathBuf,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Modification time: seconds and nanoseconds since 1970.
    #[serde(alias = "modified")]
    mtime: (i64, i64),
    /// Validator of the server's response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    validator: Option<Validator>,
    /// Digest with which the file was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
}

impl CompletedFiles {
    /// Reads the list of this user.
    pub(crate) fn load() -> Self {
        mac_key::state_dir().map(|dir| Self::load_from(&dir.join(FILE_NAME))).unwrap_or_default()
    }

    fn load_from(list_path: &Path) -> Self {
        let mut completed = Self { path: Some(list_path.to_owned()), records: BTreeMap::new() };
        match open_private(list_path, OpenOptions::new().read(true)) {
            Ok(file) => completed.read(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(path = %list_path.display(), %error, "the list of completed files cannot be used: completed files are downloaded again");
                completed.path = None;
            }
        }
        completed
    }

    fn read(&mut self, file: File) {
        let len = file.metadata().map_or(0, |meta| meta.len());
        let mut lines = Vec::new();
        for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
            let Ok(record) = serde_json::from_slice::<CompletedFile>(&line) else { continue };
            lines.push(record.key.clone());
            self.records.insert(record.key.clone(), record);
        }
        if len > MAX_LEN {
            self.compact(&lines);
        }
    }

    /// Rewrites the list with the newest records only.
    fn compact(&mut self, lines: &[String]) {
        let newest: std::collections::BTreeSet<&String> = lines.iter().rev().take(MAX_RECORDS).collect();
        self.records.retain(|key, _| newest.contains(key));
        let Some(list_path) = &self.path else { return };
        let text: String = self.records.values().filter_map(json_line).collect();
        if let Err(error) = atomic_file::replace(list_path, text.as_bytes(), 0o600) {
            tracing::debug!(%error, "the list of completed files cannot be compacted");
        }
    }

    /// The record for this URL and path, if the file has not changed since.
    pub(crate) fn find(&self, url: &Url, target_path: &Path) -> Option<&CompletedFile> {
        let record = self.records.get(&record_key(url, target_path)?)?;
        let meta = record.path.symlink_metadata().ok()?;
        let is_same =
            meta.is_file() && meta.len() == record.size && (meta.mtime(), meta.mtime_nsec()) == record.mtime;
        is_same.then_some(record)
    }

    /// Records that the file of this URL is complete at `path`.
    pub(crate) fn add(
        &mut self,
        (url, target_path): (&Url, &Path),
        path: &Path,
        validator: Option<Validator>,
        digest: Option<&Checksum>,
    ) {
        let digest = digest.map(Checksum::to_string);
        let meta = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file);
        let (Some(key), Some(meta)) = (record_key(url, target_path), meta) else { return };
        // Without either, a later run could not prove that the server still has this file.
        if validator.is_none() && digest.is_none() {
            return;
        }
        let Ok(path) = path.canonicalize() else { return };
        let modified = (meta.mtime(), meta.mtime_nsec());
        let record = CompletedFile { key: key.clone(), path, size: meta.len(), mtime: modified, validator, digest };
        if let (Some(list_path), Some(line)) = (&self.path, json_line(&record)) {
            let written = open_private(list_path, OpenOptions::new().append(true).create(true))
                .and_then(|mut file| file.write_all(line.as_bytes()));
            if let Err(error) = written {
                tracing::debug!(path = %list_path.display(), %error, "a completed file cannot be recorded");
            }
        }
        self.records.insert(key, record);
    }
}

impl CompletedFile {
    /// Whether the file was verified with this digest.
    pub(crate) fn has_digest(&self, digest: &Checksum) -> bool {
        self.digest.as_ref() == Some(&digest.to_string())
    }

    /// Whether the server still has the same file: equal size and validator.
    pub(crate) fn matches(&self, total: Option<DataSize>, validator: Option<&Validator>) -> bool {
        total == Some(DataSize::from_bytes(self.size))
            && validator.is_some()
            && self.validator.as_ref() == validator
    }
}

/// Opens a file that belongs to this user, and that other users cannot write.
fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path)?;
    let meta = file.metadata()?;
    let is_private =
        meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0;
    if is_private { Ok(file) } else { Err(io::Error::other("other users may write to it")) }
}

fn json_line(record: &CompletedFile) -> Option<String> {
    serde_json::to_string(record).ok().map(|line| line + "\n")
}

/// Digest of the URL and of the path under which the batch stores the file first. The URL itself may contain a
/// secret, so it is not stored.
fn record_key(url: &Url, target_path: &Path) -> Option<String> {
    let target_path = parent_dir(target_path).canonicalize().ok()?.join(target_path.file_name()?);
    let mut digest = Sha256::new();
    digest.update(url.as_str().as_bytes());
    digest.update([0]);
    digest.update(target_path.as_os_str().as_encoded_bytes());
    Some(HEXLOWER.encode(&digest.finalize()))
}

const FILE_NAME: &str = "finished";
/// Length in bytes from which on the list is compacted, and the number of records that remain.
const MAX_LEN: u64 = 8 << 20;
const MAX_RECORDS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> Url {
        "https://me:secret@h.example/a?token=hidden".parse().unwrap()
    }

    #[test]
    fn a_completed_file_is_recognized_until_it_or_the_server_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (list_path, file) = (dir.path().join("finished"), dir.path().join("a.1"));
        let target_path = dir.path().join("a");
        std::fs::write(&file, "content").unwrap();
        let etag = Validator::Etag("\"1\"".into());
        let size = Some(DataSize::from_bytes(7));
        let digest: Checksum = format!("sha256={}", "ab".repeat(32)).parse().unwrap();
        let mut first = CompletedFiles::load_from(&list_path);
        assert!(first.find(&url(), &target_path).is_none());
        first.add((&url(), &target_path), &file, Some(etag.clone()), Some(&digest));
        let text = std::fs::read_to_string(&list_path).unwrap();
        assert!(!text.contains("secret") && !text.contains("hidden"), "{text}");
        assert_eq!(list_path.metadata().unwrap().mode() & 0o777, 0o600);

        let next = CompletedFiles::load_from(&list_path);
        let record = next.find(&url(), &target_path).unwrap();
        assert_eq!(record.path, file.canonicalize().unwrap());
        assert!(record.matches(size, Some(&etag)) && record.has_digest(&digest));
        assert!(!record.matches(size, Some(&Validator::Etag("\"2\"".into()))) && !record.matches(size, None));
        assert!(!record.matches(Some(DataSize::from_bytes(8)), Some(&etag)) && !record.matches(None, Some(&etag)));
        assert!(next.find(&url(), &dir.path().join("b")).is_none(), "another path");
        assert!(next.find(&"https://h.example/b".parse().unwrap(), &target_path).is_none());

        std::fs::write(&file, "changed").unwrap();
        let changed = OpenOptions::new().write(true).open(&file).unwrap();
        changed.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert!(next.find(&url(), &target_path).is_none());
    }

    #[test]
    fn a_file_without_validator_and_digest_is_not_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        std::fs::write(&file, "x").unwrap();
        let mut all = CompletedFiles::load_from(&dir.path().join("finished"));
        all.add((&url(), &file), &file, None, None);
        assert!(all.find(&url(), &file).is_none() && !dir.path().join("finished").exists());
    }

    #[test]
    fn a_list_that_others_could_have_written_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (list_path, file) = (dir.path().join("finished"), dir.path().join("a"));
        std::fs::write(&file, "x").unwrap();
        CompletedFiles::load_from(&list_path).add(
            (&url(), &file),
            &file,
            Some(Validator::Etag("\"1\"".into())),
            None,
        );
        std::fs::set_permissions(&list_path, std::fs::Permissions::from_mode(0o622)).unwrap();
        assert!(CompletedFiles::load_from(&list_path).find(&url(), &file).is_none());
        std::fs::remove_file(&list_path).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &list_path).unwrap();
        let mut all = CompletedFiles::load_from(&list_path);
        all.add((&url(), &file), &file, Some(Validator::Etag("\"1\"".into())), None);
        assert!(!dir.path().join("elsewhere").exists());
    }

    #[test]
    fn a_long_list_loses_its_oldest_records() {
        let dir = tempfile::tempdir().unwrap();
        let (list_path, file) = (dir.path().join("finished"), dir.path().join("a"));
        std::fs::write(&file, "x").unwrap();
        let url_of = |n: usize| -> Url { format!("https://h.example/{n}").parse().unwrap() };
        let mut all = CompletedFiles::load_from(&list_path);
        let etag = || Some(Validator::Etag(format!("\"{}\"", "e".repeat(1000))));
        (0..MAX_RECORDS + 5).for_each(|n| all.add((&url_of(n), &file), &file, etag(), None));
        assert!(list_path.metadata().unwrap().len() > MAX_LEN);
        std::fs::write(dir.path().join("odd"), "").unwrap();
        let short = CompletedFiles::load_from(&list_path);
        assert!(short.find(&url_of(4), &file).is_none() && short.find(&url_of(5), &file).is_some());
        let again = CompletedFiles::load_from(&list_path);
        assert_eq!(again.records, short.records);
        assert_eq!(again.records.len(), MAX_RECORDS);
    }
}
