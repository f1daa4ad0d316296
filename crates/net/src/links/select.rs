//! Chooses the links that the program uses from the listed interfaces, with the settings of each link.
//!
//! 1. By default all usable interfaces are links, those that the kernel prefers first (lowest metric, then index).
//! 2. A VPN that carries the machine's Internet traffic is the only link, unless it is to be bypassed.
//! 3. Named interfaces are used in the user's order if they can carry anything. The others cause a warning; the
//!    program continues without them.
//! 4. The user's setting whether a link is metered overrides NetworkManager's. Without either, a link is not metered.
//! 5. An interface that the user mentions and that is not used causes a warning, whichever option mentions it.

use marline_core::link::{LinkKind, LinkProfile};

use super::{Interface, InterfaceList, LinkArg, LinksError, MeteredHints, UnusedReason, Usability};

/// Which links the user wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkSelection {
    /// All usable links.
    Auto {
        /// Use the links below an active VPN instead of the VPN.
        bypass_vpn: bool,
        /// Settings from the configuration, for those interfaces that are used.
        configured: Vec<LinkArg>,
    },
    /// Exactly these interfaces, in this order.
    Named(Vec<LinkArg>),
}

/// The links that the program uses, and what to report to the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChosenLinks {
    /// The links, at least one, each with its settings.
    pub links: Vec<(Interface, LinkProfile)>,
    /// Warnings for the user, without line ends.
    pub warnings: Vec<String>,
    /// A note for the user if a VPN decides which links are used.
    pub vpn_note: Option<String>,
}

/// Chooses the links of a run.
///
/// # Errors
/// [`LinksError::NoLink`] if no interface that was found or named can carry traffic.
pub fn choose_links(
    interface_list: &InterfaceList,
    selection: &LinkSelection,
    metered: &MeteredHints,
) -> Result<ChosenLinks, LinksError> {
    let chosen = match selection {
        LinkSelection::Auto { bypass_vpn, configured } => {
            select_auto(interface_list, *bypass_vpn, configured, metered)
        }
        LinkSelection::Named(link_args) => select_named(interface_list, link_args, metered),
    };
    if chosen.links.is_empty() {
        return Err(LinksError::NoLink { why: no_link_reasons(interface_list, selection, chosen.warnings) });
    }
    Ok(chosen)
}

fn select_auto(
    interface_list: &InterfaceList,
    bypass_vpn: bool,
    configured: &[LinkArg],
    metered: &MeteredHints,
) -> ChosenLinks {
    let is_selected = |interface: &&Interface| match &interface.usability {
        Usability::Usable => !(bypass_vpn && interface_list.vpn.as_ref() == Some(&interface.name)),
        Usability::Unused(UnusedReason::BelowVpn(_)) => bypass_vpn,
        Usability::Unused(_) => false,
    };
    let mut interfaces: Vec<&Interface> = interface_list.interfaces.iter().filter(is_selected).collect();
    interfaces.sort_by_key(|i| {
        ([i.route_v4, i.route_v6].iter().flatten().map(|route| route.metric).min().unwrap_or(0), i.index)
    });
    let with_profile = |interface: &Interface| {
        let link_arg = configured.iter().find(|candidate| candidate.name == interface.name);
        interface_link(interface, &link_arg.cloned().unwrap_or_else(|| LinkArg::new(&interface.name)), metered)
    };
    let is_unused =
        |link_arg: &&LinkArg| link_arg.is_explicit && !interfaces.iter().any(|i| i.name == link_arg.name);
    let warnings = configured
        .iter()
        .filter(is_unused)
        .map(|link_arg| format!("{}; its limit has no effect", unused_message(interface_list, link_arg)));
    let warnings = warnings.collect();
    let vpn = interface_list.vpn.as_ref().map(|vpn| {
        if bypass_vpn {
            format!("the VPN {vpn} is bypassed")
        } else {
            format!("the VPN {vpn} carries this machine's Internet traffic and is the only link used (--bypass-vpn uses the links below it)")
        }
    });
    ChosenLinks { links: interfaces.into_iter().map(with_profile).collect(), warnings, vpn_note: vpn }
}

