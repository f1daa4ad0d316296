//! Matches and targets of iptables-nft that nftables has no expression for (`xt`).
//!
//! JSON has their names alone, from nft 1.0.6 on, and not even these before. The text that nft prints translates some of them: the state of
//! a connection and the sort of an address are taken from there, by the rule's handle. The others hold for some packets, or may hold.

use serde_json::{Value, json};

use super::ruleset::{Statement, Verdict};

/// What an `xt` means. `words` are those of its rule, `is_target` says that it stands behind the counter, where iptables puts targets, and
/// `count` how many the rule has. None: nothing.
pub(super) fn xt_statement(body: &Value, tokens: &[&str], is_target: bool, xt_count: usize) -> Option<Statement> {
    let text = |field| body.get(field).and_then(Value::as_str);
    let is_target = text("type").map_or(is_target, |kind| kind == "target");
    match (is_target, text("name")) {
        (true, Some("REJECT")) => Some(Statement::Verdict(Verdict::Drop)),
        (true, Some("NFQUEUE" | "QUEUE")) => Some(Statement::Verdict(Verdict::Unknown)),
        (true, None) if tokens.contains(&"reject") => Some(Statement::Verdict(Verdict::Drop)),
        (true, None) if tokens.contains(&"queue") => Some(Statement::Verdict(Verdict::Unknown)),
        // LOG, MARK, TCPMSS and the like.
        (true, _) => None,
        (false, Some("comment")) => None,
        (false, Some("conntrack" | "state")) => Some(conntrack_state(tokens).unwrap_or(Statement::UnknownMatch)),
        (false, Some("addrtype")) => Some(address_type(tokens).unwrap_or(Statement::UnknownMatch)),
        (false, None) if xt_count == 1 => {
            Some(conntrack_state(tokens).or_else(|| address_type(tokens)).unwrap_or(Statement::UnknownMatch))
        }
        (false, Some("tcp" | "udp" | "multiport" | "icmp" | "icmp6" | "sctp" | "dccp")) => {
            Some(Statement::SometimesMatch)
        }
        (false, _) => Some(Statement::UnknownMatch),
    }
}

/// `ct state related,established`, where it is all that is said of connections.
fn conntrack_state(tokens: &[&str]) -> Option<Statement> {
    let index = unique_position(tokens, "ct")?;
    let (is_negated, value) = value_after(tokens.get(index.saturating_add(1)..)?, &["state"])?;
    let states: Vec<&str> = value.split(',').collect();
    Some(Statement::Match { lhs: json!({ "ct": { "key": "state" } }), is_negated, rhs: json!(states) })
}

/// `fib daddr type local`, where it is all that is said of the sorts of addresses.
fn address_type(tokens: &[&str]) -> Option<Statement> {
    let index = unique_position(tokens, "fib")?;
    let (is_negated, value) = value_after(tokens.get(index.saturating_add(1)..)?, &["daddr", "type"])?;
    let lhs = json!({ "fib": { "result": "type", "flags": ["daddr"] } });
    Some(Statement::Match { lhs, is_negated, rhs: json!(value) })
}

/// Where the word is, if it is there once.
fn unique_position(tokens: &[&str], token: &str) -> Option<usize> {
    let mut positions = tokens.iter().enumerate().filter(|(_, other)| **other == token).map(|(index, _)| index);
    positions.next().filter(|_| positions.next().is_none())
}

/// What follows these words, and whether it is negated.
fn value_after<'a>(tokens: &[&'a str], prefix: &[&'static str]) -> Option<(bool, &'a str)> {
    match tokens.strip_prefix(prefix)? {
        ["!" | "!=", value, ..] => Some((true, value)),
        [value, ..] if !value.starts_with('{') => Some((false, value)),
        _ => None,
    }
}
