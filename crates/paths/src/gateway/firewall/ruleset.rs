//! The host's rules, as `nft --json list ruleset` prints them (libnftables-json(5)).
//!
//! The text that nft prints otherwise was not used: quoted comments and prefixes of log lines may hold any word of its language, and what
//! is a condition and what only counts, logs or marks can be told apart by position alone. JSON names each.
//!
//! What nftables has no expression for (`xt`, of iptables-nft) is named in JSON and not described: see [`iptables`].

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::iptables;
use super::is_ours;
use super::text::Texts;

/// The rules of a host.
#[derive(Debug, Default)]
pub(in super::super) struct Ruleset {
    chains: BTreeMap<Place, Chain>,
}

/// Where a chain is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) family: String,
    pub(super) table: String,
    pub(super) chain: String,
}

#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Of one that packets come to by themselves, and that filters.
    pub(super) base: Option<Base>,
    pub(super) rules: Vec<Vec<Statement>>,
}

#[derive(Debug)]
pub(super) struct Base {
    pub(super) hook: String,
    /// Whether its policy is to drop packets that no rule accepts.
    pub(super) drops: bool,
}

/// A part of a rule that decides whether it holds, or what it says.
#[derive(Debug, PartialEq)]
pub(super) enum Statement {
    /// A comparison.
    Match {
        left: Value,
        negated: bool,
        right: Value,
    },
    /// It holds for some packets of each connection or LAN.
    Partly,
    /// Whether it holds is not known.
    Unknown,
    Verdict(Verdict),
    /// A verdict for each value; one of all others under [`CATCH_ALL`].
    Map {
        key: Value,
        entries: Vec<(Value, Verdict)>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
    /// On to the next rule.
    Continue,
    /// Another program decides, or a set that is not in the list.
    Unknown,
}

/// The key that stands for all values without an entry.
pub(super) const CATCH_ALL: &str = "*";

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

/// One of the list: a table, a chain, a rule, or something that does not matter here.
#[derive(Deserialize)]
struct Object {
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
    /// Reads the list. `text` gives the same list as text with handles, and is asked for only where JSON does not suffice.
    ///
    /// # Errors
    /// It is no such list.
    pub(in super::super) fn read(json: &str, text: impl FnOnce() -> Option<String>) -> serde_json::Result<Self> {
        let objects = serde_json::from_str::<Listing>(json)?.nftables;
        let has_xt = |rule: &ListedRule| rule.expr.iter().any(|part| part.get("xt").is_some());
        let is_vague = |table: &ListedTable| !is_ours(&table.name) && is_dormant(table).is_none();
        let is_short = |object: &Object| {
            object.rule.as_ref().is_some_and(has_xt) || object.table.as_ref().is_some_and(is_vague)
        };
        let text = objects.iter().any(is_short).then(text).flatten();
        let texts = text.as_deref().map(Texts::of).unwrap_or_default();
        let mut all = Self::default();
        let mut dormant = Vec::new();
        for Object { table, chain, rule } in objects {
            if let Some(table) = table {
                let ListedTable { family, name, .. } = &table;
                if is_dormant(&table).unwrap_or_else(|| texts.is_dormant(family, name)) {
                    dormant.push((table.family, table.name));
                }
            }
            if let Some(ListedChain { family, table, name, kind, hook, policy }) = chain {
                // Chains of the type `nat` see the first packet only, and are no filters.
                let hook = hook.filter(|_| kind.as_deref() == Some("filter"));
                let base = hook.map(|hook| Base { hook, drops: policy.as_deref() == Some("drop") });
                all.chains.entry(Place { family, table, chain: name }).or_default().base = base;
            }
            if let Some(ListedRule { family, table, chain, handle, expr }) = rule {
                let words = texts.words(&family, &table, handle);
                let statements = statements(&expr, &words);
                all.chains.entry(Place { family, table, chain }).or_default().rules.push(statements);
            }
        }
        all.chains.retain(|place, _| {
            !dormant.iter().any(|(family, table)| (family, table) == (&place.family, &place.table))
        });
        Ok(all)
    }

    pub(super) fn chains(&self) -> impl Iterator<Item = (&Place, &Chain)> {
        self.chains.iter()
    }

    pub(super) fn chain(&self, family: &str, table: &str, chain: &str) -> Option<&Chain> {
        self.chains.get(&Place { family: family.to_owned(), table: table.to_owned(), chain: chain.to_owned() })
    }

    /// Whether there is such a chain.
    pub(in super::super) fn has(&self, family: &str, table: &str, chain: &str) -> bool {
        self.chain(family, table, chain).is_some()
    }
}

/// Whether its owner has switched it off; none: it has flags, and nft does not say which (1.0.6 prints its name in their place).
fn is_dormant(table: &ListedTable) -> Option<bool> {
    match &table.flags {
        Value::Null => Some(false),
        Value::String(flag) => matches!(flag.as_str(), "dormant" | "owner" | "persist").then(|| flag == "dormant"),
        Value::Array(flags) => Some(flags.iter().any(|flag| flag == "dormant")),
        _ => None,
    }
}

fn statements(expr: &[Value], words: &[&str]) -> Vec<Statement> {
    let named = expr.iter().filter_map(|part| part.as_object()?.iter().next());
    let xt = expr.iter().filter(|part| part.get("xt").is_some()).count();
    let (mut all, mut is_counted) = (Vec::new(), false);
    for (name, body) in named {
        all.extend(match name.as_str() {
            "match" => Some(comparison(body)),
            "vmap" => Some(map(body)),
            "xt" => iptables::statement(body, words, is_counted, xt),
            // They hold for what is below a bound, or above it.
            "limit" | "quota" | "ct count" | "connlimit" => Some(Statement::Unknown),
            // `add @set { … limit rate … }` is one as well.
            "set" | "meter" if body.get("stmt").is_some() || name == "meter" => Some(Statement::Unknown),
            "counter" => {
                is_counted = true;
                None
            }
            // What only logs, marks or remembers.
            "log" | "mangle" | "notrack" | "set" | "map" | "last" | "flow" | "dup" | "secmark" | "ct helper"
            | "ct timeout" | "ct expectation" => None,
            _ => Some(verdict(name, body).map_or(Statement::Unknown, Statement::Verdict)),
        });
    }
    all
}

fn comparison(body: &Value) -> Statement {
    let negated = match body.get("op").and_then(Value::as_str) {
        None | Some("==" | "in") => false,
        Some("!=" | "!") => true,
        Some(_) => return Statement::Unknown,
    };
    match (body.get("left"), body.get("right")) {
        (Some(left), Some(right)) => Statement::Match { left: left.clone(), negated, right: right.clone() },
        _ => Statement::Unknown,
    }
}

fn map(body: &Value) -> Statement {
    let entry = |pair: &Value| {
        let (key, said) = (pair.get(0)?, pair.get(1)?.as_object()?);
        let key = key.pointer("/elem/val").unwrap_or(key);
        let verdict = said.iter().next().and_then(|(name, body)| verdict(name, body));
        Some((key.clone(), verdict.unwrap_or(Verdict::Unknown)))
    };
    let entries = body.pointer("/data/set").and_then(Value::as_array);
    match (body.get("key"), entries) {
        (Some(key), Some(entries)) => {
            Statement::Map { key: key.clone(), entries: entries.iter().filter_map(entry).collect() }
        }
        // A map with a name: its entries are not in the list.
        _ => Statement::Verdict(Verdict::Unknown),
    }
}

fn verdict(name: &str, body: &Value) -> Option<Verdict> {
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