fn select_named(interface_list: &InterfaceList, link_args: &[LinkArg], metered: &MeteredHints) -> ChosenLinks {
    let mut chosen = ChosenLinks { links: Vec::new(), warnings: Vec::new(), vpn_note: None };
    for (at, link_arg) in link_args.iter().enumerate() {
        let name = &link_arg.name;
        let mut warn = |text: String| chosen.warnings.push(format!("link {name}: {text}"));
        if link_args[..at].iter().any(|earlier| earlier.name == *name) {
            warn("named twice; the first one is used".to_owned());
            continue;
        }
        let Some(interface) = interface_list.by_name(name) else {
            warn("no such interface; continuing with the other links".to_owned());
            continue;
        };
        match &interface.usability {
            Usability::Usable => {}
            Usability::Unused(reason) if !reason.can_be_overridden() => {
                warn(format!("{reason}; continuing with the other links"));
                continue;
            }
            Usability::Unused(UnusedReason::BelowVpn(vpn)) => warn(format!("its traffic bypasses the VPN {vpn}")),
            Usability::Unused(UnusedReason::NoDefaultRoute) => {
                warn("it has no default route, so it reaches its own subnets only".to_owned());
            }
            Usability::Unused(UnusedReason::Loopback) => {}
            Usability::Unused(reason) => warn(format!("{reason}; used because it was named")),
        }
        chosen.links.push(interface_link(interface, link_arg, metered));
    }
    chosen
}

/// Names of interfaces that cannot be used now and may become usable: access links that are down, or lack carrier, an
/// address or a default route. In the kernel's order.
pub fn pending_interfaces(interface_list: &InterfaceList) -> impl Iterator<Item = &str> {
    let may_become_usable = |interface: &&Interface| {
        let is_access = !matches!(interface.kind, LinkKind::Tunnel | LinkKind::Other);
        let is_pending = matches!(
            interface.usability,
            Usability::Unused(
                UnusedReason::Down
                    | UnusedReason::NoCarrier
                    | UnusedReason::NoAddress
                    | UnusedReason::NoDefaultRoute
            )
        );
        is_access && is_pending
    };
    interface_list.interfaces.iter().filter(may_become_usable).map(|interface| interface.name.as_str())
}

/// Why an interface that the user mentions is not used.
fn unused_message(interface_list: &InterfaceList, link_arg: &LinkArg) -> String {
    let why = match interface_list.by_name(&link_arg.name).map(|interface| &interface.usability) {
        None => "no such interface".to_owned(),
        Some(Usability::Usable) => "it is the VPN, which is bypassed".to_owned(),
        Some(Usability::Unused(reason)) => reason.to_string(),
    };
    format!("link {}: {why}", link_arg.name)
}

/// Settings and warnings for a URL on this machine, which is reached over the loopback and no link. Only settings of
/// the loopback apply.
pub fn choose_loopback(interface_list: &InterfaceList, selection: &LinkSelection) -> (LinkProfile, Vec<String>) {
    let (LinkSelection::Auto { configured: named, .. } | LinkSelection::Named(named)) = selection;
    let is_named = matches!(selection, LinkSelection::Named(_));
    let lo = interface_list.loopback().map_or("lo", |interface| interface.name.as_str());
    let mut profile = LinkProfile::new(lo, LinkKind::Other);
    let mut lines = Vec::new();
    for link_arg in named {
        if link_arg.name == lo {
            profile.kind = link_arg.kind.unwrap_or(profile.kind);
            profile.metered = link_arg.metered.unwrap_or(profile.metered);
            (profile.budget, profile.rate_limit) = (link_arg.budget, link_arg.rate_limit);
        } else if is_named || link_arg.is_explicit {
            let why =
                if interface_list.by_name(&link_arg.name).is_some() { "not used" } else { "no such interface" };
            lines.push(format!("link {}: {why}; the URL is on this machine and needs no link", link_arg.name));
        }
    }
    (profile, lines)
}

/// Applies the user's settings to an interface.
fn interface_link(interface: &Interface, link_arg: &LinkArg, metered: &MeteredHints) -> (Interface, LinkProfile) {
    let mut interface = interface.clone();
    interface.metered = metered.get(&interface.name);
    let mut profile = LinkProfile::new(&interface.name, LinkKind::Other);
    link_arg.apply_to(&mut interface, &mut profile);
    (interface, profile)
}

