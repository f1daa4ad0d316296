//! Routes LAN packets that no tunnel carries over the link that [`UdpLinkSelector`] chooses.
//!
//! The driver combines samples of the links with the kernel's notifications about interfaces and routes. It sets the route ([`Beyond`]) and
//! publishes the state ([`UdpLinkState`]).
//!
//! 1. A link without carrier, address or default route is left as soon as the kernel reports it, because samples are two seconds apart.
//! 2. Updates are at least [`MIN_INTERVAL`] apart, however often the kernel reports changes.
//! 3. This host's own DNS queries also leave the link of the default route if it fails ([`names`]).
//! 4. A route that the kernel refuses is logged once, and tried again at the next sample; until then packets follow the host's own default
//!    route. This holds for LAN packets and DNS queries independently.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use marline_core::units::Instant;
use marline_net::links::{Interface, InterfaceList, Monitor, Usability, list_interfaces};
use marline_paths::gateway::{Beyond, NameLinks};

use super::Edge;
use super::link_rates::LinkState;
use super::names::{self, NamesNow};
use super::udp_link::{UdpLinkReason, UdpLinkSelector, UdpLinkState};

/// chosen: a link that appears or disappears causes a dozen changes within this time.
const MIN_INTERVAL: Duration = Duration::from_millis(300);

/// Routes LAN packets over the best single link until dropped.
pub(super) async fn run(beyond: Arc<Beyond>, edge: &Edge) -> Infallible {
    let (epoch, mut links) = (std::time::Instant::now(), edge.links.subscribe());
    let (mut silent, mut nameless) = (edge.unanswered_links.subscribe(), edge.nameless.subscribe());
    // Without a monitor the periodic samples suffice.
    let mut monitor = Monitor::new().ok();
    let (mut rest, mut refused) = (UdpLinkSelector::default(), [None, None]);
    loop {
        silent.mark_unchanged();
        let states = links.borrow_and_update().clone();
        let states = edge.mark_unanswered(states);
        let without_names = nameless.borrow_and_update().clone();
        let now = Instant::from_millis(u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX));
        let beyond = Arc::clone(&beyond);
        let update = tokio::task::spawn_blocking(move || {
            let followed = update_route(&mut rest, &beyond, now, states, &without_names);
            (rest, followed)
        });
        let followed = match update.await {
            Ok((decided, followed)) => {
                rest = decided;
                followed
            }
            Err(error) => {
                rest = UdpLinkSelector::default();
                Some(Followed { led: Err(io::Error::other(error)), ..Followed::default() })
            }
        };
        // Without a survey of the interfaces the state is unchanged.
        if let Some(followed) = followed {
            publish(edge, followed, rest.now(), &mut refused);
        }
        tokio::time::sleep(MIN_INTERVAL).await;
        tokio::select! {
            _ = links.changed() => {}
            _ = silent.changed() => {}
            _ = nameless.changed() => {}
            () = network_changed(&mut monitor) => {}
        }
    }
}

/// Result of an update.
#[derive(Debug)]
struct Followed {
    /// The interfaces of the host's own default routes.
    own: BTreeSet<String>,
    /// Whether the kernel accepted the chosen route for LAN packets.
    led: io::Result<()>,
    /// The links of DNS queries, with the error if the kernel refused them.
    names: NamesNow,
}

impl Default for Followed {
    fn default() -> Self {
        Self { own: BTreeSet::new(), led: Ok(()), names: NamesNow::default() }
    }
}

impl Followed {
    /// The state of LAN packets: what was decided, if the kernel accepted it.
    fn rest(&self, decided: &UdpLinkState) -> UdpLinkState {
        match self.led {
            Ok(()) => decided.clone(),
            Err(_) => UdpLinkState { link: None, reason: UdpLinkReason::KernelRefused },
        }
    }

    /// The interfaces that carry packets which no connection of the edge monitors: those of LAN packets and of DNS queries. The interfaces
    /// of the host's own default routes are always included, because DNS queries return to them.
    fn passing(&self, rest: &UdpLinkState) -> BTreeSet<String> {
        self.own.iter().chain(&rest.link).cloned().collect()
    }
}

