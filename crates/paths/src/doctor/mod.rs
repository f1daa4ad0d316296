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
//!
//! - `facts`, `link_facts`: gather facts about the host and about each link
//! - `checks`, `routes`: findings about the kernel and its settings, and about links
//! - `probe`: tests MPTCP over each link; `path_mtu`: tests full-sized packets over each link

mod checks;
mod facts;
mod link_facts;
mod path_mtu;
mod probe;
mod routes;

use marline_core::finding::Report;

pub use super::host_config::{EventListener, RunningDaemon};
pub use facts::{HostFacts, LoopbackResult, RequestedLink, gather_facts};
pub use link_facts::LinkFacts;
pub use path_mtu::BlackHole;
pub use probe::{LinkProbe, ProbeVerdict, probe_links, resolve_server};

/// Judges the facts and the probes, if any.
pub fn examine_host(facts: &HostFacts, probes: &[LinkProbe]) -> Report {
    let mut findings = checks::check_host(facts);
    findings.extend(routes::check_links(facts));
    findings.extend(probes.iter().map(probe::finding));
    let black_holes = probes.iter().filter_map(|probed| Some((probed, probed.black_hole?)));
    findings
        .extend(black_holes.map(|(probed, black_hole)| path_mtu::finding(&probed.link, probed.server, black_hole)));
    Report::new(findings)
}
