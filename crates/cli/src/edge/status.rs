//! `marline edge status`: queries a running edge over its control socket and prints its status.
//!
//! The output is a set of tables for people, or one JSON object (`docs/json.md`). This module also defines the status that
//! the edge sends (see [`marline_net::control_socket`]), and texts that the notices of the edge share.

use std::path::{Path, PathBuf};
use std::time::Instant;

use marline_core::units::DataSize;
use marline_fleet::edge::{
    DnsLinkOverride, DnsLinkState, Edge, FleetStatus, FlowStats, LinkState, RelayStatus, UdpLinkState, UnusedLink,
};
use marline_net::control_socket::{ControlError, query_daemon};
use marline_net::printable::printable;
use marline_paths::gateway::{self, Obstructions};
use marline_terminal::table::{Table, or_dash};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::args::NoRelayPolicy;
use super::fault::{Fault, PeerKind, with_remedy};
use super::paths_thread::PathsThreadState;
use crate::CliError;
use crate::args::JsonArgs;
use crate::control::query_error;
use crate::directories::run_dirs;

/// Path of the edge's control socket.
pub(super) fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("edge.sock")
}

/// Request on the control socket.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub(super) enum ControlRequest {
    /// Requests the [`EdgeStatus`].
    Status,
}

/// Status of an edge, sent over the control socket and printed as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EdgeStatus {
    version: String,
    pid: u32,
    uptime_s: f64,
    edge: String,
    listen_addrs: Vec<String>,
    /// Flows that are open now, and those since the start by their path.
    flows: FlowStats,
    /// Relays for new flows, the best first.
    relays: Vec<RelayReport>,
    /// `None` for an edge without a fleet service.
    fleet: Option<FleetStatus>,
    links: Vec<LinkState>,
    /// Links that connections to relays do not use.
    #[serde(default)]
    unused_links: Vec<UnusedLink>,
    /// Whether this edge manages the MPTCP paths.
    steering: PathsThreadState,
    /// Why the state file cannot be written; `None` if it is written or not configured.
    #[serde(default)]
    state_error: Option<String>,
    /// Policy for new flows while no relay is available; `None` from an edge of an older version.
    #[serde(default)]
    without_relay: Option<NoRelayPolicy>,
    /// `None` without a LAN.
    #[serde(default)]
    lan: Option<LanState>,
    /// Link of UDP and other packets of the LAN that no tunnel carries; `None` without a LAN.
    #[serde(default)]
    udp_link: Option<UdpLinkState>,
    /// Links of this host's own DNS queries where they are not those of its routes; `None` without a LAN.
    #[serde(default)]
    name_queries: Option<DnsLinkState>,
}

/// Status of a relay with the reason of its failure and a remedy.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RelayReport {
    #[serde(flatten)]
    relay: RelayStatus,
    /// Reason code of the failure; `None` if the relay works or the failure is not recognized.
    #[serde(default)]
    reason: Option<String>,
    /// Remedy for the operator.
    #[serde(default)]
    remedy: Option<String>,
}

impl From<RelayStatus> for RelayReport {
    fn from(row: RelayStatus) -> Self {
        let reason = row.error.as_deref().and_then(Fault::recognize);
        let remedy = reason.map(|reason| reason.remedy(PeerKind::Relay));
        Self { relay: row, reason: reason.map(|reason| reason.code().to_owned()), remedy }
    }
}

/// The LAN that an edge serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LanState {
    interfaces: Vec<String>,
    /// The nftables table that blocks the LAN from the outside, also after a crash, is active.
    closed: bool,
    /// Firewall rules and settings of this host that block packets of the LAN, with a remedy; one line each.
    #[serde(default)]
    obstructions: Vec<String>,
    /// Parts of the host configuration that could not be checked for obstructions, and why; one line each.
    #[serde(default)]
    unchecked: Vec<String>,
}

/// Parts of the status that are fixed at the start, or that are watched outside of [`Edge`].
pub(super) struct EdgeInfo {
    pub(super) lan: Vec<String>,
    /// `None` without a LAN.
    pub(super) obstructions: Option<watch::Receiver<Obstructions>>,
    pub(super) without_relay: NoRelayPolicy,
    pub(super) steering: watch::Receiver<PathsThreadState>,
    pub(super) started_at: Instant,
    pub(super) edge_name: String,
    pub(super) listen_addrs: Vec<String>,
}

