//! Starts the two programs that the tests need.

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

/// Why this program is older than its sources; `None` if it is current.
fn stale(program: &Path) -> Option<String> {
    let shown = program.display();
    let modified = |file: &Path| file.metadata().and_then(|about| about.modified()).ok();
    let Some(built) = modified(program) else { return Some(format!("{shown} has not been built")) };
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // The laboratory is not part of the program.
    let linked = std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = linked
        .filter(|krate| !["lab", "sim"].iter().any(|name| krate.ends_with(name)))
        .flat_map(|krate| ["src", "models"].map(|folder| krate.join(folder)))
        .collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        // Unit tests in files of their own are not part of the program either.
        let tests = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
        for path in entries.map(|entry| entry.unwrap().path()).filter(|path| !tests(path)) {
            if path.is_dir() {
                folders.push(path);
            } else if modified(&path).is_none_or(|changed| changed > built) {
                return Some(format!("{shown} is older than {}", path.display()));
            }
        }
    }
    None
}
