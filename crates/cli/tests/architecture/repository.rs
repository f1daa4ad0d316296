//! What the tests read: manifests, sources and the table of crates in the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", show(path)))
}

/// A path as it is printed: relative to the root of the repository.
pub(crate) fn show(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Every manifest under `crates`, by the name of its folder.
pub(crate) fn manifests() -> BTreeMap<String, toml::Table> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let manifest = path.join("Cargo.toml");
        if manifest.is_file() {
            found.insert(path.file_name().unwrap().to_string_lossy().into(), read(&manifest).parse().unwrap());
        }
    }
    assert!(found.len() >= 6, "crates/ has fewer crates than expected");
    found
}

/// The dependencies of a manifest, for any purpose and target.
pub(crate) fn dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let mut tables = vec![manifest.clone()];
    tables.extend(table(manifest, "target").into_iter().filter_map(|(_, v)| v.as_table().cloned()));
    let mut used = BTreeSet::new();
    for manifest in &tables {
        for key in ["dependencies", "dev-dependencies", "build-dependencies"] {
            used.extend(table(manifest, key).keys().cloned());
        }
    }
    used
}

pub(crate) fn table(manifest: &toml::Table, key: &str) -> toml::Table {
    manifest.get(key).and_then(toml::Value::as_table).cloned().unwrap_or_default()
}

/// The table of crates in `docs/architecture.md`: each crate with those that it may depend on. The crate is the first cell in
/// backquotes, its dependencies are the names in the last cell.
pub(crate) fn allowed_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let page = read(&root().join("docs/architecture.md"));
    let rows = page.lines().skip_while(|line| !(line.contains("| crate |") && line.contains("may depend on")));
    let mut found = BTreeMap::new();
    for row in rows.skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells.iter().find_map(|cell| cell.strip_prefix('`')?.strip_suffix('`'));
        let name = name.unwrap_or_else(|| panic!("docs/architecture.md: no crate in {row}"));
        let allowed = cells.last().unwrap().split(',').map(|name| name.trim().trim_matches('`').to_owned());
        found.insert(name.to_owned(), allowed.filter(|name| name != "–").collect());
    }
    assert!(found.len() >= 6, "docs/architecture.md: the table of crates is missing");
    found
}

/// Every Rust file of the repository, without build products.
pub(crate) fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join("crates"), root().join("fuzz")];
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(found.len() > 20, "crates/ has fewer sources than expected");
    found
}
