//! Over which link this host's own name queries leave: a LAN's clients often have this host as their name server.
//!
//! As long as the link of the host's default route carries, its queries leave as its routes have it, because a provider's name servers may
//! answer over that provider's link alone. A link does not carry if it is down, does not answer, or gives no names. Then queries take the link
//! of the LAN's UDP, or the best one that carries. A VPN's default route is never left.

use std::collections::BTreeSet;

use marline_core::link_choice::LinkFailure;
use marline_net::links::{Interface, Survey};
use marline_net::paths::gateway::NameLinks;

use super::links::LinkNow;
use super::rest::best;
use crate::starts::FailingLink;

/// Links whose name servers give no names, by their names.
pub(super) fn without_names(failing: &[FailingLink]) -> BTreeSet<String> {
    let nameless = failing.iter().filter(|failing| failing.why == LinkFailure::Names);
    nameless.map(|failing| failing.name.clone()).collect()
}

/// The links for the queries of each family; `own` are the interfaces of the default routes, `rest` is the link of the LAN's UDP.
pub(super) fn over<'a>(
    survey: &'a Survey,
    links: &[LinkNow],
    nameless: &BTreeSet<String>,
    own: [Option<&Interface>; 2],
    rest: Option<&str>,
) -> NameLinks<'a> {
    if survey.vpn.is_some() {
        return NameLinks::default();
    }
    let [v4, v6] = own.map(|own| survey.named(instead(links, nameless, &own?.name, rest)?));
    NameLinks { v4, v6 }
}

/// The link in place of `own`; none: that one carries, or no other one does.
fn instead<'a>(
    links: &'a [LinkNow],
    nameless: &BTreeSet<String>,
    own: &str,
    rest: Option<&str>,
) -> Option<&'a str> {
    let carries = |link: &&LinkNow| link.up && !link.silent && !nameless.contains(&link.name);
    // What is no link is not known to fail.
    if links.iter().find(|link| link.name == own).is_none_or(|link| carries(&link)) {
        return None;
    }
    let able = || links.iter().filter(carries);
    let chosen = able().find(|link| Some(link.name.as_str()) == rest).or_else(|| best(able()));
    chosen.map(|link| link.name.as_str())
}

#[cfg(test)]
mod tests {
    use marline_core::units::Bitrate;

    use super::*;

    fn link(name: &str, mbps: u64) -> LinkNow {
        LinkNow { name: name.into(), up: true, most: Bitrate::from_mbps(mbps), ..LinkNow::default() }
    }

    fn down(link: LinkNow) -> LinkNow {
        LinkNow { up: false, ..link }
    }

    fn silent(link: LinkNow) -> LinkNow {
        LinkNow { silent: true, ..link }
    }

    fn of(links: &[LinkNow], rest: Option<&str>) -> Option<String> {
        instead(links, &BTreeSet::new(), "eth0", rest).map(str::to_owned)
    }

    #[test]
    fn queries_leave_as_the_host_has_it_while_its_link_carries() {
        assert_eq!(of(&[link("eth0", 1), link("wlan0", 50)], Some("wlan0")), None, "a faster link is no reason");
        assert_eq!(of(&[link("wlan0", 50)], Some("wlan0")), None, "the default route leads over no link");
        assert_eq!(of(&[], None), None);
    }

    #[test]
    fn they_take_the_lans_link_or_the_best_one_while_it_does_not() {
        for dead in [down(link("eth0", 9)), silent(link("eth0", 9))] {
            assert_eq!(of(&[dead.clone(), link("wlan0", 1), link("wwan0", 2)], Some("wlan0")).unwrap(), "wlan0");
            assert_eq!(of(&[dead.clone(), link("wlan0", 1), link("wwan0", 2)], None).unwrap(), "wwan0");
            let rest_too = [dead.clone(), silent(link("wlan0", 1)), link("wwan0", 2)];
            assert_eq!(of(&rest_too, Some("wlan0")).unwrap(), "wwan0");
            assert_eq!(of(&[dead.clone(), silent(link("wlan0", 1))], Some("wlan0")), None, "none is better");
            assert_eq!(of(&[dead], None), None);
        }
        let metered = LinkNow { metered: true, ..link("wwan0", 20) };
        assert_eq!(of(&[down(link("eth0", 9)), metered, link("wlan0", 2)], None).unwrap(), "wlan0");
    }

    #[test]
    fn a_link_whose_name_servers_are_dead_gives_no_names_to_the_lan_either() {
        let links = [link("eth0", 9), link("wlan0", 1)];
        let nameless = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(instead(&links, &nameless(&["eth0"]), "eth0", Some("eth0")), Some("wlan0"));
        assert_eq!(instead(&links, &nameless(&["wlan0"]), "eth0", None), None);
        assert_eq!(instead(&links, &nameless(&["eth0", "wlan0"]), "eth0", None), None);
        let row = |name: &str, why| FailingLink { name: name.to_owned(), why, instead: None };
        let failing = [row("eth0", LinkFailure::Names), row("wlan0", LinkFailure::Silent)];
        assert_eq!(without_names(&failing), nameless(&["eth0"]));
    }
}
