//! Retired words: words without a standard meaning in networking that earlier versions of the code used as names. Each has a term that
//! every network engineer knows, and the test names it.
//!
//! The test reads identifiers, comments and strings of all sources, and the documentation. Words that have a standard meaning elsewhere
//! (`line`, `answer`, `view`) are left to review.

use crate::repository::{read, root, show, sources};

/// Each retired word in all its forms, and the terms to use.
const RETIRED: &[(&[&str], &str)] = &[
    (&["anew"], "again"),
    (&["vain"], "without effect, wasted"),
    (&["bright", "brightness"], "recovered, up"),
    (&["darkness", "darkest"], "outage"),
    (&["deaf"], "unresponsive"),
    (&["dear", "dearer", "dearest"], "costly, expensive"),
    (&["debt", "debts", "indebted"], "data that was acknowledged early"),
    (&["desk", "desks"], "driver, listener, coordinator"),
    (&["ear", "ears"], "listener, control socket"),
    (&["errand", "errands"], "request, task"),
    (&["frost", "thaw", "thaws", "thawed", "thawing"], "zero-window freeze, unfreeze"),
    (&["glance", "glances", "glanced"], "sample, poll"),
    (&["guests"], "admission control, client"),
    (&["heard", "unheard", "overheard"], "received, last seen"),
    (&["hider", "hiders"], "early ACK"),
    (&["keeper", "keepers"], "store, owner"),
    (&["kick", "kicks", "kicked", "kicking"], "restart ACK"),
    (&["lane", "lanes"], "connection, link"),
    (&["owed", "owes", "owing", "unowed"], "acknowledged early, outstanding"),
    (&["road", "roads"], "path, link, tunnel"),
    (&["rung", "rungs", "ladder", "ladders"], "level, step"),
    (&["told", "untold", "retold"], "reported, notified, configured"),
    (&["unasked"], "unsolicited, unused"),
    (&["whereabouts"], "location, address"),
    (&["whither", "whence", "hither", "thither"], "destination, source"),
    (&["somebody", "whoever"], "a process, any peer"),
];

/// Areas whose language is not revised yet; no other may use a retired word.
const PENDING: &[&str] = &[
    // The list itself.
    "crates/cli/tests/architecture/words.rs",
];

#[test]
fn identifiers_comments_and_documentation_use_no_retired_words() {
    let mut files = sources();
    files.push(root().join("README.md"));
    files.extend(std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs" || extension == "md"));
    // This file has the words themselves.
    files.retain(|file| !file.ends_with("tests/architecture/words.rs"));
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !PENDING.iter().any(|area| show(file).starts_with(area))) {
        for (number, line) in read(file).lines().enumerate() {
            // Old names in committed evidence.
            if line.contains("alias = \"") {
                continue;
            }
            for word in words(line) {
                if let Some((_, instead)) = RETIRED.iter().find(|(retired, _)| retired.contains(&word.as_str())) {
                    wrong.push(format!("{}:{}: `{word}`: write {instead}", show(file), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} retired words\n{}", wrong.len(), wrong.join("\n"));
}

/// The words of a line in lower case: identifiers are divided at underscores and at capital letters.
fn words(line: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut before = ' ';
    for c in line.chars() {
        if !c.is_alphabetic() || (c.is_uppercase() && before.is_lowercase()) {
            all.push(String::new());
        }
        if c.is_alphabetic() {
            all.last_mut().unwrap().extend(c.to_lowercase());
        }
        before = c;
    }
    all.retain(|word| !word.is_empty());
    all
}

#[test]
fn identifiers_are_divided_into_words() {
    assert_eq!(
        words("let road_of = RoadMap::KickOff; // told"),
        ["let", "road", "of", "road", "map", "kick", "off", "told"]
    );
}
