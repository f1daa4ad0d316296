//! Parses the host's rules from `nft --json list ruleset` (libnftables-json(5)).
//!
//! The plain text output would be unreliable: quoted comments and log prefixes may contain any keyword, and matches,
//! counters, logs and marks can be distinguished only by position. JSON names each.
//!
//! Statements for which nftables has no expression (`xt` of iptables-nft) are named in JSON but not described: see
//! [`iptables`].

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::iptables;
use super::is_own_table;
use super::rule_text::RuleTexts;
use super::statement::{Statement, Verdict};

/// The nftables rules of a host.
#[derive(Debug, Default)]
pub(in super::super) struct Ruleset {
    chains: BTreeMap<ChainKey, Chain>,
}

/// Identifies a chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChainKey {
    pub(super) family: String,
    pub(super) table: String,
    pub(super) chain: String,
}

#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Set for filter chains with a hook.
    pub(super) base: Option<BaseChain>,
    pub(super) rules: Vec<Vec<Statement>>,
}

#[derive(Debug)]
pub(super) struct BaseChain {
    pub(super) hook: String,
    /// Whether its policy drops packets that no rule accepts.
    pub(super) drops_by_default: bool,
}

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<ListedObject>,
}

/// An object of the list: table, chain, rule, or another one that is ignored.
#[derive(Deserialize)]
struct ListedObject {
    table: Option<ListedTable>,
    chain: Option<ListedChain>,
    rule: Option<ListedRule>,
}

#[derive(Deserialize)]
struct ListedTable {
    family: String,
    name: String,
    #[serde(default)]
    flags: Value,
}

#[derive(Deserialize)]
struct ListedChain {
    family: String,
    table: String,
    name: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    hook: Option<String>,
    policy: Option<String>,
}

#[derive(Deserialize)]
struct ListedRule {
    family: String,
    table: String,
    chain: String,
    handle: u64,
    #[serde(default)]
    expr: Vec<Value>,
}

impl Ruleset {
    /// Parses the JSON list. `text` returns the same list as text with handles, and is called only where JSON does
    /// not suffice.
    ///
    /// # Errors
    /// Not a valid list.
    pub(in super::super) fn parse(json: &str, text: impl FnOnce() -> Option<String>) -> serde_json::Result<Self> {
        let objects = serde_json::from_str::<Listing>(json)?.nftables;
        let has_xt_statement = |rule: &ListedRule| rule.expr.iter().any(|part| part.get("xt").is_some());
        let has_unknown_flags = |table: &ListedTable| !is_own_table(&table.name) && is_dormant(table).is_none();
        let needs_text = |object: &ListedObject| {
            object.rule.as_ref().is_some_and(has_xt_statement)
                || object.table.as_ref().is_some_and(has_unknown_flags)
        };
        let text = objects.iter().any(needs_text).then(text).flatten();
        let rule_texts = text.as_deref().map(RuleTexts::parse).unwrap_or_default();
        let mut ruleset = Self::default();
        let mut dormant = Vec::new();
        for ListedObject { table, chain, rule } in objects {
            if let Some(table) = table {
                let ListedTable { family, name, .. } = &table;
                if is_dormant(&table).unwrap_or_else(|| rule_texts.is_dormant(family, name)) {
                    dormant.push((table.family, table.name));
                }
            }
            if let Some(ListedChain { family, table, name, kind, hook, policy }) = chain {
                // Chains of type `nat` see only the first packet of a connection and do not filter.
                let hook = hook.filter(|_| kind.as_deref() == Some("filter"));
                let base = hook.map(|hook| BaseChain { hook, drops_by_default: policy.as_deref() == Some("drop") });
                ruleset.chains.entry(ChainKey { family, table, chain: name }).or_default().base = base;
            }
            if let Some(ListedRule { family, table, chain, handle, expr }) = rule {
                let tokens = rule_texts.tokens(&family, &table, handle);
                let statements = parse_statements(&expr, &tokens);
                ruleset.chains.entry(ChainKey { family, table, chain }).or_default().rules.push(statements);
            }
        }
        ruleset
            .chains
            .retain(|key, _| !dormant.iter().any(|(family, table)| (family, table) == (&key.family, &key.table)));
        Ok(ruleset)
    }

