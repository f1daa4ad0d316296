//! Doctor of `marline paths`: determines whether this host is suitable, and what to change if it is not.
//!
//! It judges [`HostFacts`] that were gathered from the kernel ([`gather_facts`]) and, for each link, the result of a
//! connection to a server of the user's choice ([`probe_links`]). Each finding has a remedy.
//!
//! 1. A finding is a pure function of facts, so tests can use facts that no real host has.
//! 2. A finding *blocks* if connections would not be managed at all, or wrongly. It is a *note* if they would be
//!    managed less well than possible. Only blocking findings make a host unsuitable.
//! 3. Nothing is changed, and without `--probe` no packet leaves the host, except to the routers of links that share
//!    an address.
//! 4. What cannot be read for lack of a privilege is no finding.

mod checks;
mod facts;
mod path_mtu;
mod probe;
mod routes;

use serde::Serialize;

pub use super::host_config::{EventListener, RunningDaemon};
pub use facts::{HostFacts, LoopbackResult, RequestedLink, gather_facts};
pub use path_mtu::BlackHole;
pub use probe::{LinkProbe, ProbeVerdict, probe_links, resolve_server};
pub use routes::LinkFacts;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// No problem.
    Ok,
    /// Works, but could be better.
    Note,
    /// Prevents management of connections.
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
    /// The remedy; empty if there is no problem.
    pub remedy: String,
}

impl Finding {
    fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self { name, severity: Severity::Ok, message: message.into(), remedy: String::new() }
    }

    fn note(name: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, severity: Severity::Note, message: message.into(), remedy: remedy.into() }
    }

    fn blocks(name: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
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

/// Judges the facts and the probes, if any.
pub fn examine_host(facts: &HostFacts, probes: &[LinkProbe]) -> Report {
    let mut findings = checks::check_host(facts);
    findings.extend(routes::check_links(facts));
    findings.extend(probes.iter().map(probe::finding));
    let black_holes = probes.iter().filter_map(|probed| Some((probed, probed.black_hole?)));
    findings
        .extend(black_holes.map(|(probed, black_hole)| path_mtu::finding(&probed.link, probed.server, black_hole)));
    Report { ok: findings.iter().all(|finding| finding.severity != Severity::Blocks), findings }
}
