//! `marline edge status`: what an edge that runs says of itself.
//!
//! In: a question at the edge's ear ([`marline_net::control`]). Out: a table for people, or one JSON object (`docs/json.md`).

use std::path::{Path, PathBuf};
use std::time::Instant;

use marline_core::units::{Bitrate, DataSize};
use marline_fleet::edge::{
    Edge, FleetStatus, FlowStats, LinkState, NamesNow, NamesOver, RelayStatus, UdpLinkState, UnusedLink,
};
use marline_net::control::{AskError, ask};
use marline_net::printable::printable;
use marline_paths::gateway::{self, Obstructions};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::args::WithoutRelay;
use super::reason::{Peer, Reason, explained};
use super::steering::SteeringState;
use crate::Exit;
use crate::energy::{json, table};
use crate::output::print;
use crate::paths::{run_dirs, unanswered};

/// Where an edge is asked.
pub(super) fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("edge.sock")
}

/// What can be asked.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask", deny_unknown_fields)]
pub(super) enum Question {
    /// How it stands.
    Status,
}

/// How an edge stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Status {
    version: String,
    pid: u32,
    up_s: f64,
    edge: String,
    listens: Vec<String>,
    flows: FlowStats,
    /// The relays that new flows are led to, the best first.
    relays: Vec<RelayState>,
    /// None: it asks no service.
    fleet: Option<FleetStatus>,
    links: Vec<LinkState>,
    /// Links that connections to relays do not use.
    #[serde(default)]
    unused_links: Vec<UnusedLink>,
    steering: SteeringState,
    /// Why what is known of relays is not kept for the next start; none: it is, or that was not asked for.
    #[serde(default)]
    state_error: Option<String>,
    /// What becomes of new flows while no relay can be had; none: an edge of an older version does not say.
    #[serde(default)]
    without_relay: Option<WithoutRelay>,
    /// None: it serves no LAN.
    #[serde(default)]
    lan: Option<LanState>,
    /// None: it serves no LAN.
    #[serde(default)]
    rest: Option<UdpLinkState>,
    /// None: it serves no LAN.
    #[serde(default)]
    names: Option<NamesNow>,
}

/// A relay, and what its failure means.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RelayState {
    #[serde(flatten)]
    row: RelayStatus,
    /// The failure as a word for programs; none: it carries, or the failure is not recognized.
    #[serde(default)]
    reason: Option<String>,
    /// What an operator can do.
    #[serde(default)]
    remedy: Option<String>,
}

impl From<RelayStatus> for RelayState {
    fn from(row: RelayStatus) -> Self {
        let reason = row.error.as_deref().and_then(Reason::of);
        let remedy = reason.map(|reason| reason.remedy(Peer::Relay));
        Self { row, reason: reason.map(|reason| reason.code().to_owned()), remedy }
    }
}

/// The LAN that an edge serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LanState {
    interfaces: Vec<String>,
    /// The table that keeps it closed, which outlasts a crash, is in force.
    closed: bool,
    /// What on this host stops its packets, and what helps, a line each.
    #[serde(default)]
    stops: Vec<String>,
    /// What of this host could not be checked for that, and why, a line each.
    #[serde(default)]
    unchecked: Vec<String>,
}

/// What does not change while it runs.
pub(super) struct About {
    pub(super) lan: Vec<String>,
    /// None: it serves no LAN.
    pub(super) obstacles: Option<watch::Receiver<Obstructions>>,
    pub(super) without_relay: WithoutRelay,
    pub(super) steering: watch::Receiver<SteeringState>,
    pub(super) begun: Instant,
    pub(super) edge: String,
    pub(super) listens: Vec<String>,
}