impl EdgeStatus {
    pub(super) fn snapshot(
        edge_info: &EdgeInfo,
        edge: &Edge,
        fleet: Option<&watch::Receiver<FleetStatus>>,
    ) -> Self {
        let lan = edge_info.obstructions.as_ref().map(|obstructions| {
            let Obstructions { obstructions: stops, unchecked, is_closed: closed, .. } =
                obstructions.borrow().clone();
            LanState { interfaces: edge_info.lan.clone(), closed, obstructions: stops, unchecked }
        });
        Self {
            lan,
            without_relay: Some(edge_info.without_relay),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: edge_info.started_at.elapsed().as_secs_f64(),
            edge: edge_info.edge_name.clone(),
            listen_addrs: edge_info.listen_addrs.clone(),
            flows: edge.state().borrow().clone(),
            relays: edge.relays().into_iter().map(RelayReport::from).collect(),
            fleet: fleet.map(|status| status.borrow().clone()),
            links: edge.links(),
            unused_links: edge.unused_links().borrow().clone(),
            steering: edge_info.steering.borrow().clone(),
            state_error: edge.state_file_error().borrow().clone(),
            udp_link: edge.udp_link().borrow().clone(),
            name_queries: edge.dns_links().borrow().clone(),
        }
    }
}

/// Queries a running edge and prints its status.
pub(super) fn run(run_dir: Option<&Path>, format: JsonArgs) -> Result<(), CliError> {
    let status = query_status(run_dir).map_err(|error| {
        let CliError { code, message: line } = query_error(&error);
        let leftover = matches!(error, ControlError::NotRunning { .. }).then(gateway::leftover_firewall).flatten();
        let lan_text = leftover.map_or_else(String::new, |leftover| {
            format!(
                "; an edge has crashed and the LAN at {} stays blocked (nft table inet marline-lan): start the edge again, or run \
                 `marline restore`",
                leftover.lan.join(", ")
            )
        });
        CliError { code, message: line.map(|line| line + &lan_text) }
    })?;
    format.print(&status, render)
}

/// Status of the first edge that responds; otherwise the error of the first run directory.
fn query_status(run_dir: Option<&Path>) -> Result<EdgeStatus, ControlError> {
    let mut run_dirs = run_dirs(run_dir).into_iter();
    let query = |dir: &Path| query_daemon("marline edge", &socket(dir), &ControlRequest::Status);
    let first_reply = query(&run_dirs.next().unwrap_or_default());
    first_reply.or_else(|first_error| run_dirs.find_map(|dir| query(&dir).ok()).ok_or(first_error))
}

