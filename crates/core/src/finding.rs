//! Findings: what a check of a host has shown, how severe it is, and what to do about it.
//!
//! All commands that check a host (`doctor`) report in this form, so that people and scripts read one kind of
//! list. The checks themselves are in the crates of the capabilities; `marline-terminal` prints the list.

use alloc::string::String;
use alloc::vec::Vec;

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// No problem.
    Ok,
    /// Works, but could be better.
    Note,
    /// The command that was checked for cannot work.
    Blocks,
}

/// Result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Name of the check, in one or two words.
    pub name: &'static str,
    /// Severity of the result.
    pub severity: Severity,
    /// What was observed.
    pub message: String,
    /// The remedy; empty if none is needed or known.
    pub remedy: String,
}

impl Finding {
    /// A check without a problem.
    pub fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self { name, severity: Severity::Ok, message: message.into(), remedy: String::new() }
    }

    /// Something that works less well than it could.
    pub fn note(name: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, severity: Severity::Note, message: message.into(), remedy: remedy.into() }
    }

    /// Something without which nothing works.
    pub fn blocks(name: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, severity: Severity::Blocks, message: message.into(), remedy: remedy.into() }
    }
}

/// Result of all checks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// Whether no finding blocks.
    pub ok: bool,
    /// The findings, in the order in which a person would check.
    pub findings: Vec<Finding>,
}

impl Report {
    /// A report of these findings.
    pub fn new(findings: Vec<Finding>) -> Self {
        Self { ok: findings.iter().all(|finding| finding.severity != Severity::Blocks), findings }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn only_a_finding_that_blocks_makes_a_host_unsuitable() {
        let (fine, note) = (Finding::ok("a", "works"), Finding::note("b", "is slow", "wait"));
        assert!(Report::new(vec![fine.clone(), note]).ok);
        assert!(!Report::new(vec![fine, Finding::blocks("c", "is missing", "install it")]).ok);
    }
}
