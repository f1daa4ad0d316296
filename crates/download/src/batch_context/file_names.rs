//! Names for the files of a batch. They are distinct, and do not depend on the order in which the files finish.
//!
//! 1. A file without a name from the user or a list is named by Content-Disposition or the URL. If another file of
//!    the batch has that name already, the file becomes `name.1`, `name.2` and so on, as with wget. The order of the
//!    list decides.
//! 2. An unfinished file is stored as `name.part`, where `name` is known before the response: from the user, a list
//!    or the URL. That name is distinct, too, so that the next run of the same batch finds it. A complete file is
//!    renamed to its final name.
//! 3. The final name is assigned when the head of the response is known and all earlier files of the list have their
//!    final names, have failed or were canceled. A complete file waits for them, but at most [`NAME_TIMEOUT`]; then it
//!    takes the next free name.
//! 4. A name that the user did not choose (with a number, from a server, a list or a Metalink file) never replaces
//!    an existing file. The name from the URL does, as in a single download.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::name::{MAX_NAME_LEN, PART_SUFFIXES, truncate};

/// Names of all files of a batch.
#[derive(Debug, Default)]
pub(crate) struct FileNames {
    entries: Vec<NameEntry>,
    /// Collision keys of all names in use, including those of unfinished files.
    taken: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct NameEntry {
    /// Target directory; none: the file needs no name.
    dir: Option<PathBuf>,
    /// The name from the user, a list or the URL.
    preferred: OsString,
    /// The name under which it is stored until it is complete.
    initial: OsString,
    source: NameSource,
    is_settled: bool,
}

/// Origin of a file name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NameSource {
    /// Chosen by the user.
    User,
    /// From a list or a Metalink file. A server's suggestion does not replace it.
    List,
    /// From the last segment of the URL.
    Url,
}

/// Final name of a complete file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FinalName {
    pub(crate) name: OsString,
    /// Whether an existing file of that name is replaced.
    pub(crate) replace_existing: bool,
}

impl FileNames {
    /// Adds a file that needs no name (standard output, a device).
    pub(crate) fn add_unnamed(&mut self) {
        let (preferred, initial) = Default::default();
        self.entries.push(NameEntry { dir: None, preferred, initial, source: NameSource::User, is_settled: true });
    }

    /// Adds the next file of the list. Returns the path under which it is stored first.
    pub(crate) fn add(&mut self, dir: &Path, preferred: &OsStr, source: NameSource) -> PathBuf {
        let is_free =
            |name: &OsStr| with_suffixes(name).all(|name| !self.taken.contains(&collision_key(dir, &name)));
        let initial =
            numbered_candidates(preferred).find(|name| is_free(name)).unwrap_or_else(|| preferred.to_owned());
        self.taken.extend(with_suffixes(&initial).map(|name| collision_key(dir, &name)));
        self.entries.push(NameEntry {
            dir: Some(dir.to_owned()),
            preferred: preferred.to_owned(),
            initial: initial.clone(),
            source,
            is_settled: false,
        });
        display_path(dir, &initial)
    }

    /// Records that a file has its final name, or has ended without one.
    pub(crate) fn settle(&mut self, id: usize) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.is_settled = true;
        }
    }

    /// Whether it is this file's turn to be named: all files before it are settled.
    pub(crate) fn is_next(&self, id: usize) -> bool {
        self.entries.iter().take(id).all(|entry| entry.is_settled)
    }

    /// Assigns the final name of a file; none: it keeps its initial name, and replaces an existing file of that name.
    /// `suggested` is the server's suggestion.
    pub(crate) fn assign_final(&mut self, id: usize, suggested: Option<&OsStr>) -> Option<FinalName> {
        let entry = self.entries.get(id)?;
        let dir = entry.dir.clone()?;
        let (initial, source) = (entry.initial.clone(), entry.source);
        let suggested = suggested.filter(|_| source == NameSource::Url);
        let preferred = suggested.map_or_else(|| entry.preferred.clone(), OsStr::to_owned);
        let own_keys: Vec<PathBuf> = with_suffixes(&initial).map(|name| collision_key(&dir, &name)).collect();
        // A file's own reservation does not count as a collision.
        let is_free = |name: &OsStr| {
            with_suffixes(name).all(|name| {
                let key = collision_key(&dir, &name);
                own_keys.contains(&key) || !self.taken.contains(&key)
            })
        };
        // The initial name is kept, unless the server suggests one.
        let start = if suggested.is_none() { vec![initial] } else { Vec::new() };
        for name in start.into_iter().chain(numbered_candidates(&preferred)) {
            let is_generated = suggested.is_some() || name != preferred || source == NameSource::List;
            let is_new = || display_path(&dir, &name).symlink_metadata().is_err();
            if is_free(&name) && (!is_generated || is_new()) {
                self.taken.insert(collision_key(&dir, &name));
                self.settle(id);
                let is_unchanged = !is_generated && self.entries.get(id).is_some_and(|entry| entry.initial == name);
                return (!is_unchanged).then_some(FinalName { name, replace_existing: !is_generated });
            }
        }
        self.settle(id);
        None
    }
}

