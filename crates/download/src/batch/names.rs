//! What the files of a batch are called: each name once, whatever order they finish in.
//!
//! 1. A file that the user did not name is called by Content-Disposition or the URL. If another file of the batch has
//!    that name already, it becomes `name.1`, `name.2` and so on, as wget does. The order of the list decides.
//! 2. Until its response is known, a file is stored as `name.part` under the name of its URL. That name is distinct too,
//!    so that the next run of the same batch finds it.
//! 3. A final name is given when the file's response is known and all earlier files of the list have got theirs or have
//!    ended. A file that is complete waits for them, but not longer than [`PATIENCE`].
//! 4. A name that the user did not choose (a number, a server's suggestion, a name from a list or a Metalink file) never
//!    replaces a file that is not the one of an earlier run of the same URL.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::store::{NAME_MAX, RESERVED};

/// The names of a batch.
#[derive(Debug, Default)]
pub(crate) struct Names {
    entries: Vec<Entry>,
    /// Everything that files of the batch are called, or are stored as meanwhile.
    taken: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct Entry {
    /// Where it goes; none: to no file.
    dir: Option<PathBuf>,
    /// As the user or the URL calls it.
    wanted: OsString,
    /// As it is stored until its response is known.
    first: OsString,
    naming: Naming,
    settled: bool,
}

/// Where the name of a file comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Naming {
    /// The user chose it.
    User,
    /// A list or a Metalink file has it: a server's suggestion does not change it.
    List,
    /// The URL ends with it.
    Url,
}

/// How a finished file is to be called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Final {
    pub(crate) name: OsString,
    /// A file of that name is replaced.
    pub(crate) replaces: bool,
}

impl Names {
    /// A file that goes to no place of which there could be two.
    pub(crate) fn add_none(&mut self) {
        let (wanted, first) = Default::default();
        self.entries.push(Entry { dir: None, wanted, first, naming: Naming::User, settled: true });
    }

    /// The next file of the list: `earlier` is what an earlier run called it. Gives the path at which it begins.
    pub(crate) fn add(&mut self, dir: &Path, wanted: &OsStr, naming: Naming, earlier: Option<&OsStr>) -> PathBuf {
        let free = |name: &OsStr| endings(name).all(|name| !self.taken.contains(&key(dir, &name)));
        let first = match earlier.filter(|name| naming == Naming::Url && free(name)) {
            Some(name) => name.to_owned(),
            None => candidates(wanted).find(|name| free(name)).unwrap_or_else(|| wanted.to_owned()),
        };
        self.taken.extend(endings(&first).map(|name| key(dir, &name)));
        self.entries.push(Entry {
            dir: Some(dir.to_owned()),
            wanted: wanted.to_owned(),
            first: first.clone(),
            naming,
            settled: false,
        });
        joined(dir, &first)
    }

    /// A file has its final name, or will not get one.
    pub(crate) fn settle(&mut self, id: usize) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.settled = true;
        }
    }

    /// Whether all files before this one have their names.
    pub(crate) fn is_next(&self, id: usize) -> bool {
        self.entries.iter().take(id).all(|entry| entry.settled)
    }

    /// The final name of a file; none: the one that it has. `suggested` is what the server calls it, `ours` says whether a file that is there is an
    /// earlier run's of the same URL.
    pub(crate) fn claim(
        &mut self,
        id: usize,
        suggested: Option<&OsStr>,
        ours: impl Fn(&Path) -> bool,
    ) -> Option<Final> {
        let entry = self.entries.get(id)?;
        let dir = entry.dir.clone()?;
        let (first, naming) = (entry.first.clone(), entry.naming);
        let suggested = suggested.filter(|_| naming == Naming::Url);
        let wanted = suggested.map_or_else(|| entry.wanted.clone(), OsStr::to_owned);
        let own: Vec<PathBuf> = endings(&first).map(|name| key(&dir, &name)).collect();
        let free = |name: &OsStr| {
            endings(name).all(|name| {
                let key = key(&dir, &name);
                own.contains(&key) || !self.taken.contains(&key)
            })
        };
        // What was chosen at the beginning stays, unless the server has another name for it.
        let start = if suggested.is_none() { vec![first] } else { Vec::new() };
        for name in start.into_iter().chain(candidates(&wanted)) {
            let invented = suggested.is_some() || name != wanted || naming == Naming::List;
            let path = joined(&dir, &name);
            let replaces = !invented || ours(&path);
            if free(&name) && (replaces || path.symlink_metadata().is_err()) {
                self.taken.insert(key(&dir, &name));
                self.settle(id);
                let same = replaces && self.entries.get(id).is_some_and(|entry| entry.first == name);
                return (!same).then_some(Final { name, replaces });
            }
        }
        self.settle(id);
        None
    }
}

/// `name`, `name.1`, `name.2`, shortened where there is no room for the number.
fn candidates(name: &OsStr) -> impl Iterator<Item = OsString> + use<> {
    let name = name.to_owned();
    (0..MOST).map(move |number| match number {
        0 => name.clone(),
        number => numbered(&name, number),
    })
}

