//! What the text that nft prints (`nft --handle list ruleset`) tells beyond its JSON: translations of what nftables has no expression for, by
//! the rule's handle, and which tables are dormant.

use std::collections::{BTreeMap, BTreeSet};

/// The text of each rule.
#[derive(Debug, Default)]
pub(super) struct Texts<'a> {
    /// By table and handle.
    rules: BTreeMap<(&'a str, u64), &'a str>,
    dormant: BTreeSet<&'a str>,
}

impl<'a> Texts<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let (mut all, mut table) = (Self::default(), "");
        for line in text.lines() {
            if line
                .strip_prefix("\tflags ")
                .is_some_and(|flags| flags.split([',', ' ']).any(|flag| flag == "dormant"))
            {
                all.dormant.insert(table);
            }
            let Some((line, handle)) = line.rsplit_once(" # handle ") else { continue };
            if let Some(rest) = line.strip_prefix("table ").and_then(|rest| rest.strip_suffix(" {")) {
                table = rest;
            } else if let Some(handle) = handle.trim().parse().ok().filter(|_| line.starts_with("\t\t")) {
                all.rules.insert((table, handle), line.trim());
            }
        }
        all
    }

    /// The words of a rule; a quoted string is one.
    pub(super) fn words(&self, family: &str, table: &str, handle: u64) -> Vec<&'a str> {
        let place = format!("{family} {table}");
        self.rules.get(&(place.as_str(), handle)).map(|text| words(text)).unwrap_or_default()
    }

    pub(super) fn is_dormant(&self, family: &str, table: &str) -> bool {
        self.dormant.contains(format!("{family} {table}").as_str())
    }
}

fn words(text: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let ends = |letter: char| {
        is_quoted ^= letter == '"';
        letter.is_whitespace() && !is_quoted
    };
    text.split(ends).filter(|word| !word.is_empty()).collect()
}
