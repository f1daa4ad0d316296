//! Routes LAN packets that no tunnel carries over the link that [`UdpLinkSelector`] chooses.
//!
//! The driver combines samples of the links with the kernel's notifications about interfaces and routes. It sets the route
//! ([`NonTcpRoute`]) and publishes the state ([`UdpLinkState`]).
//!
//! 1. A link without carrier, address or default route is left as soon as the kernel reports it, because samples are two seconds apart.
//! 2. Updates are at least [`MIN_INTERVAL`] apart, however often the kernel reports changes.
//! 3. This host's own DNS queries also leave the link of the default route if it fails ([`dns_link`]).
//! 4. A route that the kernel refuses is logged once, and tried again at the next sample; until then packets follow the host's own default
//!    route. This holds for LAN packets and DNS queries independently.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use marline_core::fleet::udp_link::{LinkSample, UdpLinkReason, UdpLinkSelector, UdpLinkState};
use marline_core::machine::Machine as _;
use marline_core::units::Instant;
use marline_net::links::{Interface, InterfaceList, RetryingMonitor, Usability, list_interfaces};
use marline_paths::gateway::{DnsLinks, NonTcpRoute};

use super::Edge;
use super::dns_link::{self, DnsLinkState};
use super::link_rates::LinkState;

/// Our choice: a link that appears or disappears causes a dozen changes within this time.
const MIN_INTERVAL: Duration = Duration::from_millis(300);

/// Routes LAN packets over the best single link until dropped.
pub(super) async fn run(beyond: Arc<NonTcpRoute>, edge: &Edge) -> Infallible {
    let (epoch, mut links) = (std::time::Instant::now(), edge.links.subscribe());
    let (mut unanswered_links, mut dns_failures) =
        (edge.unanswered_links.subscribe(), edge.dns_failures.subscribe());
    let mut monitor = RetryingMonitor::new();
    let (mut selector, mut logged_errors) = (UdpLinkSelector::default(), [None, None]);
    loop {
        unanswered_links.mark_unchanged();
        let states = links.borrow_and_update().clone();
        let states = edge.mark_unanswered(states);
        let failed_dns_links = dns_failures.borrow_and_update().clone();
        let now = Instant::from_millis(u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX));
        let beyond = Arc::clone(&beyond);
        let update = tokio::task::spawn_blocking(move || {
            let followed = update_route(&mut selector, &beyond, now, states, &failed_dns_links);
            (selector, followed)
        });
        let route_update = match update.await {
            Ok((decided, followed)) => {
                selector = decided;
                followed
            }
            Err(error) => {
                selector = UdpLinkSelector::default();
                Some(RouteUpdate { route_result: Err(io::Error::other(error)), ..RouteUpdate::default() })
            }
        };
        // Without a survey of the interfaces the state is unchanged.
        if let Some(followed) = route_update {
            publish(edge, followed, selector.state(), &mut logged_errors);
        }
        tokio::time::sleep(MIN_INTERVAL).await;
        tokio::select! {
            _ = links.changed() => {}
            _ = unanswered_links.changed() => {}
            _ = dns_failures.changed() => {}
            () = monitor.changed() => {}
        }
    }
}

#[derive(Debug)]
struct RouteUpdate {
    /// The interfaces of the host's own default routes.
    default_interfaces: BTreeSet<String>,
    /// Whether the kernel accepted the chosen route for LAN packets.
    route_result: io::Result<()>,
    /// The links of DNS queries, with the error if the kernel refused them.
    names: DnsLinkState,
}

impl Default for RouteUpdate {
    fn default() -> Self {
        Self { default_interfaces: BTreeSet::new(), route_result: Ok(()), names: DnsLinkState::default() }
    }
}

impl RouteUpdate {
    /// Which link LAN packets take: the decided one, if the kernel accepted the route.
    fn udp_link_state(&self, decided: &UdpLinkState) -> UdpLinkState {
        match self.route_result {
            Ok(()) => decided.clone(),
            Err(_) => UdpLinkState { link: None, reason: UdpLinkReason::KernelRefused },
        }
    }

    /// The interfaces that carry packets which no connection of the edge monitors: those of LAN packets and of DNS queries. The interfaces
    /// of the host's own default routes are always included, because DNS queries return to them.
    fn uplinks(&self, udp_link: &UdpLinkState) -> BTreeSet<String> {
        self.default_interfaces.iter().chain(&udp_link.link).cloned().collect()
    }
}

