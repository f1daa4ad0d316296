//! Simulates unusual file systems in tests: `OsFileSystem` rejects what the current quirks of the thread forbid.

use std::cell::Cell;
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// Restrictions of a simulated file system.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FsQuirks {
    /// Characters that names must not contain.
    pub(super) forbidden_chars: &'static str,
    /// Maximum length of a name in bytes; zero: no limit.
    pub(super) max_name_len: usize,
    /// Whether statvfs reports the maximum length of names.
    pub(super) reports_max_name: bool,
    /// Maximum length of a file in bytes; zero: no limit.
    pub(super) max_file_len: u64,
    /// Error for writes anywhere but at the end; none: allowed.
    pub(super) seek_errno: Option<Errno>,
    /// Whether files cannot be open for reading and writing at once.
    pub(super) forbids_read_write: bool,
    /// Whether files cannot be renamed.
    pub(super) forbids_rename: bool,
}

thread_local! {
    static CURRENT_QUIRKS: Cell<FsQuirks> = Cell::new(FsQuirks::default());
}

/// Runs a test with these restrictions in the current thread.
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