fn render(status: &EdgeStatus) -> String {
    let flows = &status.flows;
    let mut text = format!(
        "{} on {}: {} flows open, {} carried, {} direct, {} failed\n",
        status.edge,
        status.listen_addrs.join(", "),
        flows.open,
        flows.carried.values().sum::<u64>(),
        flows.direct,
        flows.failed
    );
    if let Some(fleet) = &status.fleet {
        text += &fleet_text(fleet);
    }
    let are_failing = status.relays.iter().map(|relay| relay.relay.failing);
    let mut relays = Table::new(["relay", "state", "rate", "measured", "RTT", "flows", "sent", "received"]);
    for (index, relay) in status.relays.iter().map(|relay| &relay.relay).enumerate() {
        let measured = status
            .fleet
            .as_ref()
            .and_then(|fleet| fleet.relays.iter().find(|one| relay.label == one.relay.as_str()));
        let state = if relay.failing {
            "failing"
        } else if index == 0 {
            "in use"
        } else {
            "ready"
        };
        let rate = or_dash(measured.and_then(|measured| measured.rate));
        let age = or_dash(measured.and_then(|measured| measured.rate_age_s).map(|age| format!("{age} s ago")));
        let rtt = or_dash(measured.and_then(|measured| measured.rtt_ms).map(|rtt_ms| format!("{rtt_ms} ms")));
        let carried = flows.carried.get(&relay.label).copied().unwrap_or_default();
        let sent = DataSize::from_bytes(relay.sent_bytes).to_string();
        let received = DataSize::from_bytes(relay.received_bytes).to_string();
        relays.row([relay.label.clone(), state.to_owned(), rate, age, rtt, carried.to_string(), sent, received]);
    }
    text += &format!("{relays}\n");
    for RelayReport { relay: row, remedy, .. } in &status.relays {
        let Some(error) = &row.error else { continue };
        let remedy = remedy.as_ref().map_or_else(String::new, |remedy| format!("; {remedy}"));
        text += &format!(
            "relay {} cannot be used: {}{}\n\n",
            printable(&row.label),
            printable(error),
            printable(&remedy)
        );
    }
    for RelayReport { relay: row, .. } in status.relays.iter().filter(|relay| relay.relay.without_mptcp) {
        text += &format!("{}\n\n", relay_without_mptcp_text(&printable(&row.label)));
    }
    if let Some(no_relay_policy) = status.without_relay {
        let prefix = if are_failing.clone().all(|is_failing| is_failing) {
            "no relay is available:"
        } else {
            "without a relay"
        };
        text += &format!("{prefix} new flows {}\n\n", no_relay_policy.description(status.lan.is_some()));
    }
    if status.links.is_empty() {
        return text + "no link: this host has no usable network link\n";
    }
    let all_bytes: u64 = status.links.iter().map(total_bytes).fold(0, u64::saturating_add);
    let header = ["link", "state", "sent", "received", "share", "up now", "down now", "peak up", "cost"];
    let mut links = Table::new(header);
    for link in &status.links {
        let share = if all_bytes == 0 { 0.0 } else { 100.0 * total_bytes(link) as f64 / all_bytes as f64 };
        links.row([
            link.name.clone(),
            link_state(link).to_owned(),
            DataSize::from_bytes(link.sent_bytes).to_string(),
            DataSize::from_bytes(link.received_bytes).to_string(),
            format!("{share:.0}%"),
            link.rate.to_string(),
            link.down_rate.to_string(),
            link.peak_rate.to_string(),
            if link.metered { "metered" } else { "free" }.to_owned(),
        ]);
    }
    text += &links.to_string();
    let working = status
        .links
        .iter()
        .find(|link| link.up && !link.unresponsive && link.failure.is_none() && !link.mptcp_stripped);
    for link in &status.links {
        if let Some(failure) = &link.failure {
            let alternative = working
                .map_or_else(String::new, |working_link| format!("; {} does", printable(&working_link.name)));
            text += &format!(
                "\nlink {} {}: {}{alternative}\n",
                printable(&link.name),
                link_failure_text(are_failing.clone()),
                printable(failure)
            );
        }
    }
    for link in status.links.iter().filter(|link| link.mptcp_stripped) {
        text += &format!(
            "\n{}\n",
            mptcp_stripped_text(&printable(&link.name), working.map(|working_link| working_link.name.as_str()))
        );
    }
    for unused in &status.unused_links {
        text += &format!("\nlink {} is not used: {}\n", printable(&unused.name), printable(&unused.reason));
    }
    if let Some(reason) = status.steering.reason.as_ref().filter(|_| !status.steering.active) {
        text += &format!("\nMPTCP paths are not managed by this edge: {}\n", printable(reason));
    }
    if let Some(error) = &status.state_error {
        text += &format!("\n{}\n", state_error_text(&printable(error)));
    }
    if let Some(LanState { interfaces, closed, obstructions: stops, unchecked }) = &status.lan {
        let state =
            if *closed { "blocked from the outside, also after a crash" } else { "NOT blocked after a crash" };
        text += &format!("\nLAN {}: {state} (nft table inet marline-lan)\n", interfaces.join(", "));
        for line in stops.iter().chain(unchecked) {
            text += &format!("{}\n", printable(line));
        }
    }
    if let Some(udp_link) = &status.udp_link {
        text += &format!("\nUDP and other packets of the LAN leave {}\n", udp_link_text(udp_link));
    }
    for line in status.name_queries.iter().flat_map(name_query_lines) {
        text += &format!("\n{line}\n");
    }
    text
}

/// Line about a link over which MPTCP is stripped; `alternative` is a link with MPTCP.
pub(super) fn mptcp_stripped_text(link: &str, alternative: Option<&str>) -> String {
    let alternative = alternative
        .map_or_else(String::new, |alternative_link| format!("; flows start over {}", printable(alternative_link)));
    format!(
        "MPTCP is stripped over {link}, by the provider or a firewall: this link does not add capacity{alternative}"
    )
}

/// Line about a relay without MPTCP.
pub(super) fn relay_without_mptcp_text(relay: &str) -> String {
    format!(
        "relay {relay}: MPTCP is disabled on the relay or stripped over every link, so each flow uses one link (on the relay: \
         sysctl net.mptcp.enabled=1)"
    )
}

/// Line about a state file that cannot be written.
pub(super) fn state_error_text(error: &str) -> String {
    format!(
        "{error}: the state of relays is not saved for the next start; free disk space, or use another file with --state-file"
    )
}

