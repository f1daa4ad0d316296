//! The rules of the architecture, as tests that read manifests and sources.
//!
//! 1. Crates depend on each other only as the table in `docs/architecture.md` allows.
//! 2. No module imports, directly or through others, a module that imports it.
//! 3. `core` is `no_std`, and its dependencies, indirect ones included, are on a short list.
//! 4. `unsafe` appears in `sys` only, in blocks of at most ten lines.
//! 5. Every source file begins with module documentation and has at most 800 lines.
//! 6. Clippy rejects clocks, sleeps and sockets in `core` and `sim`.
//! 7. The programs write to standard output and standard error in one place, which escapes text from outside.
//! 8. The module `proto` of the crate `rtp` decides without I/O and without a clock.
//! 9. Comments, identifiers and messages do not use retired words (`words.rs`).
//!
//! These are tests and not a build script or a tool of their own, because every contributor runs `cargo test`. Each test collects all
//! violations before it fails and prints file, line and rule.
#![allow(clippy::unwrap_used, reason = "a missing file or an unreadable manifest fails the test")]

mod modules;
mod repository;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use modules::Crate;
use repository::{allowed_dependencies, dependencies, manifests, read, root, show, sources, table};

/// Crates that `core` may use: values and their text, mathematics, nothing that knows an operating system.
const CORE_MAY_USE: [&str; 5] = ["thiserror", "bytes", "libm", "serde", "httparse"];
/// Dependencies of those: their own parts, and what runs in the compiler only.
const CORE_TRANSITIVE: [&str; 7] =
    ["serde_core", "serde_derive", "thiserror-impl", "proc-macro2", "quote", "syn", "unicode-ident"];

/// Crates that are linked into one of the two programs.
const LINKED: [&str; 12] =
    ["core", "sys", "net", "download", "proxy", "paths", "accel", "rtp", "fleet", "terminal", "lab", "cli"];
/// Files that may write to standard output and error: the escaping writers, and the byte stream of a download (`-o -`).
const WRITERS: [&str; 4] = [
    "crates/terminal/src/output.rs",
    "crates/cli/src/progress/bars.rs",
    "crates/terminal/src/screen.rs",
    "crates/download/src/store/mod.rs",
];
const LONGEST_FILE: usize = 800;
const LONGEST_UNSAFE_BLOCK: usize = 10;

