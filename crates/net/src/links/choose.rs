//! Which of the interfaces carry this run, and on what terms.
//!
//! In: a survey, the user's choice, what NetworkManager says of cost. Out: the links in a fixed order, and the lines
//! that the user should read; or the reason why there is none.
//!
//! 1. Without a choice: all usable interfaces, the kernel's preferred ones first (lowest metric, then number).
//! 2. A VPN that is the machine's way to the Internet is used alone, unless it is to be bypassed.
//! 3. Named interfaces: those that can carry anything, in the user's order; the others cost a line, not the run.
//! 4. On cost the user's word goes over NetworkManager's; if nobody says anything a link is not metered.
//! 5. An interface that the user speaks of and that is not used is worth a line, whichever way he spoke of it.

use marline_core::link::{LinkKind, LinkProfile};

use super::{Interface, LinksError, MeteredHints, Named, Reason, Survey, Verdict};

/// What the user wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Whatever is there.
    Auto {
        /// Use the links below an active VPN instead of it.
        bypass_vpn: bool,
        /// What the configuration says of interfaces, should they be used.
        known: Vec<Named>,
    },
    /// These.
    Named(Vec<Named>),
}

/// The links of this run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// At least one, each with its terms.
    pub links: Vec<(Interface, LinkProfile)>,
    /// Lines for the user, without a line end.
    pub warnings: Vec<String>,
    /// One more line, if a VPN decides which links are used.
    pub vpn: Option<String>,
}

/// Chooses the links.
///
/// # Errors
/// [`LinksError::NoLink`] when nothing that was found, or named, can carry anything.
pub fn choose(survey: &Survey, choice: &Choice, metered: &MeteredHints) -> Result<Chosen, LinksError> {
    let chosen = match choice {
        Choice::Auto { bypass_vpn, known } => automatic(survey, *bypass_vpn, known, metered),
        Choice::Named(named) => these(survey, named, metered),
    };
    if chosen.links.is_empty() {
        return Err(LinksError::NoLink { why: nothing(survey, choice, chosen.warnings) });
    }
    Ok(chosen)
}

fn automatic(survey: &Survey, bypass_vpn: bool, known: &[Named], metered: &MeteredHints) -> Chosen {
    let wanted = |interface: &&Interface| match &interface.verdict {
        Verdict::Usable => !(bypass_vpn && survey.vpn.as_ref() == Some(&interface.name)),
        Verdict::Unused(Reason::BelowVpn(_)) => bypass_vpn,
        Verdict::Unused(_) => false,
    };
    let mut interfaces: Vec<&Interface> = survey.interfaces.iter().filter(wanted).collect();
    interfaces
        .sort_by_key(|i| ([i.v4, i.v6].iter().flatten().map(|route| route.metric).min().unwrap_or(0), i.index));
    let terms = |interface: &Interface| {
        let said = known.iter().find(|named| named.name == interface.name);
        link(interface, &said.cloned().unwrap_or_else(|| Named::new(&interface.name)), metered)
    };
    let unused = |named: &&Named| named.spoken && !interfaces.iter().any(|i| i.name == named.name);
    let warnings =
        known.iter().filter(unused).map(|named| format!("{}; its limit has no effect", idle(survey, named)));
    let warnings = warnings.collect();
    let vpn = survey.vpn.as_ref().map(|vpn| {
        if bypass_vpn {
            format!("the VPN {vpn} is bypassed")
        } else {
            format!("the VPN {vpn} is this machine's way to the Internet: it is used alone (--bypass-vpn to use the links below it)")
        }
    });
    Chosen { links: interfaces.into_iter().map(terms).collect(), warnings, vpn }
}

fn these(survey: &Survey, named: &[Named], metered: &MeteredHints) -> Chosen {
    let mut chosen = Chosen { links: Vec::new(), warnings: Vec::new(), vpn: None };
    for (at, wish) in named.iter().enumerate() {
        let name = &wish.name;
        let mut warn = |text: String| chosen.warnings.push(format!("link {name}: {text}"));
        if named[..at].iter().any(|earlier| earlier.name == *name) {
            warn("named twice; the first one counts".to_owned());
            continue;
        }
        let Some(interface) = survey.named(name) else {
            warn("no such interface; going on with the rest".to_owned());
            continue;
        };
        match &interface.verdict {
            Verdict::Usable => {}
            Verdict::Unused(reason) if !reason.can_be_overruled() => {
                warn(format!("{reason}; going on with the rest"));
                continue;
            }
            Verdict::Unused(Reason::BelowVpn(vpn)) => warn(format!("it goes beside the VPN {vpn}")),
            Verdict::Unused(Reason::NoDefaultRoute) => {
                warn("it has no default route, so it reaches its own subnets only".to_owned());
            }
            Verdict::Unused(Reason::Loopback) => {}
            Verdict::Unused(reason) => warn(format!("{reason}; used because it was named")),
        }
        chosen.links.push(link(interface, wish, metered));
    }
    chosen
}