/// Publishes the state of LAN packets and DNS queries; `logged_errors` holds the errors of both that were already logged.
fn publish(edge: &Edge, followed: RouteUpdate, decided: &UdpLinkState, logged_errors: &mut [Option<String>; 2]) {
    let state = followed.udp_link_state(decided);
    edge.lan_uplink.send_replace(followed.uplinks(&state));
    let errors = [followed.route_result.as_ref().err().map(ToString::to_string), followed.names.error.clone()];
    let messages = [
        "kernel refuses to route LAN packets without a tunnel over the best link",
        "kernel refuses to route this host's DNS queries over another link",
    ];
    for ((error, before), message) in errors.iter().zip(&*logged_errors).zip(messages) {
        if let Some(error) = error.as_ref().filter(|_| error != before) {
            tracing::warn!(link = decided.link, error, "{message}");
        }
    }
    *logged_errors = errors;
    edge.udp_link.send_if_modified(|now| {
        let has_changed = now.as_ref() != Some(&state);
        if has_changed {
            tracing::info!(
                link = state.link,
                why = state.reason.describe(),
                "link for LAN packets without a tunnel"
            );
            *now = Some(state);
        }
        has_changed
    });
    let names = Some(followed.names);
    edge.dns_links.send_if_modified(|now| {
        *now != names && {
            *now = names;
            true
        }
    });
}

/// Surveys the interfaces, decides and sets the routes; `None`: the survey failed.
fn update_route(
    selector: &mut UdpLinkSelector,
    beyond: &NonTcpRoute,
    now: Instant,
    links: Vec<LinkState>,
    failed_dns_links: &BTreeSet<String>,
) -> Option<RouteUpdate> {
    let survey = list_interfaces().ok()?;
    let interface_by_index = |index: u32| survey.interfaces.iter().find(|interface| interface.index == index);
    let exits = beyond.host_exit_interfaces().map(|index| index.and_then(interface_by_index));
    let interface = exits.into_iter().flatten().next();
    let (mut over, mut names) = (DnsLinks::default(), DnsLinkState::default());
    if !links.is_empty() {
        let mut links = refresh_links(links, &survey);
        // Without a daemon, an interface that is not usable is not one of the links, but the kernel may still route everything over it.
        for interface in exits.into_iter().flatten().filter(|interface| !can_leave_by(interface)) {
            if !links.iter().any(|link| link.name == interface.name) {
                links.push(LinkState { name: interface.name.clone(), ..LinkState::default() });
            }
        }
        let default_link = interface.map(|interface| interface.name.clone());
        selector.handle(now, LinkSample { links: links.iter().map(Into::into).collect(), default_link });
        // The state is published as a whole, below.
        while selector.poll().is_some() {}
        (over, names) =
            dns_link::choose(&survey, &links, failed_dns_links, exits, selector.state().link.as_deref());
    }
    let route_result = beyond.set_link(selector.state().link.as_deref().and_then(|name| survey.by_name(name)));
    names.error = beyond.set_dns_links(over).err().map(|error| error.to_string());
    let interface = exits.into_iter().flatten().map(|interface| interface.name.clone()).collect();
    Some(RouteUpdate { default_interfaces: interface, route_result, names })
}

/// Updates the links with the current state of their interfaces.
fn refresh_links(mut links: Vec<LinkState>, survey: &InterfaceList) -> Vec<LinkState> {
    for link in &mut links {
        link.up &= survey.by_name(&link.name).is_some_and(can_leave_by);
    }
    links
}

/// Whether packets can leave over this interface.
fn can_leave_by(interface: &Interface) -> bool {
    let can_carry = match &interface.usability {
        Usability::Usable => true,
        Usability::Unused(reason) => reason.can_be_overridden(),
    };
    can_carry && (interface.route_v4.is_some() || interface.route_v6.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_routes_for_dns_queries_do_not_affect_lan_packets_and_vice_versa() {
        let decided = UdpLinkState { link: Some("wlan0".to_owned()), reason: UdpLinkReason::Fastest };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let names = DnsLinkState { error: Some("refused".to_owned()), ..DnsLinkState::default() };
        let followed = RouteUpdate { default_interfaces: set(&["eth0"]), names, ..RouteUpdate::default() };
        let state = followed.udp_link_state(&decided);
        assert_eq!((&state, followed.uplinks(&state)), (&decided, set(&["eth0", "wlan0"])));
        let followed = RouteUpdate { route_result: Err(io::Error::other("refused")), ..followed };
        let state = followed.udp_link_state(&decided);
        assert_eq!(state, UdpLinkState { link: None, reason: UdpLinkReason::KernelRefused });
        assert_eq!(followed.uplinks(&state), set(&["eth0"]), "the host's own default route counts");
    }
}
