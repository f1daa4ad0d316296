//! Over which link this host's own name queries leave: a LAN's clients often have this host as their name server.
//!
//! As long as the link of the host's default route carries, its queries leave as its routes have it, because a provider's name servers may
//! answer over that provider's link alone. A link does not carry if it is down, does not answer, or gives no names. Then queries take the link
//! of the LAN's UDP, or the best one that carries. A VPN's default route is never left.
//!
//! A link gives no names if its own name servers do not answer over it, and those of another link do over that one ([`watch`]). Look-ups of
//! relays do not show this: they may be answered over the other link by the system's resolver.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use marline_net::links::{Interface, Survey, survey};
use marline_net::paths::gateway::NameLinks;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Edge;
use super::links::LinkNow;
use super::rest::best;
use super::unanswered::packets;

/// chosen: a user looks for a reason after some seconds; one query is some 150 bytes.
const EACH: Duration = Duration::from_secs(5);
/// chosen: more than a look itself sends.
const FEW: u64 = 4;

/// Looks whether the links by which packets leave give names, until dropped.
pub(super) async fn watch(edge: &Edge) -> Infallible {
    let mut before = BTreeMap::<String, u64>::new();
    loop {
        sleep(EACH).await;
        let passing = edge.passing.borrow().clone();
        let now: BTreeMap<String, u64> =
            passing.iter().filter_map(|link| Some((link.clone(), packets(link)?.sent))).collect();
        let is_used = |(link, sent): (&String, &u64)| {
            before.get(link).is_some_and(|before| sent.saturating_sub(*before) > FEW)
        };
        if !edge.nameless.borrow().is_empty() || now.iter().any(is_used) {
            let Ok(Ok(survey)) = spawn_blocking(survey).await else { continue };
            let links: Vec<LinkNow> = edge.links().into_iter().filter(|link| link.up && !link.silent).collect();
            let found = nameless(edge, &survey, &links, &passing).await;
            edge.nameless.send_if_modified(|nameless| std::mem::replace(nameless, found.clone()) != found);
        }
        before = now;
    }
}

/// Those of the links by which packets leave that give no names, if another link does.
async fn nameless(edge: &Edge, survey: &Survey, links: &[LinkNow], passing: &BTreeSet<String>) -> BTreeSet<String> {
    let gives = async |link: &LinkNow| match survey.named(&link.name) {
        Some(interface) => edge.roads.starts.resolver.gives_names(interface).await,
        None => None,
    };
    let (of_passing, others): (Vec<_>, Vec<_>) = links.iter().partition(|link| passing.contains(&link.name));
    let (mut without, mut is_given) = (BTreeSet::new(), false);
    for link in of_passing {
        match gives(link).await {
            Some(true) => is_given = true,
            Some(false) => drop(without.insert(link.name.clone())),
            None => {}
        }
    }
    if without.is_empty() || is_given {
        return without;
    }
    for other in others {
        if gives(other).await == Some(true) {
            return without;
        }
    }
    BTreeSet::new()
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
    }
}