/// Interfaces that cannot be used now and may come to be: those of access networks that are down, without carrier,
/// address or default route. By name, in the kernel's order.
pub fn coming(survey: &Survey) -> impl Iterator<Item = &str> {
    let may_come = |interface: &&Interface| {
        let is_access = !matches!(interface.kind, LinkKind::Tunnel | LinkKind::Other);
        let waits = matches!(
            interface.verdict,
            Verdict::Unused(Reason::Down | Reason::NoCarrier | Reason::NoAddress | Reason::NoDefaultRoute)
        );
        is_access && waits
    };
    survey.interfaces.iter().filter(may_come).map(|interface| interface.name.as_str())
}

/// Why an interface that the user speaks of is not used.
fn idle(survey: &Survey, named: &Named) -> String {
    let why = match survey.named(&named.name).map(|interface| &interface.verdict) {
        None => "no such interface".to_owned(),
        Some(Verdict::Usable) => "it is the VPN, which is bypassed".to_owned(),
        Some(Verdict::Unused(reason)) => reason.to_string(),
    };
    format!("link {}: {why}", named.name)
}

/// What a choice means for a URL on this very machine, where no link leads: the terms of the loopback, and the lines
/// that the user should read.
pub fn choose_local(survey: &Survey, choice: &Choice) -> (LinkProfile, Vec<String>) {
    let (Choice::Auto { known: named, .. } | Choice::Named(named)) = choice;
    let is_named = matches!(choice, Choice::Named(_));
    let lo = survey.loopback().map_or("lo", |interface| interface.name.as_str());
    let mut profile = LinkProfile::new(lo, LinkKind::Other);
    let mut lines = Vec::new();
    for wish in named {
        if wish.name == lo {
            profile.kind = wish.kind.unwrap_or(profile.kind);
            profile.metered = wish.metered.unwrap_or(profile.metered);
            (profile.budget, profile.rate_limit) = (wish.budget, wish.limit);
        } else if is_named || wish.spoken {
            let why = if survey.named(&wish.name).is_some() { "not used" } else { "no such interface" };
            lines.push(format!("link {}: {why}; the URL is on this very machine and needs none", wish.name));
        }
    }
    (profile, lines)
}

/// An interface on the user's terms.
fn link(interface: &Interface, said: &Named, metered: &MeteredHints) -> (Interface, LinkProfile) {
    let mut interface = interface.clone();
    interface.metered = metered.of(&interface.name);
    let mut profile = LinkProfile::new(&interface.name, LinkKind::Other);
    said.overrule(&mut interface, &mut profile);
    (interface, profile)
}

