//! Starts the two programs that the tests need.
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Path of `marline-lab`. It runs [`marline`].
pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_marline-lab");

/// A command for `marline-lab` that runs the `marline` under test.
pub(crate) fn lab() -> Command {
    let mut command = Command::new(LAB);
    command.env("MARLINE", marline());
    command
}

/// The `marline` under test: the one that the variable `MARLINE` names, otherwise the one of this build.
///
/// Cargo builds the programs of the packages that it tests, but gives a test only the paths of its own package's
/// programs. So `cargo test --workspace` builds this one, and `cargo test -p marline-lab` does not.
///
/// # Panics
/// The program has not been built, or a source file has changed since.
pub(crate) fn marline() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(named) = std::env::var_os("MARLINE") {
            return std::path::absolute(named).unwrap();
        }
        let built = Path::new(LAB).with_file_name("marline");
        if let Some(why) = stale(&built) {
            panic!("{why}: run `cargo build -p marline` first, or test both with `cargo test -p marline -p marline-lab`");
        }
        built
    })
}

/// Why this program is older than its sources; `None` if it is current. Cargo writes the list of a program's
/// sources beside it, in the format of make.
fn stale(program: &Path) -> Option<String> {
    let shown = program.display();
    let modified = |file: &Path| file.metadata().and_then(|about| about.modified()).ok();
    let Some(built) = modified(program) else { return Some(format!("{shown} has not been built")) };
    let rules = std::fs::read_to_string(program.with_extension("d")).unwrap_or_default();
    let Some((_, sources)) = rules.split_once(": ") else {
        return Some(format!("{shown}.d does not list its sources"));
    };
    // Spaces in names are escaped with a backslash.
    let sources = sources.lines().next().unwrap_or_default().replace("\\ ", "\0");
    let changed = sources
        .split_whitespace()
        .map(|source| source.replace('\0', " "))
        .find(|source| modified(Path::new(source)).is_none_or(|changed| changed > built));
    changed.map(|source| format!("{shown} is older than {source}"))
}