impl Status {
    pub(super) fn of(about: &About, edge: &Edge, fleet: Option<&watch::Receiver<FleetStatus>>) -> Self {
        let lan = about.obstacles.as_ref().map(|found| {
            let Obstructions { stops, unchecked, closed, .. } = found.borrow().clone();
            LanState { interfaces: about.lan.clone(), closed, stops, unchecked }
        });
        Self {
            lan,
            without_relay: Some(about.without_relay),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            up_s: about.begun.elapsed().as_secs_f64(),
            edge: about.edge.clone(),
            listens: about.listens.clone(),
            flows: edge.state().borrow().clone(),
            relays: edge.relays().into_iter().map(RelayState::from).collect(),
            fleet: fleet.map(|view| view.borrow().clone()),
            links: edge.links(),
            unused_links: edge.unused_links().borrow().clone(),
            steering: about.steering.borrow().clone(),
            state_error: edge.state_file_error().borrow().clone(),
            rest: edge.udp_link().borrow().clone(),
            names: edge.names().borrow().clone(),
        }
    }
}

/// Asks and prints.
pub(super) fn run(run_dir: Option<&Path>, as_json: bool) -> Result<(), Exit> {
    let status = asked(run_dir).map_err(|error| {
        let Exit { code, line } = unanswered(&error);
        let standing = matches!(error, AskError::Nobody { .. }).then(gateway::left_closed).flatten();
        let closed = standing.map_or_else(String::new, |standing| {
            format!(
                "; the LAN at {} is kept closed (nft table inet marline-lan) since an edge has crashed: start it again, or \
                 `marline restore` puts this host back",
                standing.lan.join(", ")
            )
        });
        Exit { code, line: line.map(|line| line + &closed) }
    })?;
    let text = if as_json { json(&status)? } else { shown(&status) };
    print(&text)
}

/// The first edge that answers; otherwise why the likeliest one does not.
fn asked(run_dir: Option<&Path>) -> Result<Status, AskError> {
    let mut places = run_dirs(run_dir).into_iter();
    let ask = |dir: &Path| ask("marline edge", &socket(dir), &Question::Status);
    let first = ask(&places.next().unwrap_or_default());
    first.or_else(|why| places.find_map(|dir| ask(&dir).ok()).ok_or(why))
}

