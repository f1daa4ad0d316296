//! Whether this machine is fit for `marline paths`, and what helps where it is not.
//!
//! In: [`Facts`] that were gathered ([`gather`]), and for each link what came of a connection to a server of the user's
//! ([`probe`]). Out: findings, each with a remedy.
//!
//! 1. A finding is a plain function of facts, and has a test with facts that never were on any machine.
//! 2. Something *blocks* if connections would not be steered at all, or wrongly; it is *noted* if they would be less well
//!    than they could. Only the first makes a machine unfit.
//! 3. Nothing is changed, and no packet leaves the machine without `--probe`, except to the routers of links that share an address.
//! 4. What cannot be read (for want of a privilege) is no finding.

mod checks;
mod facts;
mod netstat;
mod path_mtu;
mod probe;
mod routes;

use serde::Serialize;

pub use super::host_config::{EventListener, RunningDaemon};
pub use facts::{HostFacts, LoopbackResult, RequestedLink, gather_facts};
pub use path_mtu::BlackHole;
pub use probe::{LinkProbe, ProbeVerdict, probe_links, resolve_server};
pub use routes::LinkFacts;

/// How much something matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Less good than it could be.
    Note,
    /// It stands in the way.
    Blocks,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was looked at, one word or two.
    pub name: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What was seen.
    pub message: String,
    /// What helps; empty where nothing is wrong.
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

/// The whole examination.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// Nothing stands in the way.
    pub ok: bool,
    /// What was looked at, in the order in which a person would.
    pub findings: Vec<Finding>,
}

/// What the facts, and the probes if there were any, come to.
pub fn examine_host(facts: &HostFacts, probes: &[LinkProbe]) -> Report {
    let mut findings = checks::check_host(facts);
    findings.extend(routes::check_links(facts));
    findings.extend(probes.iter().map(probe::finding));
    let black_holes = probes.iter().filter_map(|probed| Some((probed, probed.black_hole?)));
    findings
        .extend(black_holes.map(|(probed, black_hole)| path_mtu::finding(&probed.link, probed.server, black_hole)));
    Report { ok: findings.iter().all(|finding| finding.severity != Severity::Blocks), findings }
}
