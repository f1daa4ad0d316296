//! Atomic replacement of small files: after a crash a file has its old or its new content, never part of it.
//!
//! The content is written to a new file in the same directory and synced. Then that file is renamed to the final
//! name, and the directory is synced. The new file is always created (`O_EXCL`, `O_NOFOLLOW`), so symbolic links that
//! another user has put into the directory are never followed. Its name is random (`.NAME.0123456789abcdef.new`), so
//! two processes that write the same file at the same time do not write into each other's temporary file, and the
//! content of the process that renames last remains.
//!
//! [`replace`] and [`create_new`] take a path. [`replace_in`] and [`create_new_in`] take a directory that the caller has
//! opened and checked, and write into exactly that directory. The `tempfile` crate was not used: it opens files only
//! by path, and does not sync the directory.
//!
//! Downloads are not written here: a partial file and its journal grow over hours (`store` in `marline-download`).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, linkat, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::random::random_bytes;

/// The file that could not be written, and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct FileError {
    /// The final file, not the temporary one.
    pub path: PathBuf,
    /// Why it could not be written.
    pub error: io::Error,
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        Self::new(error.error.kind(), error)
    }
}

/// Suffix of the names of temporary files. Such a file remains if the process is killed while it writes.
pub const TEMP_SUFFIX: &str = ".new";

/// Writes a file with these permissions, replacing an existing one.
///
/// # Errors
/// It cannot be written or synced. Unless only the last sync failed, the old file is unchanged.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    with_parent_dir(path, |directory, name| replace_in(directory, name, bytes, mode))
}

/// Writes a file with these permissions, unless the name exists.
///
/// # Errors
/// As [`replace`], and [`io::ErrorKind::AlreadyExists`].
pub fn create_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    with_parent_dir(path, |directory, name| create_new_in(directory, name, bytes, mode))
}

/// Waits until the directory entries are on disk. Some file systems (in user space) do not support that and return
/// EINVAL, which is ignored: nothing more can be done there.
///
/// # Errors
/// The directory cannot be opened or synced.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    sync_open_directory(&File::open(path)?)
}

/// The directory that contains `path`; the current directory if the path has no directory part.
pub fn parent_dir(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// [`replace`] in an open directory.
///
/// # Errors
/// The file cannot be written.
pub fn replace_in(directory: impl AsFd, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = directory.as_fd();
    write_and_publish(directory, name, bytes, mode, |temp_name| {
        Ok(renameat(directory, temp_name, directory, name)?)
    })
}

/// [`create_new`] in an open directory.
///
/// # Errors
/// There is a file of that name, or it cannot be written.
pub fn create_new_in(directory: impl AsFd, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = directory.as_fd();
    write_and_publish(directory, name, bytes, mode, |temp_name| rename_no_replace(directory, temp_name, name))
}

fn with_parent_dir(path: &Path, write: impl FnOnce(File, &OsStr) -> io::Result<()>) -> Result<(), FileError> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput));
    let result = name.and_then(|name| write(File::open(parent_dir(path))?, name));
    result.map_err(|error| FileError { path: path.to_owned(), error })
}

fn write_and_publish(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    bytes: &[u8],
    mode: u32,
    publish: impl FnOnce(&OsStr) -> io::Result<()>,
) -> io::Result<()> {
    let temp_name = temp_file_name(name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, &temp_name, flags, Mode::from_raw_mode(mode))?);
    let result = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| publish(&temp_name));
    if let Err(error) = result {
        // Even on a full disk the empty file was created and would remain.
        let _ = unlinkat(directory, &temp_name, AtFlags::empty());
        return Err(error);
    }
    // The caller's descriptor may be open with `O_PATH`, which cannot be synced.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    sync_open_directory(&File::from(openat(directory, ".", flags, Mode::empty())?))
}

fn temp_file_name(name: &OsStr) -> io::Result<OsString> {
    let mut temp_name = OsString::from(".");
    temp_name.push(name);
    temp_name.push(format!(".{}{TEMP_SUFFIX}", HEXLOWER.encode(&random_bytes::<8>()?)));
    Ok(temp_name)
}

/// Renames a file unless the new name exists. Some file systems cannot do both in one step. There a hard link is
/// created instead, which also fails if the name exists; the file has two names for a moment.
fn rename_no_replace(directory: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
    match renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            linkat(directory, from, directory, to, AtFlags::empty())?;
            Ok(unlinkat(directory, from, AtFlags::empty())?)
        }
        renamed => Ok(renamed?),
    }
}

fn sync_open_directory(directory: &File) -> io::Result<()> {
    match directory.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn file_names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_is_replaced_completely_and_gets_the_given_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for (text, mode) in [("first, longer", 0o600), ("second", 0o640)] {
            replace(&path, text.as_bytes(), mode).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
        }
        assert_eq!(file_names(directory.path()), ["file"]);
    }

    #[test]
    fn a_symbolic_link_is_replaced_and_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("file"), directory.path().join("victim"));
        fs::write(&victim, "whole").unwrap();
        symlink(&victim, &path).unwrap();
        assert_eq!(create_new(&path, b"new", 0o600).unwrap_err().error.kind(), io::ErrorKind::AlreadyExists);
        replace(&path, b"new", 0o600).unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read(&victim).unwrap()), (b"new".to_vec(), b"whole".to_vec()));
        assert!(path.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn an_existing_file_is_not_overwritten_by_create() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        create_new(&path, b"first", 0o600).unwrap();
        assert_eq!(create_new(&path, b"second", 0o600).unwrap_err().error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(file_names(directory.path()), ["file"]);
    }

    #[test]
    fn an_error_names_the_file_and_leaves_no_temporary_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("taken");
        fs::create_dir_all(path.join("full")).unwrap();
        let error = replace(&path, b"text", 0o600).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "{error}");
        assert_eq!(file_names(directory.path()), ["taken"]);
        let absent = replace(&directory.path().join("absent/file"), b"text", 0o600).unwrap_err();
        assert_eq!(io::Error::from(absent).kind(), io::ErrorKind::NotFound);
        assert!(replace(Path::new("/"), b"text", 0o600).is_err());
    }

    #[test]
    fn concurrent_writers_do_not_mix_their_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::thread::scope(|scope| {
            for letter in [b'a', b'b', b'c', b'd'] {
                let path = &path;
                scope.spawn(move || (0..20).for_each(|_| replace(path, &[letter; 10_000], 0o600).unwrap()));
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 10_000 && bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(file_names(directory.path()), ["file"]);
    }
}
