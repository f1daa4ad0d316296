//! Chooses the link over which this host's own DNS queries leave. LAN clients often use this host as their DNS server.
//!
//! While the link of the host's default route is usable, queries follow the host's routes, because a provider's DNS servers may answer
//! only over that provider's link. A link is not usable if it is down or unresponsive, or if its DNS servers do not answer
//! ([`dns_watch`](super::dns_watch)). Then queries take the UDP link of the LAN (the best single link for packets without a tunnel), or
//! else the best usable link that has a default route of the query's address family. If a VPN has the default route, queries never leave
//! it.

use std::collections::BTreeSet;

use marline_core::fleet::udp_link::{self, ObservedLink};
use marline_net::links::{Interface, InterfaceList};
use marline_paths::gateway::DnsLinks;

use super::link_rates::LinkState;

/// State of the choice: over which links this host's own DNS queries leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DnsLinkState {
    /// Another link for queries over IPv4; `None`: they follow the host's own routes.
    pub v4: Option<DnsLinkOverride>,
    /// Another link for queries over IPv6; `None`: they follow the host's own routes.
    pub v6: Option<DnsLinkOverride>,
    /// Links whose own DNS servers do not answer over them, while those of another link do.
    pub nameless: BTreeSet<String>,
    /// Why the kernel refused the routes over these links; `None`: it did not.
    pub error: Option<String>,
}

/// A link that DNS queries take instead of the link of the host's own default route.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DnsLinkOverride {
    /// The interface that they take.
    pub link: String,
    /// The interface of the host's default route.
    pub instead_of: String,
    /// Why queries do not take the default route.
    pub reason: DnsLinkReason,
}

/// Why DNS queries do not take a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DnsLinkReason {
    /// The link is down.
    Down,
    /// The link is up, but unresponsive.
    Unresponsive,
    /// Its DNS servers do not answer, and those of another link do.
    DnsUnanswered,
}

impl DnsLinkReason {
    /// The reason as a clause for a log line or status.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Down => "it is down",
            Self::Unresponsive => "it does not answer",
            Self::DnsUnanswered => "its name servers do not answer, and those of another link do",
        }
    }

    fn of(link: &LinkState, nameless: &BTreeSet<String>) -> Option<Self> {
        match link {
            link if !link.up => Some(Self::Down),
            link if link.unresponsive => Some(Self::Unresponsive),
            link => nameless.contains(&link.name).then_some(Self::DnsUnanswered),
        }
    }
}

/// Chooses the links for the queries of each family, IPv4 first. `default_interfaces` are those of the default routes, `nameless`
/// the links whose DNS servers do not answer.
pub(super) fn choose<'a>(
    survey: &'a InterfaceList,
    links: &[LinkState],
    nameless: &BTreeSet<String>,
    default_interfaces: [Option<&Interface>; 2],
    udp_link: Option<&str>,
) -> (DnsLinks<'a>, DnsLinkState) {
    let now =
        |[v4, v6]: [Option<DnsLinkOverride>; 2]| DnsLinkState { v4, v6, nameless: nameless.clone(), error: None };
    if survey.vpn.is_some() {
        return (DnsLinks::default(), now([None, None]));
    }
    let has_route: [fn(&Interface) -> bool; 2] = [|link| link.route_v4.is_some(), |link| link.route_v6.is_some()];
    let choose_for = |family: usize| {
        let able = |link: &LinkState| survey.by_name(&link.name).is_some_and(has_route[family]);
        replacement(links, nameless, &default_interfaces[family]?.name, udp_link, able)
    };
    let found = [choose_for(0), choose_for(1)];
    let [v4, v6] = found.each_ref().map(|over| survey.by_name(&over.as_ref()?.link));
    (DnsLinks { v4, v6 }, now(found))
}

/// The link for queries instead of `default_link`; `able` tests whether a link has a route of the family. `None`: `default_link` is usable,
/// or no other link is.
fn replacement(
    links: &[LinkState],
    nameless: &BTreeSet<String>,
    default_link: &str,
    udp_link: Option<&str>,
    able: impl Fn(&LinkState) -> bool,
) -> Option<DnsLinkOverride> {
    // An interface that is not one of the links is not known to fail.
    let reason = DnsLinkReason::of(links.iter().find(|link| link.name == default_link)?, nameless)?;
    let able = || links.iter().filter(|link| DnsLinkReason::of(link, nameless).is_none() && able(link));
    let link = able().find(|link| Some(link.name.as_str()) == udp_link).or_else(|| best_link(able()))?;
    Some(DnsLinkOverride { link: link.name.clone(), instead_of: default_link.to_owned(), reason })
}

/// The best of these links by the rules for LAN packets; the first one of equals.
fn best_link<'a>(links: impl Iterator<Item = &'a LinkState>) -> Option<&'a LinkState> {
    let (links, observed): (Vec<&LinkState>, Vec<ObservedLink>) = links.map(|link| (link, link.into())).unzip();
    let best = udp_link::best(observed.iter())?;
    links.into_iter().find(|link| link.name == best.name)
}

