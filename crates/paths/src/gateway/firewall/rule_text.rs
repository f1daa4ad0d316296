//! Parses the text output of nft (`nft --handle list ruleset`) for information that its JSON lacks: translations of
//! `xt` statements, by the handle of the rule, and dormant tables.

use std::collections::{BTreeMap, BTreeSet};

/// Texts of the rules, and dormant tables.
#[derive(Debug, Default)]
pub(super) struct RuleTexts<'a> {
    /// Text by table and handle.
    rules: BTreeMap<(&'a str, u64), &'a str>,
    dormant_tables: BTreeSet<&'a str>,
}

impl<'a> RuleTexts<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let (mut texts, mut table) = (Self::default(), "");
        for line in text.lines() {
            if line
                .strip_prefix("\tflags ")
                .is_some_and(|flags| flags.split([',', ' ']).any(|flag| flag == "dormant"))
            {
                texts.dormant_tables.insert(table);
            }
            let Some((line, handle)) = line.rsplit_once(" # handle ") else { continue };
            if let Some(table_name) =
                line.strip_prefix("table ").and_then(|table_name| table_name.strip_suffix(" {"))
            {
                table = table_name;
            } else if let Some(handle) = handle.trim().parse().ok().filter(|_| line.starts_with("\t\t")) {
                texts.rules.insert((table, handle), line.trim());
            }
        }
        texts
    }

    /// The words of a rule; a quoted string is one word.
    pub(super) fn tokens(&self, family: &str, table: &str, handle: u64) -> Vec<&'a str> {
        let table_key = format!("{family} {table}");
        self.rules.get(&(table_key.as_str(), handle)).map(|text| split_tokens(text)).unwrap_or_default()
    }

    pub(super) fn is_dormant(&self, family: &str, table: &str) -> bool {
        self.dormant_tables.contains(format!("{family} {table}").as_str())
    }
}

fn split_tokens(text: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let is_separator = |character: char| {
        is_quoted ^= character == '"';
        character.is_whitespace() && !is_quoted
    };
    text.split(is_separator).filter(|token| !token.is_empty()).collect()
}