fn numbered(name: &OsStr, number: u32) -> OsString {
    let ending = format!(".{number}");
    let text = name.to_string_lossy();
    let room = NAME_MAX.saturating_sub(ending.len());
    let mut numbered = if name.len() > room {
        let mut end = room;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        OsString::from(&text[..end])
    } else {
        name.to_owned()
    };
    numbered.push(ending);
    numbered
}

/// A name, and those that the unfinished file has meanwhile.
fn endings(name: &OsStr) -> impl Iterator<Item = OsString> + '_ {
    [""].iter().chain(&RESERVED).map(move |ending| {
        let mut with = name.to_owned();
        with.push(ending);
        with
    })
}

/// The same for the same place, however the directory is written.
fn key(dir: &Path, name: &OsStr) -> PathBuf {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    // File systems that fold case would make one file of two.
    dir.join(name.to_string_lossy().to_lowercase())
}

/// As the user would write it: nothing stands before a file in the present directory.
fn joined(dir: &Path, name: &OsStr) -> PathBuf {
    if dir == Path::new(".") || dir == Path::new("") { name.into() } else { dir.join(name) }
}

/// How long a complete file waits for the names of earlier ones.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// More files of one name than this are not told apart.
const MOST: u32 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path, wanted: &[&str]) -> (Names, Vec<String>) {
        let mut names = Names::default();
        let first = wanted.iter().map(|name| {
            let path = names.add(dir, OsStr::new(name), Naming::Url, None);
            path.file_name().unwrap().to_string_lossy().into_owned()
        });
        let first = first.collect();
        (names, first)
    }

    fn claim(names: &mut Names, id: usize, suggested: Option<&str>) -> String {
        let first = names.entries[id].first.clone();
        let name = names.claim(id, suggested.map(OsStr::new), |_| false).map_or(first, |name| name.name);
        name.into_string().unwrap()
    }

    #[test]
    fn equal_names_get_numbers_in_the_order_of_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let (mut names, first) = names(dir.path(), &["a", "a", "b", "a.1", "a"]);
        assert_eq!(first, ["a", "a.1", "b", "a.1.1", "a.2"]);
        // Whatever finishes first.
        for (id, name) in [(4, "a.2"), (1, "a.1"), (0, "a"), (3, "a.1.1"), (2, "b")] {
            assert_eq!(claim(&mut names, id, None), name);
        }
    }

    #[test]
    fn suggested_names_are_distinct_too() {
        let dir = tempfile::tempdir().unwrap();
        let (mut names, first) = names(dir.path(), &["dl", "dl", "report.pdf", "dl"]);
        assert_eq!(first, ["dl", "dl.1", "report.pdf", "dl.2"]);
        assert!(names.is_next(0) && !names.is_next(1));
        assert_eq!(claim(&mut names, 0, Some("report.pdf")), "report.pdf.1", "the third is stored as report.pdf");
        assert!(names.is_next(1));
        assert_eq!(claim(&mut names, 1, Some("report.pdf")), "report.pdf.2");
        assert_eq!(claim(&mut names, 2, None), "report.pdf");
        assert_eq!(claim(&mut names, 3, Some("x")), "x");
    }

    #[test]
    fn names_of_unfinished_files_are_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let (_, first) = names(dir.path(), &["a", "a.part", "A"]);
        assert_eq!(first, ["a", "a.part.1", "A.1"]);
    }

    #[test]
    fn an_invented_name_replaces_nothing_but_its_own_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "a.1", "s"] {
            std::fs::write(dir.path().join(name), "old").unwrap();
        }
        let (mut names, _) = names(dir.path(), &["a", "a", "b"]);
        assert_eq!(names.claim(0, None, |_| false), None, "it replaces the old one, as a single download does");
        assert_eq!(claim(&mut names, 1, None), "a.2");
        let third = names.claim(2, Some(OsStr::new("s")), |path| path.ends_with("s")).unwrap();
        assert_eq!(third, Final { name: "s".into(), replaces: true });
    }

    #[test]
    fn a_name_from_a_list_replaces_no_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "old").unwrap();
        let mut names = Names::default();
        for name in ["a", "b"] {
            names.add(dir.path(), OsStr::new(name), Naming::List, None);
        }
        let new = |name: &str| Some(Final { name: name.into(), replaces: false });
        assert_eq!(names.claim(0, Some(OsStr::new("s")), |_| false), new("a.1"));
        assert_eq!(names.claim(1, None, |_| false), new("b"));
    }

    #[test]
    fn an_earlier_runs_name_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut names = Names::default();
        let path = names.add(dir.path(), OsStr::new("a"), Naming::Url, Some(OsStr::new("a.1")));
        assert!(path.ends_with("a.1"));
        assert!(names.add(dir.path(), OsStr::new("a"), Naming::Url, Some(OsStr::new("a.1"))).ends_with("a"));
    }

    #[test]
    fn a_long_name_makes_room_for_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let long = "é".repeat(NAME_MAX / 2);
        let (_, first) = names(dir.path(), &[&long, &long]);
        assert!(first[1].ends_with(".1") && first[1].len() <= NAME_MAX, "{}", first[1].len());
    }
}
