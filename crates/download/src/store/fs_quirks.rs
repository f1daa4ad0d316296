//! File systems that are not at hand in tests: what they refuse is refused by the real one's driver for one thread.

use std::cell::Cell;
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// What a file system refuses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FsQuirks {
    /// Characters in names.
    pub(super) forbidden_chars: &'static str,
    /// Longer names; zero: none.
    pub(super) max_name_len: usize,
    /// Whether it says how long names may be.
    pub(super) reports_max_name: bool,
    /// Longer files; zero: none.
    pub(super) max_file_len: u64,
    /// Writes anywhere but at the end.
    pub(super) seek_errno: Option<Errno>,
    /// Files that are open for reading and writing.
    pub(super) forbids_read_write: bool,
    /// Renames.
    pub(super) forbids_rename: bool,
}

thread_local! {
    static CURRENT_QUIRKS: Cell<FsQuirks> = Cell::new(FsQuirks::default());
}

/// Runs a test on such a file system.
pub(super) fn with_quirks<T>(quirks: FsQuirks, test: impl FnOnce() -> T) -> T {
    let before = CURRENT_QUIRKS.replace(quirks);
    let result = test();
    CURRENT_QUIRKS.set(before);
    result
}

pub(super) fn current_quirks() -> FsQuirks {
    CURRENT_QUIRKS.get()
}

pub(super) fn check_name(path: &Path) -> io::Result<()> {
    let (quirks, name) = (current_quirks(), path.file_name().unwrap_or_default().to_string_lossy());
    if quirks.max_name_len > 0 && name.len() > quirks.max_name_len {
        return Err(Errno::NAMETOOLONG.into());
    }
    if name.contains(|c| quirks.forbidden_chars.contains(c)) { Err(Errno::INVAL.into()) } else { Ok(()) }
}
