//! The laws of the house, as tests that read manifests and sources.
//!
//! In: this repository's files. Out: the file and line that breaks a law, in words.
//!
//! 1. Crates use each other only along the arrows of `docs/architecture.md`.
//! 2. The rooms of core form a ladder; a room uses only those below it.
//! 3. Core is `no_std` and its dependencies, the indirect ones too, are on a list.
//! 4. `unsafe` is in `sys` alone, in blocks under ten lines.
//! 5. Every source file says at its top what it is for, and none is longer than 800 lines.
//! 6. Clocks, sleeps and sockets are refused by clippy in core and sim.
//! 7. The programs write to standard output and standard error in one place, which escapes text from outside.
//! 8. The module `proto` of the crate `rtp` decides without I/O and without a clock.
//!
//! A build script or a tool of its own was not used: `cargo test` is what everybody runs already. Sources are read as
//! text with comments and strings blanked, not parsed: the laws are about words that stand in the code, and a parser
//! would be the largest dependency of the workspace.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What each crate may use of ours.
const ARROWS: [(&str, &[&str]); 13] = [
    ("core", &[]),
    ("sim", &["core"]),
    ("sys", &[]),
    ("net", &["core", "sys"]),
    ("download", &["core", "sys", "net"]),
    ("proxy", &["core", "sys", "net", "download"]),
    ("paths", &["core", "sys", "net"]),
    ("accel", &["core", "sys", "net"]),
    ("rtp", &["core", "sys"]),
    ("fleet", &["core", "net", "paths"]),
    ("terminal", &["core"]),
    // Its documents' test reads the command line of marline; the program itself runs marline as a process.
    ("lab", &["core", "sim", "sys", "terminal", "marline"]),
    ("cli", &["core", "net", "download", "proxy", "paths", "accel", "rtp", "fleet", "terminal"]),
];

/// The rooms of core from below, each with the rooms that it may use beside its own.
const ROOMS: [(&str, &[&str]); 16] = [
    ("units", &[]),
    ("printable", &[]),
    ("machine", &["units"]),
    ("replay", &["units", "machine"]),
    ("wire", BASE),
    ("link", BASE_AND_WIRE),
    ("predict", BELOW_FEATURES),
    ("energy", BELOW_FEATURES),
    ("fetch", BELOW_FEATURES),
    ("playback", BELOW_FEATURES),
    // Schedules several downloads.
    ("batch", &["units", "machine", "wire", "link", "predict", "energy", "fetch"]),
    // A download that a player drives.
    ("stream", &["units", "machine", "wire", "link", "predict", "energy", "fetch", "playback"]),
    ("paths", BELOW_FEATURES),
    ("assign", BELOW_FEATURES),
    ("link_choice", &["units"]),
    ("accel", BELOW_FEATURES),
];
const BASE: &[&str] = &["units", "machine"];
const BASE_AND_WIRE: &[&str] = &["units", "machine", "wire"];
const BELOW_FEATURES: &[&str] = &["units", "machine", "wire", "link", "predict", "energy"];

/// What core may use of others: values and their text, mathematics, and nothing that knows an operating system.
const CORE_MAY_USE: [&str; 4] = ["thiserror", "bytes", "libm", "serde"];
/// What those bring along: their own halves, and what runs in the compiler only.
const CORE_MAY_BRING: [&str; 7] =
    ["serde_core", "serde_derive", "thiserror-impl", "proc-macro2", "quote", "syn", "unicode-ident"];

/// What is linked into the two programs.
const PROGRAM: [&str; 12] =
    ["core", "sys", "net", "download", "proxy", "paths", "accel", "rtp", "fleet", "terminal", "lab", "cli"];
const LONGEST_FILE: usize = 800;
const LONGEST_UNSAFE_BLOCK: usize = 10;

