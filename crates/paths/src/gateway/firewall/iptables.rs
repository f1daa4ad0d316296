//! Interprets matches and targets of iptables-nft for which nftables has no expression (`xt`).
//!
//! JSON contains only their names, since nft 1.0.6, and nothing in older versions. The text output of nft translates
//! some of them: connection state and address type are taken from there, by the handle of the rule. Other matches
//! apply to some packets (`SometimesMatch`), or their result is unknown.

use serde_json::{Value, json};

use super::statement::{Statement, Verdict};

/// The meaning of an `xt` statement. `tokens` are the words of its rule in the text output. `is_target`: it follows
/// the counter, where iptables places targets. `xt_count`: number of `xt` statements in the rule. None: it has no
/// effect on the verdict.
pub(super) fn xt_statement(body: &Value, tokens: &[&str], is_target: bool, xt_count: usize) -> Option<Statement> {
    let text = |field| body.get(field).and_then(Value::as_str);
    let is_target = text("type").map_or(is_target, |kind| kind == "target");
    match (is_target, text("name")) {
        (true, Some("REJECT")) => Some(Statement::Verdict(Verdict::Drop)),
        (true, Some("NFQUEUE" | "QUEUE")) => Some(Statement::Verdict(Verdict::Unknown)),
        (true, None) if tokens.contains(&"reject") => Some(Statement::Verdict(Verdict::Drop)),
        (true, None) if tokens.contains(&"queue") => Some(Statement::Verdict(Verdict::Unknown)),
        // LOG, MARK, TCPMSS and similar targets do not end the evaluation.
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

/// `ct state related,established`, if this is the only connection match of the rule.
fn conntrack_state(tokens: &[&str]) -> Option<Statement> {
    let index = unique_position(tokens, "ct")?;
    let (is_negated, value) = value_after(tokens.get(index.saturating_add(1)..)?, &["state"])?;
    let states: Vec<&str> = value.split(',').collect();
    Some(Statement::Match { lhs: json!({ "ct": { "key": "state" } }), is_negated, rhs: json!(states) })
}

/// `fib daddr type local`, if this is the only `fib` match of the rule.
fn address_type(tokens: &[&str]) -> Option<Statement> {
    let index = unique_position(tokens, "fib")?;
    let (is_negated, value) = value_after(tokens.get(index.saturating_add(1)..)?, &["daddr", "type"])?;
    let lhs = json!({ "fib": { "result": "type", "flags": ["daddr"] } });
    Some(Statement::Match { lhs, is_negated, rhs: json!(value) })
}

/// Position of a word that occurs exactly once.
fn unique_position(tokens: &[&str], token: &str) -> Option<usize> {
    let mut positions = tokens.iter().enumerate().filter(|(_, other)| **other == token).map(|(index, _)| index);
    positions.next().filter(|_| positions.next().is_none())
}

/// The value after these words, and whether it is negated.
fn value_after<'a>(tokens: &[&'a str], prefix: &[&'static str]) -> Option<(bool, &'a str)> {
    match tokens.strip_prefix(prefix)? {
        ["!" | "!=", value, ..] => Some((true, value)),
        [value, ..] if !value.starts_with('{') => Some((false, value)),
        _ => None,
    }
}
