//! Notices of a running edge, one line for each change of its state: failing relays, unused links, the path of new flows,
//! assignments of the fleet service, and the links of the LAN's UDP and of this host's DNS queries.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::time::{Duration, Instant};

use marline_core::link_choice::LinkFailure;
use marline_fleet::edge::{
    DnsLinkState, Edge, FailingLink, FleetStatus, FlowStats, RelayStatus, UdpLinkState, UnusedLink,
};
use marline_fleet::service::api_types::NoRelayReason;
use marline_paths::gateway::Obstructions;
use tokio::sync::watch;

use super::args::NoRelayPolicy;
use super::fault::{PeerKind, with_remedy};
use super::status;
use crate::output::print_notice;

/// Path of the newest flow.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FlowPath {
    /// Through the relay with this label.
    Relay(String),
    /// To the server without a relay.
    Direct,
    /// No path: the flow was refused.
    Refused,
}

impl FlowPath {
    /// Path of the flows that began between two samples of the counters; `None` if no counter has grown.
    fn between(previous: &FlowStats, current: &FlowStats) -> Option<Self> {
        let carried_flows = |state: &FlowStats| state.carried.values().sum::<u64>();
        match &current.last_relay {
            Some(relay) if carried_flows(current) > carried_flows(previous) => Some(Self::Relay(relay.clone())),
            _ if current.direct > previous.direct => Some(Self::Direct),
            _ if current.refused > previous.refused => Some(Self::Refused),
            _ => None,
        }
    }
}

/// Prints a notice when the path of new flows changes. `refusal` describes the policy for flows without a relay.
pub(super) async fn report_flow_paths(edge: &Edge, refusal: &str) -> Infallible {
    let mut state = edge.state();
    let mut reported = ReportedPath::default();
    let mut previous = FlowStats::default();
    loop {
        let refusal_due = async {
            match reported.refusal_due_at() {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => pending().await,
            }
        };
        let new_path = tokio::select! {
            changed = state.changed() => {
                if changed.is_err() {
                    pending::<()>().await;
                }
                let current = state.borrow_and_update().clone();
                let path = FlowPath::between(&previous, &current);
                previous = current;
                path.and_then(|path| reported.on_flow(Instant::now(), path))
            }
            () = refusal_due => reported.on_flow(Instant::now(), FlowPath::Refused),
        };
        let Some(new_path) = new_path else { continue };
        // Errors change more often than the path, and `report_relays` prints them as well.
        let relay_errors: Vec<String> = match new_path {
            FlowPath::Relay(_) => Vec::new(),
            _ => edge.relays().iter().filter_map(relay_error).collect(),
        };
        let error_text =
            if relay_errors.is_empty() { String::new() } else { format!(" ({})", relay_errors.join("; ")) };
        match new_path {
            FlowPath::Relay(relay) => print_notice(&format!("new flows go through {relay}")),
            FlowPath::Direct => {
                print_notice(&format!("new flows go directly, over one link: no relay is available{error_text}"))
            }
            FlowPath::Refused => print_notice(&format!("new flows {refusal}: no relay is available{error_text}")),
        }
    }
}

/// The last reported path of new flows. A relay that is full accepts some flows and refuses others, so refusals are reported
/// at most once in [`MIN_NOTICE_INTERVAL`], and at its end if flows are still refused then.
#[derive(Debug, Default)]
struct ReportedPath {
    path: Option<FlowPath>,
    /// Time of the last report of refused flows.
    refusal_reported_at: Option<Instant>,
    /// The newest flow was refused, but this is not reported yet.
    is_refusal_pending: bool,
}

impl ReportedPath {
    /// Records the path of a new flow. Returns it if a notice is due now.
    fn on_flow(&mut self, now: Instant, new_path: FlowPath) -> Option<FlowPath> {
        let has_changed = self.path.as_ref() != Some(&new_path);
        self.is_refusal_pending = false;
        if has_changed && new_path == FlowPath::Refused {
            self.is_refusal_pending =
                self.refusal_reported_at.is_some_and(|reported_at| now < reported_at + MIN_NOTICE_INTERVAL);
            self.refusal_reported_at = if self.is_refusal_pending { self.refusal_reported_at } else { Some(now) };
        }
        if !has_changed || self.is_refusal_pending {
            return None;
        }
        self.path = Some(new_path.clone());
        Some(new_path)
    }

    /// When the pending report of refused flows is due, unless another path is used before.
    fn refusal_due_at(&self) -> Option<Instant> {
        self.refusal_reported_at
            .filter(|_| self.is_refusal_pending)
            .map(|reported_at| reported_at + MIN_NOTICE_INTERVAL)
    }
}