#[test]
fn crates_use_each_other_only_along_the_arrows() {
    let mut wrong = Vec::new();
    for (name, manifest) in manifests() {
        let Some((_, allowed)) = ARROWS.iter().find(|(krate, _)| *krate == name) else {
            wrong.push(format!("crates/{name}: not in the table of crates"));
            continue;
        };
        for used in dependencies(&manifest) {
            let ours = if used == "marline" { Some("cli") } else { used.strip_prefix("marline-") };
            if let Some(ours) = ours.filter(|ours| !allowed.contains(ours)) {
                wrong.push(format!("crates/{name} must not use {ours}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rooms_of_core_use_only_those_below() {
    let mut wrong = Vec::new();
    let src = root().join("crates/core/src");
    for file in sources().into_iter().filter(|file| file.starts_with(&src)) {
        let inner: Vec<String> =
            file.strip_prefix(&src).unwrap().iter().map(|p| p.to_string_lossy().into()).collect();
        let room = inner[0].trim_end_matches(".rs").to_owned();
        if room == "lib" {
            continue;
        }
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            wrong.push(format!("{}: `{room}` is not in the ladder of rooms", show(&file)));
            continue;
        };
        // How many `super::` lead from this file to the crate's root.
        let depth = inner.len() - usize::from(inner.last().is_some_and(|last| last == "mod.rs"));
        for (line, used) in rooms_named(&code(&read(&file)), depth) {
            if used != room && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{}:{line}: `{room}` must not use `{used}`", show(&file)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn core_stands_on_a_short_list_of_crates() {
    let manifest = manifests().remove("core").unwrap();
    let direct: Vec<String> = table(&manifest, "dependencies").keys().cloned().collect();
    for name in &direct {
        assert!(CORE_MAY_USE.contains(&name.as_str()), "core must not use {name}");
    }
    let lock: toml::Table = read(&root().join("Cargo.lock")).parse().unwrap();
    let mut brings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in lock["package"].as_array().unwrap() {
        let used = package.get("dependencies").and_then(toml::Value::as_array).cloned().unwrap_or_default();
        // "name", or "name version" where there are two.
        let first_word = |v: toml::Value| v.as_str().unwrap().split(' ').next().unwrap().to_owned();
        brings
            .entry(package["name"].as_str().unwrap().into())
            .or_default()
            .extend(used.into_iter().map(first_word));
    }
    let (mut seen, mut open) = (BTreeSet::new(), direct);
    while let Some(name) = open.pop() {
        if seen.insert(name.clone()) {
            let known = CORE_MAY_USE.iter().chain(&CORE_MAY_BRING).any(|allowed| *allowed == name);
            assert!(known, "{name} comes into core through one of its dependencies");
            open.extend(brings.get(&name).cloned().unwrap_or_default());
        }
    }
}

#[test]
fn core_is_built_without_the_standard_library() {
    let src = root().join("crates/core/src");
    assert!(code(&read(&src.join("lib.rs"))).lines().any(|line| line.trim() == "#![no_std]"));
    for file in sources().into_iter().filter(|file| file.starts_with(&src)) {
        // Tests may use std; they stand at the end of a file, or in files of their own.
        let name = file.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
        if name.contains("tests") {
            continue;
        }
        let text = code(&read(&file));
        let production = text.split("#[cfg(test)]").next().unwrap_or_default();
        assert!(!production.contains("extern crate std"), "{}: std in core", show(&file));
    }
}

#[test]
fn decisions_of_the_crate_rtp_are_without_io() {
    let mut wrong = Vec::new();
    let proto = root().join("crates/rtp/src/proto");
    for file in sources().into_iter().filter(|file| file.starts_with(&proto)) {
        let text = code(&read(&file));
        for forbidden in
            ["tokio", "socket2", "marline_sys", "std::net", "std::io", "std::fs", "std::time", "std::thread"]
        {
            for (at, _) in text.match_indices(forbidden) {
                wrong.push(format!("{}:{}: `{forbidden}`", show(&file), line_of(&text, at)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_is_in_sys_alone_and_in_short_blocks() {
    let workspace: toml::Table = read(&root().join("Cargo.toml")).parse().unwrap();
    let lints = &workspace["workspace"]["lints"];
    assert_eq!(lints["rust"]["unsafe_code"].as_str(), Some("forbid"));
    assert!(lints["rust"].get("missing_docs").is_some());
    for lint in ["unwrap_used", "iter_over_hash_type", "allow_attributes_without_reason"] {
        assert!(lints["clippy"].get(lint).is_some(), "the workspace does not set clippy::{lint}");
    }
    for (name, manifest) in manifests() {
        let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace")).is_some();
        assert!(inherits || name == "sys", "crates/{name} does not inherit the workspace's lints");
    }
    let sys = root().join("crates/sys");
    let mut wrong = Vec::new();
    for file in sources() {
        let text = code(&read(&file));
        for (at, _) in words(&text, "unsafe") {
            let line = line_of(&text, at);
            if !file.starts_with(&sys) {
                wrong.push(format!("{}:{line}: unsafe outside sys", show(&file)));
            }
            let length = block(&text[at..]).lines().count();
            if text[at..].trim_start_matches("unsafe").trim_start().starts_with('{')
                && length > LONGEST_UNSAFE_BLOCK
            {
                wrong.push(format!("{}:{line}: {length} lines of unsafe", show(&file)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for_and_is_not_too_long() {
    let mut wrong = Vec::new();
    for file in sources() {
        let text = read(&file);
        let first = text.lines().next().unwrap_or_default();
        if !first.starts_with("//!") || first.trim().len() < "//! a word".len() {
            wrong.push(format!("{}: does not begin with what it is for (`//! …`)", show(&file)));
        }
        if text.lines().count() > LONGEST_FILE {
            wrong.push(format!("{}: {} lines", show(&file), text.lines().count()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn clippy_refuses_clocks_sleeps_and_sockets_where_time_is_virtual() {
    for krate in ["core", "sim"] {
        let path = root().join("crates").join(krate).join("clippy.toml");
        let file: toml::Table = read(&path).parse().unwrap();
        let listed: Vec<&str> = ["disallowed-methods", "disallowed-types"]
            .iter()
            .flat_map(|key| file[*key].as_array().unwrap())
            .map(|entry| {
                assert!(entry.get("reason").is_some(), "{}: an entry without its reason", show(&path));
                entry["path"].as_str().unwrap()
            })
            .collect();
        for banned in [
            "std::time::Instant::now",
            "std::time::SystemTime::now",
            "std::thread::sleep",
            "std::net::TcpStream",
            "std::net::TcpListener",
            "std::net::UdpSocket",
        ] {
            assert!(listed.contains(&banned), "{} does not list {banned}", show(&path));
        }
    }
}

#[test]
fn only_one_place_writes_to_standard_output_and_error() {
    // The escaping writers, and the byte stream of a download (`-o -`).
    let may = [
        "crates/terminal/src/output.rs",
        "crates/cli/src/progress/bars.rs",
        "crates/cli/src/paths/show.rs",
        "crates/download/src/store/mod.rs",
    ];
    let mut wrong = Vec::new();
    for file in sources() {
        let name = show(&file);
        let is_program = PROGRAM.iter().any(|krate| name.starts_with(&format!("crates/{krate}/src/")));
        if !is_program || name.contains("tests") || may.contains(&name.as_str()) {
            continue;
        }
        let text = code(&read(&file));
        let production = text.split("#[cfg(test)]").next().unwrap_or_default();
        for stream in ["stdout()", "stderr()", "println!", "eprint!", "print!"] {
            for (at, _) in production.match_indices(stream) {
                let rest = &production[at + stream.len()..];
                // A child process may be given the stream itself.
                let is_other = ["Store::", ".stdout(io::"].iter().any(|before| production[..at].ends_with(before))
                    || rest.starts_with(".is_terminal()");
                if !is_other && !is_live_test(&name) {
                    wrong.push(format!("{name}:{}: `{stream}` outside the escaping writers", line_of(&text, at)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file that is compiled for tests alone (`#[cfg(test)] mod live;`).
fn is_live_test(name: &str) -> bool {
    let alone =
        ["/live", "_live.rs", "net/src/testing/", "download/src/store/odd.rs", "download/src/store/planted.rs"];
    // The laboratory's live video is no test.
    !name.starts_with("crates/lab/") && alone.iter().any(|part| name.contains(part))
}

#[test]
fn the_readers_of_these_laws_see_what_is_there() {
    let text = "use crate::{units::{A, B}, link};\n// crate::fetch\nlet s = \"crate::accel\"; crate::wire::x();\n";
    let named: Vec<(usize, String)> = rooms_named(&code(text), 1);
    assert_eq!(named, [(1, "units".into()), (1, "link".into()), (3, "wire".into())]);
    assert_eq!(rooms_named("use super::super::fetch::X;", 2), [(1, "fetch".into())]);
    assert_eq!(rooms_named("use super::fetch::X;", 2), []);
    let blanks = |text: &str, blanked: &str| text.replace(blanked, &" ".repeat(blanked.chars().count()));
    for (text, blanked) in [
        ("a /* b /* c */ d */ e", "/* b /* c */ d */"),
        ("x \"y\\\"z\" w", "\"y\\\"z\""),
        ("match c { '\"' => 1 }", "'\"'"),
        ("&'a str", "//"),
        ("r#\"un\"safe\"# x", "r#\"un\"safe\"#"),
        ("r#type", "//"),
    ] {
        assert_eq!(code(text), blanks(text, blanked));
    }
    assert_eq!(words("unsafe_code unsafe {", "unsafe").len(), 1);
}

/// The rooms (or other names) that code takes from the crate's root, with their lines.
fn rooms_named(code: &str, depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let from_root = "super::".repeat(depth);
    for start in ["crate::", from_root.as_str()] {
        for (at, _) in code.match_indices(start) {
            // Part of a longer word or path (`$crate::` apart).
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = &code[at + start.len()..];
            let inner = if rest.starts_with('{') { block(rest).trim_start_matches('{') } else { rest };
            let mut level = 0;
            let mut word = String::new();
            let mut fresh = true;
            for c in inner.chars() {
                match c {
                    '{' => level += 1,
                    '}' => level -= 1,
                    _ => {}
                }
                if (c.is_alphanumeric() || c == '_') && fresh && level == 0 {
                    word.push(c);
                    continue;
                }
                if !word.is_empty() {
                    if word.chars().all(|c| c.is_lowercase() || c == '_') {
                        found.push((line_of(code, at), std::mem::take(&mut word)));
                    }
                    word.clear();
                    fresh = false;
                }
                if !rest.starts_with('{') || level < 0 {
                    break;
                }
                fresh |= c == ',' && level == 0;
            }
        }
    }
    found
}

/// The text with comments, strings and characters blanked; lines and columns stay where they are.
fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    while i < chars.len() {
        let end = match (at(i), at(i + 1)) {
            ('/', '/') => (i..chars.len()).find(|n| at(*n) == '\n').unwrap_or(chars.len()),
            ('/', '*') => {
                let (mut level, mut n) = (0, i);
                while n < chars.len() {
                    match (at(n), at(n + 1)) {
                        ('/', '*') => (level, n) = (level + 1, n + 1),
                        ('*', '/') => (level, n) = (level - 1, n + 1),
                        _ => {}
                    }
                    n += 1;
                    if level == 0 {
                        break;
                    }
                }
                n
            }
            ('r', '"' | '#') if !(i > 0 && (at(i - 1).is_alphanumeric() || at(i - 1) == '_')) => {
                let hashes = chars[i + 1..].iter().take_while(|c| **c == '#').count();
                if at(i + 1 + hashes) == '"' {
                    let close = |n: &usize| at(*n) == '"' && (1..=hashes).all(|h| at(n + h) == '#');
                    (i + 2 + hashes..chars.len()).find(close).map_or(chars.len(), |n| n + 1 + hashes)
                } else {
                    i
                }
            }
            ('"', _) => {
                let mut n = i + 1;
                while n < chars.len() && at(n) != '"' {
                    n += if at(n) == '\\' { 2 } else { 1 };
                }
                n + 1
            }
            // A character; a lifetime has no second quote.
            ('\'', '\\') => (i + 3..chars.len()).find(|n| at(*n) == '\'').map_or(chars.len(), |n| n + 1),
            ('\'', _) if at(i + 2) == '\'' => i + 3,
            _ => i,
        };
        if end == i {
            out.push(chars[i]);
            i += 1;
        } else {
            let end = end.min(chars.len());
            out.extend(chars[i..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            i = end;
        }
    }
    out
}

/// From the start to the bracket that closes the first one.
fn block(code: &str) -> &str {
    let mut level = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' => level += 1,
            '}' if level <= 1 => return &code[..=at],
            '}' => level -= 1,
            _ => {}
        }
    }
    code
}

/// Where `word` stands as a word of its own.
fn words<'a>(code: &'a str, word: &'a str) -> Vec<(usize, &'a str)> {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(word)
        .filter(|(at, _)| !part(code[..*at].chars().next_back()) && !part(code[at + word.len()..].chars().next()))
        .collect()
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Every manifest under `crates`, by folder.
fn manifests() -> BTreeMap<String, toml::Table> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let manifest = path.join("Cargo.toml");
        if manifest.is_file() {
            found.insert(path.file_name().unwrap().to_string_lossy().into(), read(&manifest).parse().unwrap());
        }
    }
    assert!(found.len() >= 6, "where are the crates?");
    found
}

/// What a manifest uses, for whatever purpose and target.
fn dependencies(manifest: &toml::Table) -> BTreeSet<String> {
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

fn table(manifest: &toml::Table, key: &str) -> toml::Table {
    manifest.get(key).and_then(toml::Value::as_table).cloned().unwrap_or_default()
}

/// Every Rust file of the repository, build products apart.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join("crates"), root().join("fuzz")];
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(found.len() > 20, "where are the sources?");
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", show(path)))
}

fn show(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