#[test]
fn crates_depend_on_each_other_as_the_documentation_says() {
    let allowed = allowed_dependencies();
    let mut wrong = Vec::new();
    for (name, manifest) in manifests() {
        let Some(allowed) = allowed.get(&name) else {
            wrong.push(format!("crates/{name}: not in the table of docs/architecture.md"));
            continue;
        };
        for used in dependencies(&manifest) {
            let dependency = if used == "marline" { Some("cli") } else { used.strip_prefix("marline-") };
            if let Some(dependency) = dependency.filter(|dependency| !allowed.contains(*dependency)) {
                wrong.push(format!("crates/{name} must not depend on {dependency} (docs/architecture.md)"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_modules_import_each_other_in_a_cycle() {
    let mut wrong = Vec::new();
    for (name, krate) in crates() {
        for cycle in krate.cycles() {
            let modules: Vec<String> = cycle.modules.iter().map(|path| path.join("::")).collect();
            wrong.push(format!("{name}: cycle of {}", modules.join(", ")));
            for import in cycle.imports {
                let (from, to) = (import.from.join("::"), import.to.join("::"));
                wrong.push(format!("  {}:{}: {from} -> {to} ({})", show(&import.file), import.line, import.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn core_depends_on_a_short_list_of_crates() {
    let manifest = manifests().remove("core").unwrap();
    let direct: Vec<String> = table(&manifest, "dependencies").keys().cloned().collect();
    for name in &direct {
        assert!(CORE_MAY_USE.contains(&name.as_str()), "core must not use {name}");
    }
    let lock: toml::Table = read(&root().join("Cargo.lock")).parse().unwrap();
    let mut depends_on: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in lock["package"].as_array().unwrap() {
        let used = package.get("dependencies").and_then(toml::Value::as_array).cloned().unwrap_or_default();
        // Cargo writes "name", or "name version" where the lock file has two versions.
        let name_only = |v: toml::Value| v.as_str().unwrap().split(' ').next().unwrap().to_owned();
        depends_on
            .entry(package["name"].as_str().unwrap().into())
            .or_default()
            .extend(used.into_iter().map(name_only));
    }
    let (mut visited, mut open) = (BTreeSet::new(), direct);
    while let Some(name) = open.pop() {
        if visited.insert(name.clone()) {
            let known = CORE_MAY_USE.iter().chain(&CORE_TRANSITIVE).any(|allowed| *allowed == name);
            assert!(known, "core depends on {name} through one of its dependencies");
            open.extend(depends_on.get(&name).cloned().unwrap_or_default());
        }
    }
}

#[test]
fn core_does_not_use_the_standard_library() {
    let core = read(&root().join("crates/core/src/lib.rs"));
    let is_no_std =
        syn::parse_file(&core).unwrap().attrs.iter().any(|attribute| attribute.path().is_ident("no_std"));
    assert!(is_no_std, "crates/core/src/lib.rs: `#![no_std]` is missing");
    for module in crate_named("core").modules().values() {
        let uses_std = flat(&module.tokens).windows(3).any(|at| texts(at) == ["extern", "crate", "std"]);
        assert!(!uses_std, "{}: core must not use std", show(&module.file));
    }
}

#[test]
fn the_decisions_of_rtp_use_no_io_and_no_clock() {
    let rtp = crate_named("rtp");
    let mut wrong = Vec::new();
    for (_, module) in rtp.modules().iter().filter(|(path, _)| path.first().is_some_and(|first| first == "proto")) {
        let tokens = flat(&module.tokens);
        for (at, token) in tokens.iter().enumerate() {
            let TokenTree::Ident(ident) = token else { continue };
            let is_std = ident == "std"
                && tokens.get(at + 3).is_some_and(|part| {
                    ["net", "io", "fs", "time", "thread"].iter().any(|forbidden| part.to_string() == *forbidden)
                });
            if is_std || ["tokio", "socket2", "marline_sys"].iter().any(|forbidden| ident == forbidden) {
                wrong.push(format!("{}:{}: `{ident}`", show(&module.file), ident.span().start().line));
            }
        }
    }
    assert!(!rtp.modules().is_empty() && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_is_in_sys_only_and_in_short_blocks() {
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
        let tokens: TokenStream = read(&file).parse().unwrap();
        for pair in flat(&tokens).windows(2) {
            let TokenTree::Ident(keyword) = &pair[0] else { continue };
            if keyword != "unsafe" {
                continue;
            }
            let line = keyword.span().start().line;
            if !file.starts_with(&sys) {
                wrong.push(format!("{}:{line}: unsafe code outside sys", show(&file)));
            }
            if let TokenTree::Group(block) = &pair[1]
                && block.delimiter() == Delimiter::Brace
            {
                let lines = block.span_close().end().line - block.span_open().start().line + 1;
                if lines > LONGEST_UNSAFE_BLOCK {
                    wrong.push(format!("{}:{line}: an unsafe block of {lines} lines", show(&file)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_begins_with_documentation_and_is_not_too_long() {
    let mut wrong = Vec::new();
    for file in sources() {
        let text = read(&file);
        let first = text.lines().next().unwrap_or_default();
        if !first.starts_with("//!") || first.trim().len() < "//! a word".len() {
            wrong.push(format!("{}: does not begin with module documentation (`//! …`)", show(&file)));
        }
        if text.lines().count() > LONGEST_FILE {
            wrong.push(format!("{}: {} lines, more than {LONGEST_FILE}", show(&file), text.lines().count()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn clippy_rejects_clocks_sleeps_and_sockets_where_time_is_virtual() {
    for krate in ["core", "sim"] {
        let path = root().join("crates").join(krate).join("clippy.toml");
        let file: toml::Table = read(&path).parse().unwrap();
        let listed: Vec<&str> = ["disallowed-methods", "disallowed-types"]
            .iter()
            .flat_map(|key| file[*key].as_array().unwrap())
            .map(|entry| {
                assert!(entry.get("reason").is_some(), "{}: an entry without a reason", show(&path));
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
fn only_the_escaping_writers_use_standard_output_and_error() {
    let mut wrong = Vec::new();
    for (_, krate) in crates().into_iter().filter(|(name, _)| LINKED.contains(&name.as_str())) {
        for module in krate.modules().values() {
            let name = show(&module.file);
            if WRITERS.contains(&name.as_str()) {
                continue;
            }
            let tokens = flat(&module.tokens);
            for (at, token) in tokens.iter().enumerate() {
                let TokenTree::Ident(ident) = token else { continue };
                let next = tokens[at + 1..].iter().take(4).map(ToString::to_string).collect::<Vec<_>>();
                let before = tokens[..at].iter().rev().take(5).map(ToString::to_string).collect::<Vec<_>>();
                let is_macro = ["print", "println", "eprint", "eprintln"].iter().any(|name| ident == name);
                let is_stream = ident == "stdout" || ident == "stderr";
                let writes = if is_macro {
                    next.first().is_some_and(|next| next == "!")
                } else {
                    // A stream may be asked whether it is a terminal, and be passed to a child process.
                    let is_asked = next.get(1).is_some_and(|next| next == ".")
                        && next.get(2).is_some_and(|next| next == "is_terminal");
                    let is_passed = before.len() == 5 && before[2] == "io" && before[3].starts_with('(');
                    let is_method = before.first().is_some_and(|before| before == ".");
                    let is_store = before.len() >= 3 && before[2] == "Store";
                    is_stream
                        && next.first().is_some_and(|next| next == "()")
                        && !is_asked
                        && !is_passed
                        && !is_method
                        && !is_store
                };
                if writes {
                    wrong.push(format!(
                        "{name}:{}: `{ident}` outside the escaping writers",
                        ident.span().start().line
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All crates of the workspace, by the name of their folder.
fn crates() -> Vec<(String, Crate)> {
    manifests().into_keys().map(|name| (name.clone(), crate_named(&name))).collect()
}

fn crate_named(name: &str) -> Crate {
    let src = root().join("crates").join(name).join("src");
    let lib = src.join("lib.rs");
    Crate::read(&if lib.is_file() { lib } else { src.join("main.rs") })
}

/// The tokens in their order. A group comes before its content.
fn flat(tokens: &TokenStream) -> Vec<TokenTree> {
    let mut all = Vec::new();
    for token in tokens.clone() {
        all.push(token.clone());
        if let TokenTree::Group(group) = token {
            all.extend(flat(&group.stream()));
        }
    }
    all
}

fn texts(tokens: &[TokenTree]) -> Vec<String> {
    tokens.iter().map(ToString::to_string).collect()
}