#[cfg(test)]
mod tests {
    use marline_core::units::Bitrate;
    use marline_net::testing::{default_route, test_interface};

    use super::*;

    fn link(name: &str, mbps: u64) -> LinkState {
        LinkState { name: name.into(), up: true, peak_rate: Bitrate::from_mbps(mbps), ..LinkState::default() }
    }

    fn down(link: LinkState) -> LinkState {
        LinkState { up: false, ..link }
    }

    fn silent(link: LinkState) -> LinkState {
        LinkState { unresponsive: true, ..link }
    }

    fn of(links: &[LinkState], udp_link: Option<&str>) -> Option<String> {
        replacement(links, &BTreeSet::new(), "eth0", udp_link, |_| true).map(|over| over.link)
    }

    #[test]
    fn queries_follow_the_hosts_routes_while_its_link_is_usable() {
        assert_eq!(of(&[link("eth0", 1), link("wlan0", 50)], Some("wlan0")), None, "a faster link is no reason");
        assert_eq!(of(&[link("wlan0", 50)], Some("wlan0")), None, "the default route uses none of the links");
        assert_eq!(of(&[], None), None);
    }

    #[test]
    fn queries_take_the_udp_link_or_the_best_link_if_the_default_link_fails() {
        for dead in [down(link("eth0", 9)), silent(link("eth0", 9))] {
            assert_eq!(of(&[dead.clone(), link("wlan0", 1), link("wwan0", 2)], Some("wlan0")).unwrap(), "wlan0");
            assert_eq!(of(&[dead.clone(), link("wlan0", 1), link("wwan0", 2)], None).unwrap(), "wwan0");
            let both_silent = [dead.clone(), silent(link("wlan0", 1)), link("wwan0", 2)];
            assert_eq!(of(&both_silent, Some("wlan0")).unwrap(), "wwan0");
            assert_eq!(of(&[dead.clone(), silent(link("wlan0", 1))], Some("wlan0")), None, "none is better");
            assert_eq!(of(&[dead], None), None);
        }
        let metered = LinkState { metered: true, ..link("wwan0", 20) };
        assert_eq!(of(&[down(link("eth0", 9)), metered, link("wlan0", 2)], None).unwrap(), "wlan0");
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn queries_leave_a_link_whose_dns_servers_do_not_answer() {
        let links = [link("eth0", 9), link("wlan0", 1)];
        let override_of =
            |nameless: &[&str], udp_link| replacement(&links, &names(nameless), "eth0", udp_link, |_| true);
        let over = override_of(&["eth0"], Some("eth0")).unwrap();
        assert_eq!(
            (over.link.as_str(), over.instead_of.as_str(), over.reason),
            ("wlan0", "eth0", DnsLinkReason::DnsUnanswered)
        );
        assert_eq!(override_of(&["wlan0"], None), None);
        assert_eq!(override_of(&["eth0", "wlan0"], None), None);
    }

    /// An interface with default routes of IPv4, of IPv6 or of both.
    fn interface(name: &str, index: u32, families: [bool; 2]) -> Interface {
        let [route_v4, route_v6] = families.map(|has_route| has_route.then(|| default_route(100)));
        Interface { route_v4, route_v6, ..test_interface(name, index) }
    }

    #[test]
    fn queries_of_each_family_take_a_link_with_a_default_route_of_that_family() {
        let interfaces = vec![
            interface("eth0", 1, [true, true]),
            interface("wlan0", 2, [true, false]),
            interface("wwan0", 3, [false, true]),
            interface("wwan1", 4, [true, true]),
        ];
        let mut survey = InterfaceList { interfaces, vpn: None };
        let links = [silent(link("eth0", 9)), link("wlan0", 9), link("wwan0", 1), link("wwan1", 0)];
        let chosen = |survey: &InterfaceList, links: &[LinkState], udp_link| {
            let default_interfaces = [survey.by_name("eth0"); 2];
            let (chosen, now) = choose(survey, links, &names(&["wwan9"]), default_interfaces, udp_link);
            let [v4, v6] = [(chosen.v4, &now.v4), (chosen.v6, &now.v6)].map(|(interface, replacement)| {
                assert_eq!(interface.map(|link| &link.name), replacement.as_ref().map(|over| &over.link));
                interface.map_or("", |link| &link.name).to_owned()
            });
            assert_eq!((now.nameless, now.error), (names(&["wwan9"]), None));
            (v4, v6)
        };
        let pair = |v4: &str, v6: &str| (v4.to_owned(), v6.to_owned());
        assert_eq!(chosen(&survey, &links, Some("wlan0")), pair("wlan0", "wwan0"));
        assert_eq!(chosen(&survey, &links, Some("wwan1")), pair("wwan1", "wwan1"));
        assert_eq!(chosen(&survey, &links[..2], Some("wlan0")), pair("wlan0", ""), "no other link has IPv6");
        survey.vpn = Some("tun0".to_owned());
        assert_eq!(chosen(&survey, &links, Some("wlan0")), pair("", ""));
    }
}