/// The reasons why there is no link, one line each.
fn no_link_reasons(
    interface_list: &InterfaceList,
    selection: &LinkSelection,
    warnings: Vec<String>,
) -> Vec<String> {
    match selection {
        LinkSelection::Named(_) => {
            warnings.into_iter().map(|line| line.replace("; continuing with the other links", "")).collect()
        }
        LinkSelection::Auto { bypass_vpn, .. } => {
            let reason = |interface: &Interface| match &interface.usability {
                Usability::Unused(UnusedReason::Loopback) => None,
                Usability::Unused(reason) => Some(format!("{}: {reason}", interface.name)),
                Usability::Usable if *bypass_vpn => Some(format!("{}: the VPN, which is bypassed", interface.name)),
                Usability::Usable => None,
            };
            interface_list.interfaces.iter().filter_map(reason).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use marline_core::units::{Bitrate, DataSize};

    use super::*;
    use crate::links::{MeteredSource, MeteredStatus};
    use crate::testing::{default_route, test_interface};

    /// An interface with an address, and with a default route if `metric` is given.
    fn interface(index: u32, name: &str, kind: LinkKind, metric: Option<u32>, usability: Usability) -> Interface {
        Interface {
            kind,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            route_v4: metric.map(default_route),
            usability,
            ..test_interface(name, index)
        }
    }

    fn unused(reason: UnusedReason) -> Usability {
        Usability::Unused(reason)
    }

    /// Three usable links, of which the kernel prefers eth0 (lowest metric), and four interfaces that are not used.
    fn laptop() -> InterfaceList {
        InterfaceList {
            interfaces: vec![
                interface(1, "lo", LinkKind::Other, None, unused(UnusedReason::Loopback)),
                interface(2, "wlan0", LinkKind::Wifi, Some(600), Usability::Usable),
                interface(3, "eth0", LinkKind::Ethernet, Some(100), Usability::Usable),
                interface(4, "wwan0", LinkKind::Lte, Some(700), Usability::Usable),
                interface(5, "eth1", LinkKind::Ethernet, None, unused(UnusedReason::NoDefaultRoute)),
                interface(6, "docker0", LinkKind::Other, None, unused(UnusedReason::Bridge)),
                interface(7, "eth2", LinkKind::Ethernet, None, unused(UnusedReason::NoCarrier)),
            ],
            vpn: None,
        }
    }

    fn laptop_with_vpn() -> InterfaceList {
        let mut survey = laptop();
        for interface in &mut survey.interfaces {
            if interface.is_usable() {
                interface.usability = unused(UnusedReason::BelowVpn("tun0".into()));
            }
        }
        survey.interfaces.push(interface(9, "tun0", LinkKind::Tunnel, Some(50), Usability::Usable));
        survey.vpn = Some("tun0".into());
        survey
    }

    fn auto(bypass_vpn: bool) -> LinkSelection {
        LinkSelection::Auto { bypass_vpn, configured: Vec::new() }
    }

    fn named(names: &[&str]) -> LinkSelection {
        LinkSelection::Named(names.iter().map(|name| name.parse().unwrap()).collect())
    }

    fn names(chosen: &ChosenLinks) -> Vec<&str> {
        chosen.links.iter().map(|(interface, _)| interface.name.as_str()).collect()
    }

    #[test]
    fn each_selection_gets_its_links_and_warnings() {
        type TestCase<'a> = (&'a str, InterfaceList, LinkSelection, &'a [&'a str], &'a [&'a str]);
        let rows: [TestCase<'_>; 8] = [
            ("all, the preferred first", laptop(), auto(false), &["eth0", "wlan0", "wwan0"], &[]),
            ("no VPN to bypass", laptop(), auto(true), &["eth0", "wlan0", "wwan0"], &[]),
            ("only the VPN", laptop_with_vpn(), auto(false), &["tun0"], &[]),
            ("a VPN bypassed", laptop_with_vpn(), auto(true), &["eth0", "wlan0", "wwan0"], &[]),
            ("the user's order", laptop(), named(&["wwan0", "eth0"]), &["wwan0", "eth0"], &[]),
            (
                "one absent, one unplugged, one twice",
                laptop(),
                named(&["wwan9", "eth2", "wlan0", "wlan0,budget=1GB"]),
                &["wlan0"],
                &[
                    "link wwan9: no such interface; continuing with the other links",
                    "link eth2: it has no carrier (no cable, access point or modem session); continuing with the other links",
                    "link wlan0: named twice; the first one is used",
                ],
            ),
            (
                "interfaces that are used only if named",
                laptop(),
                named(&["eth1", "docker0", "lo"]),
                &["eth1", "docker0", "lo"],
                &[
                    "link eth1: it has no default route, so it reaches its own subnets only",
                    "link docker0: it is a bridge to containers or virtual machines; used because it was named",
                ],
            ),
            (
                "a link below the VPN by name",
                laptop_with_vpn(),
                named(&["wlan0", "tun0"]),
                &["wlan0", "tun0"],
                &["link wlan0: its traffic bypasses the VPN tun0"],
            ),
        ];
        for (case, survey, choice, links, warnings) in rows {
            let chosen = choose_links(&survey, &choice, &MeteredHints::unknown()).unwrap();
            assert_eq!(names(&chosen), links, "{case}");
            assert_eq!(chosen.warnings, warnings, "{case}");
        }
    }

    #[test]
    fn only_access_links_that_lack_something_are_pending() {
        let mut survey = laptop();
        survey.interfaces.push(interface(8, "wlan1", LinkKind::Wifi, None, unused(UnusedReason::Down)));
        survey.interfaces.push(interface(9, "tun1", LinkKind::Tunnel, None, unused(UnusedReason::Down)));
        assert_eq!(pending_interfaces(&survey).collect::<Vec<_>>(), ["eth1", "eth2", "wlan1"]);
    }

    #[test]
    fn an_unused_link_that_the_user_mentions_causes_a_warning() {
        let explicit = |name: &str| LinkArg {
            is_explicit: true,
            rate_limit: Some(Bitrate::from_mbps(1)),
            ..LinkArg::new(name)
        };
        let configured =
            vec![explicit("eth0"), explicit("wwan9"), explicit("eth2"), LinkArg::new("only-configured")];
        let chosen = choose_links(
            &laptop(),
            &LinkSelection::Auto { bypass_vpn: false, configured },
            &MeteredHints::unknown(),
        )
        .unwrap();
        assert_eq!(
            chosen.warnings,
            [
                "link wwan9: no such interface; its limit has no effect",
                "link eth2: it has no carrier (no cable, access point or modem session); its limit has no effect",
            ]
        );
    }

    #[test]
    fn only_settings_of_the_loopback_apply_to_a_url_on_this_machine() {
        let none = "needs no link";
        let (lo, lines) = choose_loopback(&laptop(), &named(&["lo,limit=1Mbit/s", "eth0", "wwan9"]));
        assert_eq!((lo.name.as_str(), lo.rate_limit), ("lo", Some(Bitrate::from_mbps(1))));
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].starts_with("link eth0: not used; the URL is on") && lines[0].ends_with(none),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("link wwan9: no such interface; "), "{lines:?}");
        let known = vec![LinkArg::new("eth0"), LinkArg { is_explicit: true, ..LinkArg::new("wlan0") }];
        let (lo, lines) = choose_loopback(&laptop(), &LinkSelection::Auto { bypass_vpn: false, configured: known });
        assert_eq!(lo.rate_limit, None);
        assert!(matches!(&lines[..], [line] if line.starts_with("link wlan0: not used; ")), "{lines:?}");
    }

    #[test]
    fn using_or_bypassing_a_vpn_is_always_reported() {
        let line =
            |bypass| choose_links(&laptop_with_vpn(), &auto(bypass), &MeteredHints::unknown()).unwrap().vpn_note;
        assert!(
            line(false)
                .unwrap()
                .contains("the VPN tun0 carries this machine's Internet traffic and is the only link used")
        );
        assert_eq!(line(true).unwrap(), "the VPN tun0 is bypassed");
        assert_eq!(choose_links(&laptop(), &auto(false), &MeteredHints::unknown()).unwrap().vpn_note, None);
    }

    #[test]
    fn without_any_link_the_reason_for_each_interface_is_given() {
        let none = |survey: &InterfaceList, choice| {
            choose_links(survey, &choice, &MeteredHints::unknown()).unwrap_err().to_string()
        };
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
        assert_eq!(none(&InterfaceList { interfaces: Vec::new(), vpn: None }, auto(false)), "no link can be used");
    }

    #[test]
    fn the_users_metered_setting_overrides_network_manager() {
        let hints: MeteredHints = [("wlan0", true), ("wwan0", true)]
            .map(|(name, metered)| {
                (name.to_owned(), MeteredStatus { metered, source: MeteredSource::NetworkManager })
            })
            .into_iter()
            .collect();
        let known = vec!["wwan0,metered=no,budget=2GB,limit=10Mbit/s,kind=nr".parse().unwrap()];
        let chosen =
            choose_links(&laptop(), &LinkSelection::Auto { bypass_vpn: false, configured: known }, &hints).unwrap();
        let [(ethernet, ethernet_profile), (wifi, wifi_profile), (modem, modem_profile)] = &chosen.links[..] else {
            panic!("three links")
        };
        assert_eq!((ethernet.metered, ethernet_profile.metered), (None, false));
        assert_eq!((wifi.metered.unwrap().source, wifi_profile.metered), (MeteredSource::NetworkManager, true));
        assert_eq!(modem.metered, Some(MeteredStatus { metered: false, source: MeteredSource::User }));
        let expected = LinkProfile {
            name: "wwan0".into(),
            kind: LinkKind::Nr,
            metered: false,
            budget: Some(DataSize::from_bytes(2_000_000_000)),
            rate_limit: Some(Bitrate::from_mbps(10)),
        };
        assert_eq!(*modem_profile, expected);
    }

    #[test]
    fn the_order_of_the_kernels_list_does_not_matter() {
        let mut backwards = laptop();
        backwards.interfaces.reverse();
        let all = |survey| choose_links(survey, &auto(false), &MeteredHints::unknown()).unwrap();
        assert_eq!(all(&backwards), all(&laptop()));
    }
}