/// The reasons why there is no link, a line each.
fn nothing(survey: &Survey, choice: &Choice, warnings: Vec<String>) -> Vec<String> {
    match choice {
        Choice::Named(_) => warnings.into_iter().map(|line| line.replace("; going on with the rest", "")).collect(),
        Choice::Auto { bypass_vpn, .. } => {
            let reason = |interface: &Interface| match &interface.verdict {
                Verdict::Unused(Reason::Loopback) => None,
                Verdict::Unused(reason) => Some(format!("{}: {reason}", interface.name)),
                Verdict::Usable if *bypass_vpn => Some(format!("{}: the VPN, which is bypassed", interface.name)),
                Verdict::Usable => None,
            };
            survey.interfaces.iter().filter_map(reason).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use marline_core::units::{Bitrate, DataSize};

    use super::*;
    use crate::links::{DefaultRoute, Metered, MeteredSource};

    /// An interface with an address, and a default route of this metric if there is one.
    fn interface(index: u32, name: &str, kind: LinkKind, metric: Option<u32>, verdict: Verdict) -> Interface {
        Interface {
            name: name.into(),
            index,
            kind,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            passing: Vec::new(),
            networks: Vec::new(),
            v4: metric.map(|metric| DefaultRoute { metric, table: 254, gateway: None }),
            v6: None,
            metered: None,
            mtu: 1500,
            emulated: false,
            verdict,
        }
    }

    fn unused(reason: Reason) -> Verdict {
        Verdict::Unused(reason)
    }

    fn laptop() -> Survey {
        Survey {
            interfaces: vec![
                interface(1, "lo", LinkKind::Other, None, unused(Reason::Loopback)),
                interface(2, "wlan0", LinkKind::Wifi, Some(600), Verdict::Usable),
                interface(3, "eth0", LinkKind::Ethernet, Some(100), Verdict::Usable),
                interface(4, "wwan0", LinkKind::Lte, Some(700), Verdict::Usable),
                interface(5, "eth1", LinkKind::Ethernet, None, unused(Reason::NoDefaultRoute)),
                interface(6, "docker0", LinkKind::Other, None, unused(Reason::Bridge)),
                interface(7, "eth2", LinkKind::Ethernet, None, unused(Reason::NoCarrier)),
            ],
            vpn: None,
        }
    }

    fn laptop_with_vpn() -> Survey {
        let mut survey = laptop();
        for interface in &mut survey.interfaces {
            if interface.is_usable() {
                interface.verdict = unused(Reason::BelowVpn("tun0".into()));
            }
        }
        survey.interfaces.push(interface(9, "tun0", LinkKind::Tunnel, Some(50), Verdict::Usable));
        survey.vpn = Some("tun0".into());
        survey
    }

    fn auto(bypass_vpn: bool) -> Choice {
        Choice::Auto { bypass_vpn, known: Vec::new() }
    }

    fn named(names: &[&str]) -> Choice {
        Choice::Named(names.iter().map(|name| name.parse().unwrap()).collect())
    }

    fn names(chosen: &Chosen) -> Vec<&str> {
        chosen.links.iter().map(|(interface, _)| interface.name.as_str()).collect()
    }

    #[test]
    fn each_choice_takes_its_links_and_says_what_it_leaves() {
        type Row<'a> = (&'a str, Survey, Choice, &'a [&'a str], &'a [&'a str]);
        let rows: [Row<'_>; 8] = [
            ("all, the preferred first", laptop(), auto(false), &["eth0", "wlan0", "wwan0"], &[]),
            ("nothing to bypass", laptop(), auto(true), &["eth0", "wlan0", "wwan0"], &[]),
            ("a VPN alone", laptop_with_vpn(), auto(false), &["tun0"], &[]),
            ("a VPN bypassed", laptop_with_vpn(), auto(true), &["eth0", "wlan0", "wwan0"], &[]),
            ("the user's order", laptop(), named(&["wwan0", "eth0"]), &["wwan0", "eth0"], &[]),
            (
                "one absent, one unplugged, one twice",
                laptop(),
                named(&["wwan9", "eth2", "wlan0", "wlan0,budget=1GB"]),
                &["wlan0"],
                &[
                    "link wwan9: no such interface; going on with the rest",
                    "link eth2: it has no carrier (no cable, access point or modem session); going on with the rest",
                    "link wlan0: named twice; the first one counts",
                ],
            ),
            (
                "what only the user can want",
                laptop(),
                named(&["eth1", "docker0", "lo"]),
                &["eth1", "docker0", "lo"],
                &[
                    "link eth1: it has no default route, so it reaches its own subnets only",
                    "link docker0: it is a bridge to containers or virtual machines; used because it was named",
                ],
            ),
            (
                "beside the VPN by name",
                laptop_with_vpn(),
                named(&["wlan0", "tun0"]),
                &["wlan0", "tun0"],
                &["link wlan0: it goes beside the VPN tun0"],
            ),
        ];
        for (case, survey, choice, links, warnings) in rows {
            let chosen = choose(&survey, &choice, &MeteredHints::none()).unwrap();
            assert_eq!(names(&chosen), links, "{case}");
            assert_eq!(chosen.warnings, warnings, "{case}");
        }
    }

    #[test]
    fn what_may_come_is_of_an_access_network_and_waits_for_something() {
        let mut survey = laptop();
        survey.interfaces.push(interface(8, "wlan1", LinkKind::Wifi, None, unused(Reason::Down)));
        survey.interfaces.push(interface(9, "tun1", LinkKind::Tunnel, None, unused(Reason::Down)));
        assert_eq!(coming(&survey).collect::<Vec<_>>(), ["eth1", "eth2", "wlan1"]);
    }

    #[test]
    fn a_link_that_the_user_speaks_of_and_that_is_not_used_costs_a_line() {
        let spoken = |name: &str| Named { spoken: true, limit: Some(Bitrate::from_mbps(1)), ..Named::new(name) };
        let known = vec![spoken("eth0"), spoken("wwan9"), spoken("eth2"), Named::new("only-configured")];
        let chosen = choose(&laptop(), &Choice::Auto { bypass_vpn: false, known }, &MeteredHints::none()).unwrap();
        assert_eq!(
            chosen.warnings,
            [
                "link wwan9: no such interface; its limit has no effect",
                "link eth2: it has no carrier (no cable, access point or modem session); its limit has no effect",
            ]
        );
    }

    #[test]
    fn on_this_very_machine_only_the_terms_of_the_loopback_count() {
        let none = "needs none";
        let (lo, lines) = choose_local(&laptop(), &named(&["lo,limit=1Mbit/s", "eth0", "wwan9"]));
        assert_eq!((lo.name.as_str(), lo.rate_limit), ("lo", Some(Bitrate::from_mbps(1))));
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].starts_with("link eth0: not used; the URL is on") && lines[0].ends_with(none),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("link wwan9: no such interface; "), "{lines:?}");
        let known = vec![Named::new("eth0"), Named { spoken: true, ..Named::new("wlan0") }];
        let (lo, lines) = choose_local(&laptop(), &Choice::Auto { bypass_vpn: false, known });
        assert_eq!(lo.rate_limit, None);
        assert!(matches!(&lines[..], [line] if line.starts_with("link wlan0: not used; ")), "{lines:?}");
    }

    #[test]
    fn a_vpn_is_never_used_or_bypassed_in_silence() {
        let line = |bypass| choose(&laptop_with_vpn(), &auto(bypass), &MeteredHints::none()).unwrap().vpn;
        assert!(
            line(false).unwrap().contains("the VPN tun0 is this machine's way to the Internet: it is used alone")
        );
        assert_eq!(line(true).unwrap(), "the VPN tun0 is bypassed");
        assert_eq!(choose(&laptop(), &auto(false), &MeteredHints::none()).unwrap().vpn, None);
    }

    #[test]
    fn with_no_link_left_the_reason_for_each_is_given() {
        let none =
            |survey: &Survey, choice| choose(survey, &choice, &MeteredHints::none()).unwrap_err().to_string();
        assert_eq!(
            none(&laptop(), named(&["wwan9", "eth2"])),
            "no link can be used: link wwan9: no such interface; \
             link eth2: it has no carrier (no cable, access point or modem session)"
        );
        let mut offline = laptop();
        offline.interfaces.retain(|interface| !interface.is_usable());
        assert_eq!(
            none(&offline, auto(false)),
            "no link can be used: eth1: it has no default route; \
             docker0: it is a bridge to containers or virtual machines; \
             eth2: it has no carrier (no cable, access point or modem session)"
        );
        let mut only_vpn = laptop_with_vpn();
        only_vpn.interfaces.retain(|interface| interface.name == "tun0");
        assert_eq!(none(&only_vpn, auto(true)), "no link can be used: tun0: the VPN, which is bypassed");
        assert_eq!(none(&Survey { interfaces: Vec::new(), vpn: None }, auto(false)), "no link can be used");
    }

    #[test]
    fn on_cost_the_user_has_the_last_word() {
        let hints: MeteredHints = [("wlan0", true), ("wwan0", true)]
            .map(|(name, metered)| (name.to_owned(), Metered { metered, source: MeteredSource::NetworkManager }))
            .into_iter()
            .collect();
        let known = vec!["wwan0,metered=no,budget=2GB,limit=10Mbit/s,kind=nr".parse().unwrap()];
        let chosen = choose(&laptop(), &Choice::Auto { bypass_vpn: false, known }, &hints).unwrap();
        let [(ethernet, unknown), (wifi, paid), (modem, said)] = &chosen.links[..] else { panic!("three links") };
        assert_eq!((ethernet.metered, unknown.metered), (None, false));
        assert_eq!((wifi.metered.unwrap().source, paid.metered), (MeteredSource::NetworkManager, true));
        assert_eq!(modem.metered, Some(Metered { metered: false, source: MeteredSource::User }));
        let expected = LinkProfile {
            name: "wwan0".into(),
            kind: LinkKind::Nr,
            metered: false,
            budget: Some(DataSize::from_bytes(2_000_000_000)),
            rate_limit: Some(Bitrate::from_mbps(10)),
        };
        assert_eq!(*said, expected);
    }

    #[test]
    fn the_order_of_the_kernels_list_changes_nothing() {
        let mut backwards = laptop();
        backwards.interfaces.reverse();
        let all = |survey| choose(survey, &auto(false), &MeteredHints::none()).unwrap();
        assert_eq!(all(&backwards), all(&laptop()));
    }
}