    pub(super) fn chains(&self) -> impl Iterator<Item = (&ChainKey, &Chain)> {
        self.chains.iter()
    }

    pub(super) fn chain(&self, family: &str, table: &str, chain: &str) -> Option<&Chain> {
        self.chains.get(&ChainKey { family: family.to_owned(), table: table.to_owned(), chain: chain.to_owned() })
    }

    /// Whether this chain exists.
    pub(in super::super) fn has_chain(&self, family: &str, table: &str, chain: &str) -> bool {
        self.chain(family, table, chain).is_some()
    }
}

/// Whether the table is switched off; none: it has flags that nft does not list (1.0.6 prints its name instead).
fn is_dormant(table: &ListedTable) -> Option<bool> {
    match &table.flags {
        Value::Null => Some(false),
        Value::String(flag) => matches!(flag.as_str(), "dormant" | "owner" | "persist").then(|| flag == "dormant"),
        Value::Array(flags) => Some(flags.iter().any(|flag| flag == "dormant")),
        _ => None,
    }
}

fn parse_statements(expr: &[Value], tokens: &[&str]) -> Vec<Statement> {
    let entries = expr.iter().filter_map(|part| part.as_object()?.iter().next());
    let xt_count = expr.iter().filter(|part| part.get("xt").is_some()).count();
    let (mut statements, mut is_after_counter) = (Vec::new(), false);
    for (name, body) in entries {
        statements.extend(match name.as_str() {
            "match" => Some(parse_match(body)),
            "vmap" => Some(parse_verdict_map(body)),
            "xt" => iptables::xt_statement(body, tokens, is_after_counter, xt_count),
            // They apply below or above a threshold.
            "limit" | "quota" | "ct count" | "connlimit" => Some(Statement::UnknownMatch),
            // `add @set { … limit rate … }` depends on a rate as well.
            "set" | "meter" if body.get("stmt").is_some() || name == "meter" => Some(Statement::UnknownMatch),
            "counter" => {
                is_after_counter = true;
                None
            }
            // Statements that only log, mark or remember.
            "log" | "mangle" | "notrack" | "set" | "map" | "last" | "flow" | "dup" | "secmark" | "ct helper"
            | "ct timeout" | "ct expectation" => None,
            _ => Some(parse_verdict(name, body).map_or(Statement::UnknownMatch, Statement::Verdict)),
        });
    }
    statements
}

fn parse_match(body: &Value) -> Statement {
    let is_negated = match body.get("op").and_then(Value::as_str) {
        None | Some("==" | "in") => false,
        Some("!=" | "!") => true,
        Some(_) => return Statement::UnknownMatch,
    };
    match (body.get("left"), body.get("right")) {
        (Some(lhs), Some(rhs)) => Statement::Match { lhs: lhs.clone(), is_negated, rhs: rhs.clone() },
        _ => Statement::UnknownMatch,
    }
}

fn parse_verdict_map(body: &Value) -> Statement {
    let entry = |pair: &Value| {
        let (key, verdict_object) = (pair.get(0)?, pair.get(1)?.as_object()?);
        let key = key.pointer("/elem/val").unwrap_or(key);
        let verdict = verdict_object.iter().next().and_then(|(name, body)| parse_verdict(name, body));
        Some((key.clone(), verdict.unwrap_or(Verdict::Unknown)))
    };
    let entries = body.pointer("/data/set").and_then(Value::as_array);
    match (body.get("key"), entries) {
        (Some(key), Some(entries)) => {
            Statement::Map { key: key.clone(), entries: entries.iter().filter_map(entry).collect() }
        }
        // The entries of a named map are not listed.
        _ => Statement::Verdict(Verdict::Unknown),
    }
}

fn parse_verdict(name: &str, body: &Value) -> Option<Verdict> {
    let target = || body.get("target").and_then(Value::as_str).map(str::to_owned);
    Some(match name {
        "accept" => Verdict::Accept,
        "drop" | "reject" => Verdict::Drop,
        "return" => Verdict::Return,
        "continue" => Verdict::Continue,
        "jump" => Verdict::Jump(target()?),
        "goto" => Verdict::Goto(target()?),
        "queue" | "synproxy" | "fwd" => Verdict::Unknown,
        _ => return None,
    })
}