/// Describes the failure of a link over which connections cannot start. `relays` has for each relay whether it fails. If all
/// fail, direct flows have shown the failure, so the text does not mention the relay.
pub(super) fn link_failure_text(mut relays: impl Iterator<Item = bool>) -> &'static str {
    if relays.all(|is_failing| is_failing) { "does not carry new connections" } else { "does not reach the relay" }
}

fn total_bytes(link: &LinkState) -> u64 {
    link.sent_bytes.saturating_add(link.received_bytes)
}

/// Link of UDP and other packets of the LAN, and the reason, as the end of a sentence.
pub(super) fn udp_link_text(udp_link: &UdpLinkState) -> String {
    let link = udp_link
        .link
        .as_ref()
        .map_or_else(|| "by the default route of the host".to_owned(), |link| format!("over {}", printable(link)));
    format!("{link}: {}", udp_link.reason.describe())
}

/// Lines about DNS queries of this host that use another link than its routes select, with the reason.
pub(super) fn name_query_lines(name_queries: &DnsLinkState) -> Vec<String> {
    let line = |family_text: &str, route: &DnsLinkOverride| {
        let DnsLinkOverride { link, instead_of, reason } = route;
        let (link, usual_link) = (printable(link), printable(instead_of));
        let kernel_error = name_queries
            .error
            .as_ref()
            .map_or_else(String::new, |error| format!("; the kernel refuses: {}", printable(error)));
        let (verb, refused) =
            if kernel_error.is_empty() { ("leave", kernel_error) } else { ("should leave", kernel_error) };
        format!(
            "this host's DNS queries{family_text} {verb} over {link} instead of {usual_link}: {}{refused}",
            reason.describe()
        )
    };
    match (&name_queries.v4, &name_queries.v6) {
        (Some(v4), Some(v6)) if v4 == v6 => vec![line("", v4)],
        (v4, v6) => {
            let v4 = v4.iter().map(|route| line(" by IPv4", route));
            v4.chain(v6.iter().map(|route| line(" by IPv6", route))).collect()
        }
    }
}

fn link_state(link: &LinkState) -> &'static str {
    match (link.up, link.unresponsive) {
        (false, _) => "down",
        (true, true) => "unresponsive",
        (true, false) => "up",
    }
}

fn fleet_text(fleet: &FleetStatus) -> String {
    let assignment = match (&fleet.assignment, fleet.reason) {
        (Some(assignment), _) => {
            format!("has assigned {} and reserved {}", assignment.relay, assignment.reservation)
        }
        (None, Some(reason)) if fleet.waiting => {
            format!("has assigned no relay ({}): new flows wait until a relay has capacity", reason.as_str())
        }
        (None, Some(reason)) => format!("has assigned no relay ({})", reason.as_str()),
        (None, None) => "has not been queried yet".to_owned(),
    };
    match &fleet.error {
        Some(error) => {
            format!(
                "the service does not answer ({}); it {assignment}\n",
                printable(&with_remedy(error, PeerKind::Service))
            )
        }
        None => format!("the service {assignment}\n"),
    }
}

#[cfg(test)]
mod tests {
    use marline_fleet::edge::DnsLinkReason;

    use super::*;

    #[test]
    fn dns_queries_over_another_link_have_a_line_with_the_reason() {
        let route = |link: &str, reason| {
            Some(DnsLinkOverride { link: link.to_owned(), instead_of: "eth0".to_owned(), reason })
        };
        assert_eq!(name_query_lines(&DnsLinkState::default()), [""; 0]);
        let both = DnsLinkState {
            v4: route("wlan0", DnsLinkReason::DnsUnanswered),
            v6: route("wlan0", DnsLinkReason::DnsUnanswered),
            ..DnsLinkState::default()
        };
        let line = "this host's DNS queries leave over wlan0 instead of eth0: its name servers do not answer, and those of another \
                    link do";
        assert_eq!(name_query_lines(&both), [line]);
        let each = DnsLinkState {
            v6: route("wwan0", DnsLinkReason::Down),
            error: Some("no such device".to_owned()),
            ..both
        };
        let lines = name_query_lines(&each);
        assert!(lines[0].starts_with("this host's DNS queries by IPv4 should leave over wlan0"), "{lines:?}");
        let line = "this host's DNS queries by IPv6 should leave over wwan0 instead of eth0: it is down; the kernel refuses: no such device";
        assert_eq!(lines[1], line);
    }
}
