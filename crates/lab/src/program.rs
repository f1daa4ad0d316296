//! Finds the `marline` program that a lab runs and measures.
//!
//! It runs as a process of its own, as users run it; this program does not contain it. `$PATH` is not searched:
//! that could measure an installed `marline` of another version without notice.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::LabError;

/// The program that the variable `MARLINE` names, otherwise the one in the directory of this program.
pub(crate) fn marline() -> Result<PathBuf, LabError> {
    let current_exe = std::env::current_exe().map_err(LabError::at_step("the path of this program"))?;
    find(std::env::var_os(VARIABLE), &current_exe)
}

/// The same with the value of `MARLINE` and the path of this program as parameters, for tests.
fn find(named: Option<OsString>, current_exe: &Path) -> Result<PathBuf, LabError> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        // Commands run in other directories, so the path must be absolute.
        let path = std::path::absolute(&named).unwrap_or_else(|_| named.into());
        return if path.is_file() { Ok(path) } else { Err(LabError::NamedProgram { path }) };
    }
    let sibling = current_exe.with_file_name("marline");
    if sibling.is_file() { Ok(sibling) } else { Err(LabError::NoProgram { expected_path: sibling }) }
}

const VARIABLE: &str = "MARLINE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marline_is_the_named_program_or_the_one_beside_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let current_exe = folder.path().join("marline-lab");
        let error = find(None, &current_exe).unwrap_err().to_string();
        assert!(error.contains("/marline: ") && error.contains("MARLINE=FILE"), "{error}");
        std::fs::write(folder.path().join("marline"), "").unwrap();
        assert_eq!(find(None, &current_exe).unwrap(), folder.path().join("marline"));
        assert_eq!(find(Some("".into()), &current_exe).unwrap(), folder.path().join("marline"));
        assert_eq!(find(Some("/bin/sh".into()), &current_exe).unwrap(), Path::new("/bin/sh"));
        let error = find(Some("/no/such/marline".into()), &current_exe).unwrap_err().to_string();
        assert!(error.contains("MARLINE=/no/such/marline"), "{error}");
    }
}