fn shown(status: &Status) -> String {
    let flows = &status.flows;
    let mut text = format!(
        "{} on {}: {} flows open, {} carried, {} direct, {} failed\n",
        status.edge,
        status.listens.join(", "),
        flows.open,
        flows.carried.values().sum::<u64>(),
        flows.direct,
        flows.failed
    );
    if let Some(fleet) = &status.fleet {
        text += &service(fleet);
    }
    let failing = status.relays.iter().map(|relay| relay.row.failing);
    let mut rows =
        vec![words(&["relay", "state", "reaches", "measured", "round trip", "flows", "sent", "received"])];
    rows.extend(status.relays.iter().map(|relay| &relay.row).enumerate().map(|(n, relay)| {
        let known = status
            .fleet
            .as_ref()
            .and_then(|fleet| fleet.relays.iter().find(|one| relay.label == one.relay.as_str()));
        let state = if relay.failing {
            "failing"
        } else if n == 0 {
            "in use"
        } else {
            "ready"
        };
        let rate = known.and_then(|known| known.rate).map_or_else(none, |rate: Bitrate| rate.to_string());
        let age = known.and_then(|known| known.rate_age_s).map_or_else(none, |age| format!("{age} s ago"));
        let trip = known.and_then(|known| known.rtt_ms).map_or_else(none, |trip| format!("{trip} ms"));
        let carried = flows.carried.get(&relay.label).copied().unwrap_or_default();
        let sent = DataSize::from_bytes(relay.sent_bytes).to_string();
        let received = DataSize::from_bytes(relay.received_bytes).to_string();
        vec![relay.label.clone(), state.to_owned(), rate, age, trip, carried.to_string(), sent, received]
    }));
    text += &(table(&rows) + "\n");
    for RelayState { row, remedy, .. } in &status.relays {
        let Some(why) = &row.error else { continue };
        let remedy = remedy.as_ref().map_or_else(String::new, |remedy| format!("; {remedy}"));
        text += &format!(
            "relay {} cannot be used: {}{}\n\n",
            printable(&row.label),
            printable(why),
            printable(&remedy)
        );
    }
    for RelayState { row, .. } in status.relays.iter().filter(|relay| relay.row.without_mptcp) {
        text += &format!("{}\n\n", without_mptcp(&printable(&row.label)));
    }
    if let Some(without) = status.without_relay {
        let now =
            if failing.clone().all(|is_failing| is_failing) { "no relay can be had:" } else { "without a relay" };
        text += &format!("{now} new flows {}\n\n", without.words(status.lan.is_some()));
    }
    if status.links.is_empty() {
        return text + "no link: what is sent stays on this machine\n";
    }
    let all: u64 = status.links.iter().map(passed).fold(0, u64::saturating_add);
    let header = ["link", "state", "sent", "received", "share", "up now", "down now", "most up", "bytes"];
    let mut rows = vec![words(&header)];
    rows.extend(status.links.iter().map(|link| {
        let share = if all == 0 { 0.0 } else { 100.0 * passed(link) as f64 / all as f64 };
        vec![
            link.name.clone(),
            state(link).to_owned(),
            DataSize::from_bytes(link.sent_bytes).to_string(),
            DataSize::from_bytes(link.received_bytes).to_string(),
            format!("{share:.0}%"),
            link.rate.to_string(),
            link.down_rate.to_string(),
            link.peak_rate.to_string(),
            if link.metered { "metered" } else { "free" }.to_owned(),
        ]
    }));
    text += &table(&rows);
    let well = status
        .links
        .iter()
        .find(|link| link.up && !link.unresponsive && link.failure.is_none() && !link.mptcp_stripped);
    for link in &status.links {
        if let Some(why) = &link.failure {
            let instead = well.map_or_else(String::new, |other| format!("; {} does", printable(&other.name)));
            text += &format!(
                "\nlink {} {}: {}{instead}\n",
                printable(&link.name),
                lacks(failing.clone()),
                printable(why)
            );
        }
    }
    for link in status.links.iter().filter(|link| link.mptcp_stripped) {
        text += &format!("\n{}\n", stripped(&printable(&link.name), well.map(|other| other.name.as_str())));
    }
    for unused in &status.unused_links {
        text += &format!("\nlink {} is not used: {}\n", printable(&unused.name), printable(&unused.reason));
    }
    if let Some(why) = status.steering.why.as_ref().filter(|_| !status.steering.active) {
        text += &format!("\nthe links are not steered from here: {}\n", printable(why));
    }
    if let Some(why) = &status.state_error {
        text += &format!("\n{}\n", not_kept(&printable(why)));
    }
    if let Some(LanState { interfaces, closed, stops, unchecked }) = &status.lan {
        let state =
            if *closed { "closed to the outside, after a crash as well" } else { "NOT closed after a crash" };
        text += &format!("\nLAN {}: {state} (nft table inet marline-lan)\n", interfaces.join(", "));
        for line in stops.iter().chain(unchecked) {
            text += &format!("{}\n", printable(line));
        }
    }
    if let Some(rest) = &status.rest {
        text += &format!("\nUDP and the rest of the LAN pass {}\n", over(rest));
    }
    for line in status.names.iter().flat_map(names) {
        text += &format!("\n{line}\n");
    }
    text
}

/// A link without MPTCP, in a line; `instead` is one with it.
pub(super) fn stripped(link: &str, instead: Option<&str>) -> String {
    let instead = instead.map_or_else(String::new, |other| format!("; flows begin over {}", printable(other)));
    format!(
        "MPTCP is stripped over {link}, by the provider or a firewall: this link does not add to the others{instead}"
    )
}

/// A relay without MPTCP, in a line.
pub(super) fn without_mptcp(relay: &str) -> String {
    format!(
        "relay {relay}: MPTCP is switched off there, or stripped over each link: a flow uses one link (on the relay: sysctl \
         net.mptcp.enabled=1)"
    )
}

