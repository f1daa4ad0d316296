//! A file on a file system that takes bytes only in order: object stores, cameras and telephones behind FUSE.
//!
//! The bytes go through a [`Stream`] into `FILE.part`, which gets its name at the end like any other. Such a file cannot be
//! resumed: what an interrupted run leaves is removed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use marline_core::units::DataSize;
use rustix::io::Errno;

use super::disk::{Disk, FOLLOW_NOTHING, Os, UNFINISHED};
use super::place::Place;
use super::stream::{Sink, Stream};
use super::{StoreError, WINDOW};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct InOrder {
    pub(super) stream: Stream,
    pub(super) place: Place,
}

impl InOrder {
    /// Makes the unfinished file, for writing only: some of these file systems do not read what is being written.
    pub(super) fn create(place: Place) -> io::Result<Self> {
        #[cfg(test)]
        super::quirks::check_name(&place.part)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(UNFINISHED).custom_flags(FOLLOW_NOTHING);
        let file = options.open(&place.part)?;
        if !Os::default().lock(&file)? {
            return Err(Errno::WOULDBLOCK.into());
        }
        let stream = Stream::new(place.path.clone(), Sink::Kept(file), WINDOW);
        Ok(Self { stream, place })
    }

    /// What is known of the size before the first byte: whether a file of it may be here at all.
    pub(super) fn identified(&self, total: DataSize) -> Result<(), StoreError> {
        let (path, disk) = (&self.place.path, Os::default());
        let Ok(dir) = File::open(&self.place.dir) else { return Ok(()) };
        let free = disk.free(&dir).map_or(DataSize::from_bytes(u64::MAX), DataSize::from_bytes);
        if total > free {
            let on = self.place.dir.clone();
            return Err(StoreError::WillNotFit { path: path.clone(), need: total, free, on });
        }
        Ok(())
    }

    /// Waits until everything is written, and gives the file its name.
    pub(super) fn finish(self, total: Option<u64>) -> Result<PathBuf, StoreError> {
        let Self { stream, place } = self;
        stream.finish(total)?;
        // The file is closed now, and what the close could not keep shows in the length.
        let len =
            std::fs::metadata(&place.part).map_err(|e| StoreError::io(&place.part, "looking at it", e))?.len();
        if let Some(total) = total.filter(|total| *total != len) {
            let missing = DataSize::from_bytes(total.saturating_sub(len));
            return Err(StoreError::Incomplete { path: place.path, missing, first: len });
        }
        let published = place.publish(&Os::default());
        published.map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV | Errno::PERM) => {
                StoreError::NoRename { path: place.path, part: place.part }
            }
            _ => StoreError::io(&place.path, "naming the complete file", e),
        })
    }

    /// The run ends early: nothing is left that the next run could not use anyway.
    pub(super) fn abandon(self) -> Result<(), StoreError> {
        let Self { stream, place } = self;
        drop(stream);
        Os::default().remove(&place.part).map_err(|e| StoreError::io(&place.part, "removing", e))
    }
}
