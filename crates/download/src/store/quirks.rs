//! File systems that are not at hand in tests: what they refuse is refused by the real one's driver for one thread.

use std::cell::Cell;
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// What a file system refuses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quirks {
    /// Characters in names.
    pub(super) characters: &'static str,
    /// Longer names; zero: none.
    pub(super) longest_name: usize,
    /// Whether it says how long names may be.
    pub(super) says_longest: bool,
    /// Longer files; zero: none.
    pub(super) longest_file: u64,
    /// Writes anywhere but at the end.
    pub(super) sequential: Option<Errno>,
    /// Files that are open for reading and writing.
    pub(super) write_only: bool,
    /// Renames.
    pub(super) no_rename: bool,
}

thread_local! {
    static QUIRKS: Cell<Quirks> = Cell::new(Quirks::default());
}

/// Runs a test on such a file system.
pub(super) fn with<T>(quirks: Quirks, test: impl FnOnce() -> T) -> T {
    let before = QUIRKS.replace(quirks);
    let result = test();
    QUIRKS.set(before);
    result
}

pub(super) fn now() -> Quirks {
    QUIRKS.get()
}

pub(super) fn check_name(path: &Path) -> io::Result<()> {
    let (quirks, name) = (now(), path.file_name().unwrap_or_default().to_string_lossy());
    if quirks.longest_name > 0 && name.len() > quirks.longest_name {
        return Err(Errno::NAMETOOLONG.into());
    }
    if name.contains(|c| quirks.characters.contains(c)) { Err(Errno::INVAL.into()) } else { Ok(()) }
}