/// Publishes the state of LAN packets and DNS queries; `refused` holds the errors that were already logged.
fn publish(edge: &Edge, followed: Followed, decided: &UdpLinkState, refused: &mut [Option<String>; 2]) {
    let stands = followed.rest(decided);
    edge.lan_uplink.send_replace(followed.passing(&stands));
    let errors = [followed.led.as_ref().err().map(ToString::to_string), followed.names.error.clone()];
    let what = [
        "kernel refuses to route LAN packets without a tunnel over the best link",
        "kernel refuses to route this host's DNS queries over another link",
    ];
    for ((error, before), what) in errors.iter().zip(&*refused).zip(what) {
        if let Some(error) = error.as_ref().filter(|_| error != before) {
            tracing::warn!(link = decided.link, error, "{what}");
        }
    }
    *refused = errors;
    edge.udp_link.send_if_modified(|now| {
        let is_new = now.as_ref() != Some(&stands);
        if is_new {
            tracing::info!(
                link = stands.link,
                why = stands.reason.describe(),
                "link for LAN packets without a tunnel"
            );
            *now = Some(stands);
        }
        is_new
    });
    let names = Some(followed.names);
    edge.names.send_if_modified(|now| {
        *now != names && {
            *now = names;
            true
        }
    });
}

/// Surveys the interfaces, decides and sets the routes; `None`: the survey failed.
fn update_route(
    rest: &mut UdpLinkSelector,
    beyond: &Beyond,
    now: Instant,
    links: Vec<LinkState>,
    nameless: &BTreeSet<String>,
) -> Option<Followed> {
    let survey = list_interfaces().ok()?;
    let of = |index: u32| survey.interfaces.iter().find(|interface| interface.index == index);
    let exits = beyond.own().map(|index| index.and_then(of));
    let interface = exits.into_iter().flatten().next();
    let (mut over, mut names) = (NameLinks::default(), NamesNow::default());
    if !links.is_empty() {
        let mut links = refresh_links(links, &survey);
        // Without a daemon, an interface that is not usable is not one of the links, but the kernel may still route everything over it.
        for interface in exits.into_iter().flatten().filter(|interface| !can_leave_by(interface)) {
            if !links.iter().any(|link| link.name == interface.name) {
                links.push(LinkState { name: interface.name.clone(), ..LinkState::default() });
            }
        }
        rest.update(now, &links, interface.map(|interface| interface.name.as_str()));
        (over, names) = names::over(&survey, &links, nameless, exits, rest.now().link.as_deref());
    }
    let led = beyond.lead(rest.now().link.as_deref().and_then(|name| survey.by_name(name)));
    names.error = beyond.lead_names(over).err().map(|error| error.to_string());
    let interface = exits.into_iter().flatten().map(|interface| interface.name.clone()).collect();
    Some(Followed { own: interface, led, names })
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

async fn network_changed(monitor: &mut Option<Monitor>) {
    let Some(open) = monitor else { return pending().await };
    if open.changed().await.is_err() {
        *monitor = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_routes_for_dns_queries_do_not_affect_lan_packets_and_vice_versa() {
        let decided = UdpLinkState { link: Some("wlan0".to_owned()), reason: UdpLinkReason::Fastest };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let names = NamesNow { error: Some("refused".to_owned()), ..NamesNow::default() };
        let followed = Followed { own: set(&["eth0"]), names, ..Followed::default() };
        let rest = followed.rest(&decided);
        assert_eq!((&rest, followed.passing(&rest)), (&decided, set(&["eth0", "wlan0"])));
        let followed = Followed { led: Err(io::Error::other("refused")), ..followed };
        let rest = followed.rest(&decided);
        assert_eq!(rest, UdpLinkState { link: None, reason: UdpLinkReason::KernelRefused });
        assert_eq!(followed.passing(&rest), set(&["eth0"]), "the host's own default route counts");
    }
}