/// A state file that cannot be written, in a line.
pub(super) fn not_kept(why: &str) -> String {
    format!(
        "{why}: what is known of relays is not kept for the next start; make room there, or name another file with --state"
    )
}

/// What a link does not do over which connections do not begin; of each relay, whether it fails. While no relay can be reached, flows that go directly have shown it.
pub(super) fn lacks(mut relays: impl Iterator<Item = bool>) -> &'static str {
    if relays.all(|is_failing| is_failing) { "does not carry new connections" } else { "does not reach the relay" }
}

fn passed(link: &LinkState) -> u64 {
    link.sent_bytes.saturating_add(link.received_bytes)
}

/// Which way the rest of a LAN's packets takes, and why.
pub(super) fn over(rest: &UdpLinkState) -> String {
    let link = rest
        .link
        .as_ref()
        .map_or_else(|| "by the host's own default route".to_owned(), |link| format!("over {}", printable(link)));
    format!("{link}: {}", rest.reason.describe())
}

/// Over which links this host's own name queries leave, and why, where that is not as its routes have it; a line each.
pub(super) fn names(now: &NamesNow) -> Vec<String> {
    let line = |of: &str, over: &NamesOver| {
        let NamesOver { link, instead_of, why } = over;
        let (link, own) = (printable(link), printable(instead_of));
        let refused = now
            .error
            .as_ref()
            .map_or_else(String::new, |error| format!("; the kernel refuses: {}", printable(error)));
        let (verb, refused) = if refused.is_empty() { ("leave", refused) } else { ("should leave", refused) };
        format!("this host's name queries{of} {verb} over {link} instead of {own}: {}{refused}", why.words())
    };
    match (&now.v4, &now.v6) {
        (Some(v4), Some(v6)) if v4 == v6 => vec![line("", v4)],
        (v4, v6) => {
            let v4 = v4.iter().map(|over| line(" by IPv4", over));
            v4.chain(v6.iter().map(|over| line(" by IPv6", over))).collect()
        }
    }
}

fn state(link: &LinkState) -> &'static str {
    match (link.up, link.unresponsive) {
        (false, _) => "down",
        (true, true) => "silent",
        (true, false) => "up",
    }
}

fn service(fleet: &FleetStatus) -> String {
    let given = match (&fleet.assignment, fleet.reason) {
        (Some(held), _) => format!("has given {} with {}", held.relay, held.reservation),
        (None, Some(reason)) if fleet.waiting => {
            format!("has given no relay ({}): new flows wait until one has room", reason.as_str())
        }
        (None, Some(reason)) => format!("has given no relay ({})", reason.as_str()),
        (None, None) => "was not asked yet".to_owned(),
    };
    match &fleet.error {
        Some(why) => {
            format!("the service does not answer ({}); it {given}\n", printable(&explained(why, Peer::Service)))
        }
        None => format!("the service {given}\n"),
    }
}

fn none() -> String {
    "-".to_owned()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use marline_fleet::edge::NamesWhy;

    use super::*;

    #[test]
    fn name_queries_that_leave_over_another_link_have_a_line_with_the_reason() {
        let over = |link: &str, why| Some(NamesOver { link: link.to_owned(), instead_of: "eth0".to_owned(), why });
        assert_eq!(names(&NamesNow::default()), [""; 0]);
        let both = NamesNow {
            v4: over("wlan0", NamesWhy::Nameless),
            v6: over("wlan0", NamesWhy::Nameless),
            ..NamesNow::default()
        };
        let line = "this host's name queries leave over wlan0 instead of eth0: its name servers do not answer, and those of another \
                    link do";
        assert_eq!(names(&both), [line]);
        let each = NamesNow { v6: over("wwan0", NamesWhy::Down), error: Some("no such device".to_owned()), ..both };
        let lines = names(&each);
        assert!(lines[0].starts_with("this host's name queries by IPv4 should leave over wlan0"), "{lines:?}");
        let line = "this host's name queries by IPv6 should leave over wwan0 instead of eth0: it is down; the kernel refuses: no such device";
        assert_eq!(lines[1], line);
    }
}
