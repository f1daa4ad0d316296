//! A file for results, opened before the work begins: a path that cannot be written is refused at once, not after the
//! measurement, whose results would be lost.
//!
//! Nothing is emptied until there is something to write: what an earlier run left survives a run that fails.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::LabError;

/// An open file that is still as it was.
#[derive(Debug)]
pub(crate) struct ResultFile {
    path: PathBuf,
    file: File,
}

impl ResultFile {
    /// Opens it, or makes it.
    pub(crate) fn open(path: &Path) -> Result<Self, LabError> {
        let file = File::options().write(true).create(true).truncate(false).open(path);
        Ok(Self { path: path.into(), file: file.map_err(LabError::at_step(path.display().to_string()))? })
    }

    /// The same for an option of the command line.
    pub(crate) fn open_if(path: Option<&PathBuf>) -> Result<Option<Self>, LabError> {
        path.map(|path| Self::open(path)).transpose()
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces what is in it.
    pub(crate) fn write(mut self, text: &str) -> Result<(), LabError> {
        // A pipe or a terminal has no length.
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
    fn what_was_there_stays_until_there_is_something_to_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json");
        fs::write(&path, "the longer text of an earlier run").unwrap();
        let file = ResultFile::open(&path).unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with("the longer"));
        file.write("new\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
    }
}