/// `name`, `name.1`, `name.2` and so on, shortened if the number would exceed the maximum length.
fn numbered_candidates(name: &OsStr) -> impl Iterator<Item = OsString> + use<> {
    let name = name.to_owned();
    (0..=MAX_NUMBER).map(move |number| match number {
        0 => name.clone(),
        number => with_number(&name, number),
    })
}

fn with_number(name: &OsStr, number: u32) -> OsString {
    let suffix = format!(".{number}");
    let max_len = MAX_NAME_LEN.saturating_sub(suffix.len());
    let mut numbered =
        if name.len() > max_len { truncate(&name.to_string_lossy(), max_len).into() } else { name.to_owned() };
    numbered.push(suffix);
    numbered
}

/// A name, and the names that its unfinished file uses.
fn with_suffixes(name: &OsStr) -> impl Iterator<Item = OsString> + '_ {
    [""].iter().chain(&PART_SUFFIXES).map(move |suffix| {
        let mut suffixed = name.to_owned();
        suffixed.push(suffix);
        suffixed
    })
}

/// Equal for paths of the same file, however the directory is written (relative, over symbolic links).
fn collision_key(dir: &Path, name: &OsStr) -> PathBuf {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    // Lower case, because some file systems treat names that differ only in case as equal.
    dir.join(name.to_string_lossy().to_lowercase())
}

/// The path as the user would write it: without a directory if it is the present one.
fn display_path(dir: &Path, name: &OsStr) -> PathBuf {
    if dir == Path::new(".") || dir == Path::new("") { name.into() } else { dir.join(name) }
}

/// Maximum time that a complete file waits for the names of earlier files.
pub(crate) const NAME_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number that is appended to a name.
const MAX_NUMBER: u32 = 99_999;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path, wanted: &[&str]) -> (FileNames, Vec<String>) {
        let mut names = FileNames::default();
        let first = wanted.iter().map(|name| {
            let path = names.add(dir, OsStr::new(name), NameSource::Url);
            path.file_name().unwrap().to_string_lossy().into_owned()
        });
        let first = first.collect();
        (names, first)
    }

    fn assign_name(names: &mut FileNames, id: usize, suggested: Option<&str>) -> String {
        let first = names.entries[id].initial.clone();
        let name = names.assign_final(id, suggested.map(OsStr::new)).map_or(first, |name| name.name);
        name.into_string().unwrap()
    }

    #[test]
    fn equal_names_get_numbers_in_the_order_of_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let (mut names, first) = names(dir.path(), &["a", "a", "b", "a.1", "a"]);
        assert_eq!(first, ["a", "a.1", "b", "a.1.1", "a.2"]);
        // The order in which the files finish does not matter.
        for (id, name) in [(4, "a.2"), (1, "a.1"), (0, "a"), (3, "a.1.1"), (2, "b")] {
            assert_eq!(assign_name(&mut names, id, None), name);
        }
    }

    #[test]
    fn suggested_names_are_distinct_too() {
        let dir = tempfile::tempdir().unwrap();
        let (mut names, first) = names(dir.path(), &["dl", "dl", "report.pdf", "dl"]);
        assert_eq!(first, ["dl", "dl.1", "report.pdf", "dl.2"]);
        assert!(names.is_next(0) && !names.is_next(1));
        assert_eq!(
            assign_name(&mut names, 0, Some("report.pdf")),
            "report.pdf.1",
            "the third is stored as report.pdf"
        );
        assert!(names.is_next(1));
        assert_eq!(assign_name(&mut names, 1, Some("report.pdf")), "report.pdf.2");
        assert_eq!(assign_name(&mut names, 2, None), "report.pdf");
        assert_eq!(assign_name(&mut names, 3, Some("x")), "x");
    }

    #[test]
    fn names_of_unfinished_files_are_not_assigned() {
        let dir = tempfile::tempdir().unwrap();
        let (_, first) = names(dir.path(), &["a", "a.part", "A"]);
        assert_eq!(first, ["a", "a.part.1", "A.1"]);
    }

    #[test]
    fn a_generated_name_replaces_no_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "a.1", "s"] {
            std::fs::write(dir.path().join(name), "old").unwrap();
        }
        let (mut names, _) = names(dir.path(), &["a", "a", "b"]);
        assert_eq!(names.assign_final(0, None), None, "the old file is replaced, as by a single download");
        assert_eq!(assign_name(&mut names, 1, None), "a.2");
        let third = names.assign_final(2, Some(OsStr::new("s"))).unwrap();
        assert_eq!(third, FinalName { name: "s.1".into(), replace_existing: false });
    }

    #[test]
    fn a_name_from_a_list_replaces_no_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "old").unwrap();
        let mut names = FileNames::default();
        for name in ["a", "b"] {
            names.add(dir.path(), OsStr::new(name), NameSource::List);
        }
        let new = |name: &str| Some(FinalName { name: name.into(), replace_existing: false });
        assert_eq!(names.assign_final(0, Some(OsStr::new("s"))), new("a.1"));
        assert_eq!(names.assign_final(1, None), new("b"));
    }

    #[test]
    fn a_long_name_is_shortened_for_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let long = "é".repeat(MAX_NAME_LEN / 2);
        let (_, first) = names(dir.path(), &[&long, &long]);
        assert!(first[1].ends_with(".1") && first[1].len() <= MAX_NAME_LEN, "{}", first[1].len());
    }
}
