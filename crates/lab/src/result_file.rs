//! A result file that is opened before the measurement: a path that cannot be written is refused at once, not after
//! the measurement, whose results would be lost.
//!
//! The file is not truncated until the results are written, so a run that fails keeps the results of an earlier
//! one.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::LabError;

/// A file that is open for writing and not changed yet.
#[derive(Debug)]
pub(crate) struct ResultFile {
    path: PathBuf,
    file: File,
}

impl ResultFile {
    /// Opens the file, or creates it.
    pub(crate) fn open(path: &Path) -> Result<Self, LabError> {
        let file = File::options().write(true).create(true).truncate(false).open(path);
        Ok(Self { path: path.into(), file: file.map_err(LabError::at_step(path.display().to_string()))? })
    }

    /// The same for an optional command-line option.
    pub(crate) fn open_if(path: Option<&PathBuf>) -> Result<Option<Self>, LabError> {
        path.map(|path| Self::open(path)).transpose()
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file's content.
    pub(crate) fn write(mut self, text: &str) -> Result<(), LabError> {
        // A pipe or a terminal cannot be truncated; ignore the error.
        let _ = self.file.set_len(0);
        self.file.write_all(text.as_bytes()).map_err(LabError::at_step(self.path.display().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_bad_path_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let error = ResultFile::open(&directory.path().join("absent/r.json")).unwrap_err().to_string();
        assert!(error.contains("absent/r.json"), "{error}");
    }

    #[test]
    fn the_old_content_stays_until_new_content_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json");
        fs::write(&path, "the longer text of an earlier run").unwrap();
        let file = ResultFile::open(&path).unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with("the longer"));
        file.write("new\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
    }
}
