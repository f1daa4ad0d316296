//! A file on a file system that accepts only sequential writes: object stores, cameras and telephones behind FUSE.
//!
//! The bytes go through a [`StreamWriter`] to `FILE.part`, which is renamed at the end like any other. Such a file
//! cannot be resumed, so an interrupted run removes it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use marline_core::units::DataSize;
use rustix::io::Errno;

use super::fs::{FileSystem, NOFOLLOW_FLAGS, OsFileSystem, PART_MODE};
use super::paths::DownloadPaths;
use super::stream_writer::{StreamTarget, StreamWriter};
use super::{STREAM_WINDOW, StoreError};

/// A sequentially written file; see the [module documentation](self).
#[derive(Debug)]
pub(super) struct SequentialFile {
    pub(super) stream: StreamWriter,
    pub(super) paths: DownloadPaths,
}

impl SequentialFile {
    /// Creates the unfinished file for writing only, because some of these file systems cannot read a file that is
    /// being written.
    pub(super) fn create(paths: DownloadPaths) -> io::Result<Self> {
        #[cfg(test)]
        super::fs_quirks::check_name(&paths.part)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(PART_MODE).custom_flags(NOFOLLOW_FLAGS);
        let file = options.open(&paths.part)?;
        if !OsFileSystem::default().lock(&file)? {
            return Err(Errno::WOULDBLOCK.into());
        }
        let stream = StreamWriter::new(paths.final_path.clone(), StreamTarget::SyncedFile(file), STREAM_WINDOW);
        Ok(Self { stream, paths })
    }

    /// Checks before the first byte whether the file system has enough free space.
    pub(super) fn check_space(&self, total: DataSize) -> Result<(), StoreError> {
        let (path, fs) = (&self.paths.final_path, OsFileSystem::default());
        let Ok(dir) = File::open(&self.paths.dir) else { return Ok(()) };
        let free = fs.free_bytes(&dir).map_or(DataSize::from_bytes(u64::MAX), DataSize::from_bytes);
        if total > free {
            let on = self.paths.dir.clone();
            return Err(StoreError::NotEnoughSpace { path: path.clone(), need: total, free, on });
        }
        Ok(())
    }

    /// Waits until everything is written, and renames the file to its final name.
    pub(super) fn finish(self, total: Option<u64>) -> Result<PathBuf, StoreError> {
        let Self { stream, paths } = self;
        stream.finish(total)?;
        // The file is closed now. If the file system failed to store bytes at the close, the length shows it.
        let len = std::fs::metadata(&paths.part)
            .map_err(|e| StoreError::io(&paths.part, "reading its attributes", e))?
            .len();
        if let Some(total) = total.filter(|total| *total != len) {
            let missing = DataSize::from_bytes(total.saturating_sub(len));
            return Err(StoreError::Incomplete { path: paths.final_path, missing, first: len });
        }
        let published = paths.publish(&OsFileSystem::default());
        published.map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV | Errno::PERM) => {
                StoreError::RenameUnsupported { path: paths.final_path, part: paths.part }
            }
            _ => StoreError::io(&paths.final_path, "renaming the complete file", e),
        })
    }

    /// Ends the run early, and removes the file, because the next run could not use it.
    pub(super) fn abandon(self) -> Result<(), StoreError> {
        let Self { stream, paths } = self;
        drop(stream);
        OsFileSystem::default().remove(&paths.part).map_err(|e| StoreError::io(&paths.part, "removing", e))
    }
}
