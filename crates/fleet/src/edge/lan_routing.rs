//! The rest of a LAN's packets on their way: what [`Rest`] decides, done to the kernel.
//!
//! In: the links at each look, and the kernel's word that something about its interfaces or routes has changed. Out: the way
//! ([`Beyond`]), and how it stands ([`RestNow`]).
//!
//! 1. A link without carrier, address or default route is left as soon as the kernel says so: the looks are two seconds apart.
//! 2. It is looked at most once in [`PAUSE`], whatever the kernel says.
//! 3. This host's own name queries leave a link of the default route that fails as well ([`names`]).
//! 4. What the kernel refuses is told once, and tried again at the next look; meanwhile the host's own default route counts. The rest and
//!    name queries are independent of each other in this.

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

/// chosen: a link that comes or goes changes a dozen things within it.
const MIN_INTERVAL: Duration = Duration::from_millis(300);

/// Leads the rest over the best single link until dropped.
pub(super) async fn run(beyond: Arc<Beyond>, edge: &Edge) -> Infallible {
    let (epoch, mut links) = (std::time::Instant::now(), edge.links.subscribe());
    let (mut silent, mut nameless) = (edge.unanswered_links.subscribe(), edge.nameless.subscribe());
    // Without it there are the looks.
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
        // What cannot be looked at is as it was.
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

/// What a look has led to.
#[derive(Debug)]
struct Followed {
    /// The interfaces of the host's own default routes.
    own: BTreeSet<String>,
    /// Whether the kernel leads the rest as it was decided.
    led: io::Result<()>,
    /// The way of name queries, with the kernel's refusal.
    names: NamesNow,
}

impl Default for Followed {
    fn default() -> Self {
        Self { own: BTreeSet::new(), led: Ok(()), names: NamesNow::default() }
    }
}

impl Followed {
    /// How the rest stands after what was decided.
    fn rest(&self, decided: &UdpLinkState) -> UdpLinkState {
        match self.led {
            Ok(()) => decided.clone(),
            Err(_) => UdpLinkState { link: None, reason: UdpLinkReason::KernelRefused },
        }
    }

    /// The interfaces by which packets leave whose fate no connection of the edge shows: the rest's, and name queries'. Those of the host's own
    /// default routes are there in any case: name queries return to them.
    fn passing(&self, rest: &UdpLinkState) -> BTreeSet<String> {
        self.own.iter().chain(&rest.link).cloned().collect()
    }
}

/// Tells how the rest and name queries stand; `refused` is what the kernel has refused before.
fn publish(edge: &Edge, followed: Followed, decided: &UdpLinkState, refused: &mut [Option<String>; 2]) {
    let stands = followed.rest(decided);
    edge.lan_uplink.send_replace(followed.passing(&stands));
    let errors = [followed.led.as_ref().err().map(ToString::to_string), followed.names.error.clone()];
    let what = [
        "the rest of the LAN's packets cannot be led over the best link",
        "this host's name queries cannot be led over another link",
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
            tracing::info!(link = stands.link, why = stands.reason.describe(), "the rest of the LAN's packets");
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

/// Looks, decides and acts, once; none: it cannot be looked.
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
        // One that does not carry is no link where nobody steers, but may still be where the kernel sends everything.
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

/// The links as the kernel has them now.
fn refresh_links(mut links: Vec<LinkState>, survey: &InterfaceList) -> Vec<LinkState> {
    for link in &mut links {
        link.up &= survey.by_name(&link.name).is_some_and(can_leave_by);
    }
    links
}

/// Whether something can leave by it.
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
    fn refused_rules_for_names_leave_the_rest_as_it_was_led_and_the_other_way_round() {
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
