//! Matches and targets of iptables-nft that nftables has no expression for (`xt`).
//!
//! JSON has their names alone, from nft 1.0.6 on, and not even these before. The text that nft prints translates some of them: the state of
//! a connection and the sort of an address are taken from there, by the rule's handle. The others hold for some packets, or may hold.

use serde_json::{Value, json};

use super::ruleset::{Statement, Verdict};

/// What an `xt` means. `words` are those of its rule, `is_target` says that it stands behind the counter, where iptables puts targets, and
/// `count` how many the rule has. None: nothing.
pub(super) fn statement(body: &Value, words: &[&str], is_target: bool, count: usize) -> Option<Statement> {
    let text = |field| body.get(field).and_then(Value::as_str);
    let is_target = text("type").map_or(is_target, |kind| kind == "target");
    match (is_target, text("name")) {
        (true, Some("REJECT")) => Some(Statement::Verdict(Verdict::Drop)),
        (true, Some("NFQUEUE" | "QUEUE")) => Some(Statement::Verdict(Verdict::Unknown)),
        (true, None) if words.contains(&"reject") => Some(Statement::Verdict(Verdict::Drop)),
        (true, None) if words.contains(&"queue") => Some(Statement::Verdict(Verdict::Unknown)),
        // LOG, MARK, TCPMSS and the like.
        (true, _) => None,
        (false, Some("comment")) => None,
        (false, Some("conntrack" | "state")) => Some(state(words).unwrap_or(Statement::Unknown)),
        (false, Some("addrtype")) => Some(address(words).unwrap_or(Statement::Unknown)),
        (false, None) if count == 1 => Some(state(words).or_else(|| address(words)).unwrap_or(Statement::Unknown)),
        (false, Some("tcp" | "udp" | "multiport" | "icmp" | "icmp6" | "sctp" | "dccp")) => Some(Statement::Partly),
        (false, _) => Some(Statement::Unknown),
    }
}

/// `ct state related,established`, where it is all that is said of connections.
fn state(words: &[&str]) -> Option<Statement> {
    let at = only(words, "ct")?;
    let (negated, value) = value(words.get(at.saturating_add(1)..)?, &["state"])?;
    let states: Vec<&str> = value.split(',').collect();
    Some(Statement::Match { left: json!({ "ct": { "key": "state" } }), negated, right: json!(states) })
}

/// `fib daddr type local`, where it is all that is said of the sorts of addresses.
fn address(words: &[&str]) -> Option<Statement> {
    let at = only(words, "fib")?;
    let (negated, value) = value(words.get(at.saturating_add(1)..)?, &["daddr", "type"])?;
    let left = json!({ "fib": { "result": "type", "flags": ["daddr"] } });
    Some(Statement::Match { left, negated, right: json!(value) })
}

/// Where the word is, if it is there once.
fn only(words: &[&str], word: &str) -> Option<usize> {
    let mut places = words.iter().enumerate().filter(|(_, other)| **other == word).map(|(at, _)| at);
    places.next().filter(|_| places.next().is_none())
}

/// What follows these words, and whether it is negated.
fn value<'a>(words: &[&'a str], after: &[&'static str]) -> Option<(bool, &'a str)> {
    match words.strip_prefix(after)? {
        ["!" | "!=", value, ..] => Some((true, value)),
        [value, ..] if !value.starts_with('{') => Some((false, value)),
        _ => None,
    }
}