/// Error of a relay with its label and remedy, such as `fra-1: no answer; …`.
fn relay_error(relay: &RelayStatus) -> Option<String> {
    let error_text = with_remedy(relay.error.as_ref()?, PeerKind::Relay);
    Some(if error_text.starts_with(&relay.label) { error_text } else { format!("{}: {error_text}", relay.label) })
}

/// Delay after a change before the state is read. Our choice, so that several changes give one line: a draining relay alternately
/// accepts connections and refuses requests.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// Least time between two notices about the same relay, or about refused flows.
const MIN_NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// Prints which relay cannot be used and why, and when it works again. Each relay has at most one notice in
/// [`MIN_NOTICE_INTERVAL`]; of several changes within that time, the last one is printed at its end.
pub(super) async fn report_relays(edge: &Edge) -> Infallible {
    let mut changes = edge.relay_changes();
    let mut reported: BTreeMap<String, (Option<String>, Instant)> = BTreeMap::new();
    loop {
        let mut next_due = None::<Instant>;
        for relay in edge.relays() {
            let previous = reported.get(&relay.label);
            if previous.map_or(&None, |(reported_error, _)| reported_error) == &relay.error {
                continue;
            }
            // Too early after the last notice: the loop runs again when the interval has passed.
            if let Some((_, reported_at)) = previous.filter(|(_, at)| at.elapsed() < MIN_NOTICE_INTERVAL) {
                let due_at = *reported_at + MIN_NOTICE_INTERVAL;
                next_due = Some(next_due.map_or(due_at, |next| next.min(due_at)));
                continue;
            }
            match &relay.error {
                Some(error) => print_notice(&format!(
                    "relay {} cannot be used: {}; the edge keeps trying",
                    relay.label,
                    with_remedy(error, PeerKind::Relay)
                )),
                None => print_notice(&format!("relay {} can be used again", relay.label)),
            }
            reported.insert(relay.label, (relay.error, Instant::now()));
        }
        let wait = async {
            match next_due {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => match changed {
                Ok(()) => tokio::time::sleep(SETTLE_TIME).await,
                Err(_) => pending().await,
            },
            () = wait => {}
        }
    }
}

/// Prints which relay does not support MPTCP, and when it supports it again.
pub(super) async fn report_mptcp(edge: &Edge) -> Infallible {
    let mut changes = edge.relay_changes();
    let mut reported: BTreeSet<String> = BTreeSet::new();
    loop {
        let without_mptcp: BTreeSet<String> =
            edge.relays().into_iter().filter(|relay| relay.without_mptcp).map(|relay| relay.label).collect();
        without_mptcp
            .difference(&reported)
            .for_each(|relay| print_notice(&status::relay_without_mptcp_text(relay)));
        reported
            .difference(&without_mptcp)
            .for_each(|relay| print_notice(&format!("relay {relay}: MPTCP works again")));
        reported = without_mptcp;
        if changes.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

/// Prints which links are not used for connections to relays, at the start and after changes.
pub(super) async fn report_unused_links(mut links: watch::Receiver<Vec<UnusedLink>>) -> Infallible {
    let mut reported: Vec<UnusedLink> = Vec::new();
    loop {
        if links.changed().await.is_err() {
            pending::<()>().await;
        }
        let current = links.borrow_and_update().clone();
        for link in current.iter().filter(|link| !reported.contains(link)) {
            print_notice(&format!("link {} is not used: {}", link.name, link.reason));
        }
        for link in
            reported.iter().filter(|link| !current.iter().any(|current_link| current_link.name == link.name))
        {
            print_notice(&format!("link {}: can be used again", link.name));
        }
        reported = current;
    }
}

/// Prints which links do not reach the relay and why, and when they reach it again.
pub(super) async fn report_failing_links(edge: &Edge) -> Infallible {
    let mut links = edge.failing_links();
    let mut reported: Vec<FailingLink> = Vec::new();
    loop {
        if links.changed().await.is_err() {
            pending::<()>().await;
        }
        // The reason and the alternative link often change within a moment, for example from a timeout to a refusal. Only the
        // last state is printed.
        tokio::time::sleep(SETTLE_TIME).await;
        let current = links.borrow_and_update().clone();
        for link in &current {
            if !reported.iter().any(|previous| previous.name == link.name && previous.reason == link.reason) {
                let alternative =
                    link.alternative.as_ref().map_or_else(String::new, |other| format!("; {other} does"));
                match link.reason {
                    LinkFailure::MptcpStripped => {
                        print_notice(&status::mptcp_stripped_text(&link.name, link.alternative.as_deref()))
                    }
                    failure => print_notice(&format!(
                        "link {} {}: {}{alternative}; the edge keeps trying",
                        link.name,
                        status::link_failure_text(edge.relays().iter().map(|relay| relay.failing)),
                        failure.description()
                    )),
                }
            }
        }
        for link in
            reported.iter().filter(|link| !current.iter().any(|current_link| current_link.name == link.name))
        {
            match link.reason {
                LinkFailure::MptcpStripped => {
                    print_notice(&format!("MPTCP is no longer stripped over {}", link.name))
                }
                _ => print_notice(&format!("new connections can start over link {} again", link.name)),
            }
        }
        reported = current;
    }
}

/// Prints that the URL of the portal probe may be wrong or blocked.
pub(super) async fn report_portal_probe(mut doubted: watch::Receiver<bool>) -> Infallible {
    loop {
        if doubted.changed().await.is_err() {
            pending::<()>().await;
        }
        if *doubted.borrow_and_update() {
            print_notice(
                "the portal probe gets a response other than 204 over every link: its URL may be wrong or blocked (--portal-probe), \
                 or all links have captive portals; the result is ignored",
            );
        }
    }
}

/// Prints what the fleet service assigns, and when it does not respond. `refusal_text` describes the policy for flows
/// without a relay.
pub(super) async fn report_fleet(
    edge: &Edge,
    fleet_status: Option<watch::Receiver<FleetStatus>>,
    no_relay_policy: NoRelayPolicy,
    refusal_text: &str,
) -> Infallible {
    let Some(mut fleet_status) = fleet_status else { pending().await };
    let (mut assigned, mut is_unresponsive, mut refused_reason) = (None, false, None);
    loop {
        if fleet_status.changed().await.is_err() {
            pending::<()>().await;
        }
        let current = fleet_status.borrow_and_update().clone();
        if is_unresponsive != current.error.is_some() {
            is_unresponsive = current.error.is_some();
            match &current.error {
                Some(error) => {
                    let error_text = with_remedy(error, PeerKind::Service);
                    match edge.relays().is_empty() {
                        true => print_notice(&format!(
                            "the fleet's service does not answer: {error_text}; no relay is known: new flows {refusal_text}"
                        )),
                        false => print_notice(&format!(
                            "the fleet's service does not answer: {error_text}; known relays stay in use"
                        )),
                    }
                }
                None => print_notice("the fleet's service answers again"),
            }
        }
        let reason =
            current.reason.filter(|reason| current.assignment.is_none() && *reason != NoRelayReason::Pending);
        if let Some(reason) = reason.filter(|reason| refused_reason != Some(*reason)) {
            let consequence = match reason {
                _ if current.waiting => {
                    "new flows wait until a relay has capacity (--direct sends them without a relay)"
                }
                NoRelayReason::NoGain if no_relay_policy == NoRelayPolicy::Refused => {
                    "direct flows are not allowed, so the current relay stays in use"
                }
                _ => "known relays are used without a reservation",
            };
            print_notice(&format!(
                "the fleet's service reserves no relay for this edge ({}); {consequence}",
                reason.as_str()
            ));
        }
        refused_reason = if current.assignment.is_some() { None } else { reason.or(refused_reason) };
        let assignment = current.assignment.map(|assignment| (assignment.relay, assignment.reservation));
        if assignment.is_some() && assignment != assigned {
            assigned = assignment;
            if let Some((assigned_relay, reserved)) = &assigned {
                print_notice(&format!(
                    "the fleet's service has assigned {assigned_relay} and reserved {reserved} for this edge"
                ));
            }
        }
    }
}

/// Prints when the state file cannot be written, and when it can be written again.
pub(super) async fn report_state_file(mut write_error: watch::Receiver<Option<String>>) -> Infallible {
    loop {
        if write_error.changed().await.is_err() {
            pending::<()>().await;
        }
        match write_error.borrow_and_update().as_ref() {
            Some(error) => print_notice(&status::state_error_text(error)),
            None => print_notice("the state of relays is saved again"),
        }
    }
}

/// Prints which firewall rules and settings of this host block packets of the LAN, and when none does anymore.
pub(super) async fn report_obstructions(obstructions: Option<watch::Receiver<Obstructions>>) -> Infallible {
    let Some(mut obstructions) = obstructions else { pending().await };
    let (mut reported, mut reported_unchecked): (Vec<String>, Vec<String>) = Default::default();
    loop {
        if obstructions.changed().await.is_err() {
            pending::<()>().await;
        }
        let Obstructions { repaired, obstructions: stops, unchecked, .. } =
            obstructions.borrow_and_update().clone();
        repaired.iter().for_each(|line| print_notice(line));
        stops.iter().filter(|line| !reported.contains(line)).for_each(|line| print_notice(line));
        if stops.is_empty() && !reported.is_empty() {
            print_notice(match unchecked.is_empty() {
                true => "no firewall or setting of this host blocks packets of the LAN anymore",
                false => "no firewall or setting that can be checked blocks packets of the LAN",
            });
        }
        unchecked.iter().filter(|line| !reported_unchecked.contains(line)).for_each(|line| print_notice(line));
        (reported, reported_unchecked) = (stops, unchecked);
    }
}

/// Prints which link UDP and other packets of the LAN use, at the start and after changes.
pub(super) async fn report_udp_link(mut udp_link: watch::Receiver<Option<UdpLinkState>>) -> Infallible {
    loop {
        if udp_link.changed().await.is_err() {
            pending::<()>().await;
        }
        if let Some(current) = udp_link.borrow_and_update().as_ref() {
            print_notice(&format!("UDP and other packets of the LAN leave {}", status::udp_link_text(current)));
        }
    }
}

/// Prints when this host's DNS queries use another link than its routes select, why, and when they use the routes again.
pub(super) async fn report_name_queries(mut name_queries: watch::Receiver<Option<DnsLinkState>>) -> Infallible {
    let mut reported: Vec<String> = Vec::new();
    loop {
        if name_queries.changed().await.is_err() {
            pending::<()>().await;
        }
        // Changes of several links often follow each other within a moment.
        tokio::time::sleep(SETTLE_TIME).await;
        let notices: Vec<String> =
            name_queries.borrow_and_update().iter().flat_map(status::name_query_lines).collect();
        notices.iter().filter(|line| !reported.contains(line)).for_each(|line| print_notice(line));
        if notices.is_empty() && !reported.is_empty() {
            print_notice("this host's DNS queries follow its routes again");
        }
        reported = notices;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_new_flows_is_that_of_the_newest_flow() {
        let none = FlowStats::default();
        let mut carried = FlowStats { last_relay: Some("fra-1".to_owned()), ..none.clone() };
        carried.carried.insert("fra-1".to_owned(), 1);
        let via_relay = Some(FlowPath::Relay("fra-1".to_owned()));
        assert_eq!(FlowPath::between(&none, &carried), via_relay);
        // A flow that ended, or that a relay refused, shows no path.
        assert_eq!(FlowPath::between(&carried, &FlowStats { open: 1, failed: 1, ..carried.clone() }), None);
        let refused = FlowStats { refused: 1, failed: 1, ..carried.clone() };
        assert_eq!(FlowPath::between(&carried, &refused), Some(FlowPath::Refused));
        let direct = FlowStats { direct: 1, last_relay: None, ..refused.clone() };
        assert_eq!(FlowPath::between(&refused, &direct), Some(FlowPath::Direct));
        let mut again = FlowStats { last_relay: carried.last_relay.clone(), ..direct.clone() };
        again.carried.insert("fra-1".to_owned(), 2);
        assert_eq!(FlowPath::between(&direct, &again), via_relay);
    }

    #[test]
    fn refused_flows_soon_after_a_report_are_reported_later_if_they_last() {
        let (mut reported, began) = (ReportedPath::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        let relay = || FlowPath::Relay("fra-1".to_owned());
        assert_eq!(reported.on_flow(at(0), FlowPath::Refused), Some(FlowPath::Refused));
        assert_eq!(reported.on_flow(at(1), relay()), Some(relay()));
        // Every flow is refused.
        for second in 2..10 {
            assert_eq!(
                (reported.on_flow(at(second), FlowPath::Refused), reported.refusal_due_at()),
                (None, Some(at(10)))
            );
        }
        assert_eq!(
            (reported.on_flow(at(10), FlowPath::Refused), reported.refusal_due_at()),
            (Some(FlowPath::Refused), None)
        );
        assert_eq!((reported.on_flow(at(11), FlowPath::Refused), reported.refusal_due_at()), (None, None));
        // Some flows are carried, which is reported once. Refusals are reported once in ten seconds.
        assert_eq!(reported.on_flow(at(12), relay()), Some(relay()));
        assert_eq!((reported.on_flow(at(13), FlowPath::Refused), reported.refusal_due_at()), (None, Some(at(20))));
        assert_eq!((reported.on_flow(at(14), relay()), reported.refusal_due_at()), (None, None));
        assert_eq!(reported.on_flow(at(21), FlowPath::Refused), Some(FlowPath::Refused));
    }
}
