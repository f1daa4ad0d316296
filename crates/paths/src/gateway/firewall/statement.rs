//! The statements of a rule: what matters of it for the question which packets it drops.

use serde_json::Value;

/// A part of a rule that affects whether it applies, or its verdict.
#[derive(Debug, PartialEq)]
pub(super) enum Statement {
    /// A comparison of packet fields with a value.
    Match {
        lhs: Value,
        is_negated: bool,
        rhs: Value,
    },
    /// A match that applies to some of the packets in question, such as those to one port.
    SometimesMatch,
    /// Whether it applies is unknown.
    UnknownMatch,
    Verdict(Verdict),
    /// A verdict per value, and optionally one for all others under [`CATCH_ALL`].
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
    /// Continues with the next rule.
    Continue,
    /// Another program decides, or a set that is not listed.
    Unknown,
}

/// Key of the verdict for all values without an entry.
pub(super) const CATCH_ALL: &str = "*";
