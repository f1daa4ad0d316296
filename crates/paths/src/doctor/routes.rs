//! Findings about links: default routes, source routing, subnets, reverse path filters, and cost.

use marline_core::finding::{Finding, Severity};
use marline_net::links::{Interface, InterfaceList, Subnet, UnusedReason, Usability};

use super::facts::HostFacts;
use super::link_facts::{LinkFacts, may_be_link};

/// All findings about links.
pub(super) fn check_links(facts: &HostFacts) -> Vec<Finding> {
    let mut findings = vec![check_usable_links(facts)];
    findings.extend(facts.survey.vpn.as_ref().map(|vpn| {
        Finding::note(
            "VPN",
            format!("{vpn} has the default route of this host: all connections go through it"),
            "name the links below it with --link if connections may bypass it",
        )
    }));
    findings.extend(check_default_routes(facts));
    findings.extend(check_source_routing(facts));
    findings.extend(check_subnets(&facts.survey));
    findings.extend(check_shared_addresses(facts));
    findings.extend(check_rp_filter(facts));
    findings.extend(check_default_link_cost(facts));
    findings
}

fn check_usable_links(facts: &HostFacts) -> Finding {
    let find_interface = |name: &str| facts.survey.interfaces.iter().find(|interface| interface.name == name);
    if let Some(absent) = facts
        .requested_links
        .iter()
        .find(|requested| !requested.is_optional && find_interface(&requested.name).is_none())
    {
        let name = &absent.name;
        return Finding::blocks(
            "links",
            format!("the configuration names {name}, but there is no such interface"),
            format!(
                "`marline links` lists the interfaces; an entry in `optional-links` of [paths] makes the run wait for {name}"
            ),
        );
    }
    let is_usable = |interface: &&Interface| match &interface.usability {
        Usability::Usable => is_requested(facts, &interface.name),
        Usability::Unused(reason) => {
            !facts.requested_links.is_empty() && is_requested(facts, &interface.name) && reason.can_be_overridden()
        }
    };
    let usable: Vec<&str> = facts.survey.interfaces.iter().filter(is_usable).map(|i| i.name.as_str()).collect();
    let scope = if facts.requested_links.is_empty() { "" } else { " of those that the configuration names" };
    match usable.len() {
        0 if facts.requested_links.iter().any(|requested| requested.is_optional) => Finding::note(
            "links",
            format!("no link{scope} can be used yet"),
            "connect one; `marline links` shows why others are not used",
        ),
        0 => Finding::blocks(
            "links",
            format!("no link{scope} can be used"),
            "`marline links` shows the reason for each interface",
        ),
        1 => Finding::note(
            "links",
            format!("only one link{scope} can be used: {}", usable.join(", ")),
            "connect a second one; `marline links` shows why others are not used",
        ),
        count => Finding::ok("links", format!("{count}: {}", usable.join(", "))),
    }
}

/// Whether a run would use it according to the configuration.
fn is_requested(facts: &HostFacts, name: &str) -> bool {
    facts.requested_links.is_empty() || facts.requested_links.iter().any(|requested| requested.name == name)
}

fn check_default_routes(facts: &HostFacts) -> Vec<Finding> {
    let unrouted =
        facts.survey.interfaces.iter().filter(|i| i.usability == Usability::Unused(UnusedReason::NoDefaultRoute));
    let finding = |interface: &Interface| {
        let name = &interface.name;
        Finding::note(
            "route",
            format!("{name} has an address and no default route, so nothing beyond its subnet is reached over it"),
            format!(
                "`ip route add default via ROUTER dev {name} metric 1000`, or a DHCP client that sets it (the metric may be anything)"
            ),
        )
    };
    unrouted.map(finding).collect()
}

fn check_source_routing(facts: &HostFacts) -> Option<Finding> {
    let misrouted: Vec<String> = facts
        .links
        .iter()
        .filter(|link| !link.misrouted_addresses.is_empty())
        .map(|link| {
            let addresses: Vec<String> = link.misrouted_addresses.iter().map(ToString::to_string).collect();
            format!("{} of {}", addresses.join(", "), link.name)
        })
        .collect();
    let addresses = misrouted.join("; ");
    match (misrouted.is_empty(), facts.daemon) {
        (true, _) if facts.links.len() < 2 => None,
        (true, _) => Some(Finding::ok("routing", "packets from a link's address leave by that link")),
        (false, None) => Some(Finding::ok(
            "routing",
            format!("{addresses} would leave by another link; `marline paths` sets rules against it while it runs"),
        )),
        (false, Some(daemon)) => Some(Finding::note(
            "routing",
            format!("{addresses} would leave by another link, although {daemon} is running"),
            "if it manages these links, its log shows why there is no rule (another program may remove it \
             repeatedly); otherwise name them with --link",
        )),
    }
}

fn check_subnets(survey: &InterfaceList) -> Vec<Finding> {
    let usable: Vec<&Interface> = survey.interfaces.iter().filter(|interface| may_be_link(interface)).collect();
    let mut findings = Vec::new();
    for (n, first) in usable.iter().enumerate() {
        for second in &usable[n + 1..] {
            let is_shared =
                |a: &&Subnet| second.subnets.iter().any(|b| a.contains(b.address) && b.contains(a.address));
            if let Some(network) = first.subnets.iter().find(is_shared) {
                let (a, b) = (&first.name, &second.name);
                findings.push(Finding::note(
                    "subnet",
                    format!("{a} and {b} are both in the subnet of {}/{}", network.address, network.prefix_len),
                    format!(
                        "works, because subflows are bound to their device; if {a} replies to ARP requests for {b}: \
                         `sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2`, or give one modem another subnet"
                    ),
                ));
            }
        }
    }
    findings
}

/// Findings about links with the same address, such as two modems of one brand.
fn check_shared_addresses(facts: &HostFacts) -> Vec<Finding> {
    let sharing: Vec<&LinkFacts> = facts.links.iter().filter(|link| !link.shared_addresses.is_empty()).collect();
    let names: Vec<&str> = sharing.iter().map(|link| link.name.as_str()).collect();
    let strict: Vec<&str> =
        sharing.iter().filter(|link| link.rp_filter == 1).map(|link| link.name.as_str()).collect();
    let unresponsive = sharing.iter().filter(|link| link.router_answers == Some(false));
    let finding = |link: &&LinkFacts| {
        let name = &link.name;
        Finding::note(
            "address",
            format!("the router of {name} does not reply over it; {} have the same address", names.join(", ")),
            if link.rp_filter == 1 {
                format!(
                    "`sysctl -w net.ipv4.conf.{name}.rp_filter=2`: the strict filter drops what comes in over {name}"
                )
            } else {
                format!("restart the modem of {name}, or give it another subnet (its page, as a rule)")
            },
        )
    };
    let mut findings: Vec<Finding> = unresponsive.map(finding).collect();
    if findings.is_empty() && sharing.iter().any(|link| link.router_answers == Some(true)) {
        findings.push(Finding::ok(
            "address",
            format!("{} have the same address, and the router of each replies over its own link", names.join(", ")),
        ));
    }
    if let Some(first) = strict.first().filter(|_| findings.iter().all(|finding| finding.severity == Severity::Ok))
    {
        findings.push(Finding::note(
            "rp_filter",
            format!(
                "strict on {}, which have the same address: only the default link can receive",
                strict.join(", ")
            ),
            format!("`sysctl -w net.ipv4.conf.{first}.rp_filter=2`, for each of them"),
        ));
    }
    findings
}

fn check_rp_filter(facts: &HostFacts) -> Option<Finding> {
    let strict: Vec<&str> = facts
        .links
        .iter()
        .filter(|link| link.rp_filter == 1 && link.shared_addresses.is_empty())
        .map(|link| link.name.as_str())
        .collect();
    if strict.is_empty() {
        return None;
    }
    let names = strict.join(", ");
    // With source rules, the reverse path equals the forward path, so strict filters accept the packets.
    Some(if facts.daemon.is_some() || facts.links.iter().all(|link| link.misrouted_addresses.is_empty()) {
        Finding::ok("rp_filter", format!("strict on {names}, which source rules satisfy"))
    } else {
        Finding::note(
            "rp_filter",
            format!(
                "strict on {names}: without source rules, replies over other links than the default one are dropped"
            ),
            "`marline paths` sets such rules while it runs; if a link still receives nothing, \
             `sysctl -w net.ipv4.conf.all.rp_filter=2` makes the filter loose",
        )
    })
}

fn check_default_link_cost(facts: &HostFacts) -> Option<Finding> {
    let is_costly = |link: &&LinkFacts| link.is_metered || link.kind.is_cellular();
    let default = facts.links.iter().filter(|link| link.metric.is_some()).min_by_key(|link| link.metric)?;
    let is_cheaper =
        |link: &&LinkFacts| link.metric.is_some() && !is_costly(link) && is_requested(facts, &link.name);
    let cheaper = facts.links.iter().find(is_cheaper)?;
    is_costly(&default).then(|| {
        let (costly, cheaper_name) = (&default.name, &cheaper.name);
        Finding::note(
            "default link",
            format!("connections begin over {costly}, which is {}, although there is {cheaper_name}", cost_reason(default)),
            format!(
                "give {cheaper_name} the lower metric: `nmcli connection modify NAME ipv4.route-metric 50 ipv6.route-metric 50`, \
                 or `ip route` with a metric below {}",
                default.metric.unwrap_or(0)
            ),
        )
    })
}

fn cost_reason(link: &LinkFacts) -> &'static str {
    if link.is_metered { "metered" } else { "a cellular link" }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use marline_core::link::LinkKind;
    use marline_net::testing::{default_route, test_interface};

    use super::*;
    use crate::doctor::checks::tests::healthy_facts;
    use crate::doctor::{RequestedLink, RunningDaemon};

    fn link_facts(name: &str, kind: LinkKind, metric: u32) -> LinkFacts {
        LinkFacts {
            name: name.into(),
            kind,
            is_metered: false,
            metric: Some(metric),
            rp_filter: 0,
            misrouted_addresses: Vec::new(),
            shared_addresses: Vec::new(),
            router_answers: None,
        }
    }

    fn interface(name: &str, address: &str, verdict: Usability) -> Interface {
        let address: IpAddr = address.parse().unwrap();
        Interface {
            kind: LinkKind::Wifi,
            addresses: vec![address],
            subnets: vec![Subnet { address, prefix_len: 24 }],
            route_v4: Some(default_route(1)),
            usability: verdict,
            ..test_interface(name, 3)
        }
    }

    fn facts_with(interfaces: Vec<Interface>, links: Vec<LinkFacts>) -> HostFacts {
        HostFacts { survey: InterfaceList { interfaces, vpn: None }, links, ..healthy_facts() }
    }

    fn finding_text(facts: &HostFacts, name: &str) -> Option<(Severity, String)> {
        check_links(facts)
            .into_iter()
            .find(|finding| finding.name == name)
            .map(|finding| (finding.severity, format!("{} {}", finding.message, finding.remedy)))
    }

    #[test]
    fn no_link_blocks_and_one_is_noted() {
        assert_eq!(finding_text(&facts_with(vec![], vec![]), "links").unwrap().0, Severity::Blocks);
        let one = interface("wlan0", "10.1.0.2", Usability::Usable);
        let two = interface("wwan0", "10.2.0.2", Usability::Usable);
        assert_eq!(finding_text(&facts_with(vec![one.clone()], vec![]), "links").unwrap().0, Severity::Note);
        let ok = finding_text(&facts_with(vec![one, two], vec![]), "links").unwrap();
        assert_eq!(ok, (Severity::Ok, "2: wlan0, wwan0 ".into()));
    }

    #[test]
    fn links_that_the_configuration_names_are_those_that_count() {
        let requested_link = |name: &str, is_optional| RequestedLink { name: name.into(), is_optional };
        let interfaces = || {
            vec![
                interface("wlan0", "10.1.0.2", Usability::Usable),
                interface("eth0", "10.2.0.2", Usability::Usable),
            ]
        };
        let named = |named: Vec<RequestedLink>| {
            finding_text(&HostFacts { requested_links: named, ..facts_with(interfaces(), vec![]) }, "links")
                .unwrap()
        };
        assert_eq!(named(vec![]).0, Severity::Ok);
        let (state, text) = named(vec![requested_link("wlan0", false), requested_link("usb0", true)]);
        assert!(
            state == Severity::Note && text.contains("only one link of those that the configuration names"),
            "{text}"
        );
        let (state, text) = named(vec![requested_link("wlan0", false), requested_link("wwan9", false)]);
        assert!(
            state == Severity::Blocks && text.contains("names wwan9, but there is no such interface"),
            "{text}"
        );
        let (state, text) = named(vec![requested_link("usb0", true)]);
        assert!(state == Severity::Note && text.contains("can be used yet"), "{text}");
    }

    #[test]
    fn a_link_without_a_default_route_is_noted_with_the_command() {
        let unrouted = interface("eth1", "10.1.0.2", Usability::Unused(UnusedReason::NoDefaultRoute));
        let (state, text) = finding_text(&facts_with(vec![unrouted], vec![]), "route").unwrap();
        assert_eq!(state, Severity::Note);
        assert!(text.contains("`ip route add default via ROUTER dev eth1 metric 1000`"), "{text}");
    }

    #[test]
    fn one_subnet_on_two_links_is_noted_once() {
        let a = interface("wwan0", "192.168.8.100", Usability::Usable);
        let b = interface("wwan1", "192.168.8.101", Usability::Usable);
        let (state, text) = finding_text(&facts_with(vec![a.clone(), b], vec![]), "subnet").unwrap();
        assert!(
            state == Severity::Note && text.contains("wwan0 and wwan1 are both in the subnet of 192.168.8.100/24")
        );
        let other = interface("wlan0", "192.168.9.1", Usability::Usable);
        assert_eq!(finding_text(&facts_with(vec![a, other], vec![]), "subnet"), None);
    }

    #[test]
    fn links_with_one_address_work_if_the_router_of_each_replies() {
        let sharing_link = |name: &str, answers| LinkFacts {
            shared_addresses: vec!["192.168.8.100".parse().unwrap()],
            router_answers: Some(answers),
            ..link_facts(name, LinkKind::Lte, 1)
        };
        let mut facts = facts_with(vec![], vec![sharing_link("wwan0", true), sharing_link("wwan1", true)]);
        let (state, text) = finding_text(&facts, "address").unwrap();
        assert!(state == Severity::Ok && text.starts_with("wwan0, wwan1 have the same address"), "{text}");
        facts.links[1] = sharing_link("wwan1", false);
        let (state, text) = finding_text(&facts, "address").unwrap();
        assert!(state == Severity::Note && text.starts_with("the router of wwan1 does not reply"), "{text}");
        facts.links[1].rp_filter = 1;
        assert!(finding_text(&facts, "address").unwrap().1.contains("net.ipv4.conf.wwan1.rp_filter=2"));
        assert_eq!(
            finding_text(&facts_with(vec![], vec![link_facts("wlan0", LinkKind::Wifi, 1)]), "address"),
            None
        );
    }

    #[test]
    fn misrouted_addresses_are_no_problem_before_a_daemon_runs() {
        let misrouted = LinkFacts {
            misrouted_addresses: vec!["10.2.0.2".parse().unwrap()],
            ..link_facts("wwan0", LinkKind::Lte, 700)
        };
        let mut facts = facts_with(vec![], vec![link_facts("wlan0", LinkKind::Wifi, 600), misrouted]);
        let (state, text) = finding_text(&facts, "routing").unwrap();
        assert!(
            state == Severity::Ok && text.starts_with("10.2.0.2 of wwan0 would leave by another link"),
            "{text}"
        );
        facts.daemon = Some(RunningDaemon { process: Some(7) });
        assert_eq!(finding_text(&facts, "routing").unwrap().0, Severity::Note);
        facts.links[1].misrouted_addresses.clear();
        assert_eq!(finding_text(&facts, "routing").unwrap().0, Severity::Ok);
    }

    #[test]
    fn a_strict_filter_is_noted_where_nothing_satisfies_it() {
        let strict = LinkFacts { rp_filter: 1, ..link_facts("wlan0", LinkKind::Wifi, 600) };
        let misrouted = LinkFacts {
            misrouted_addresses: vec!["10.2.0.2".parse().unwrap()],
            ..link_facts("wwan0", LinkKind::Lte, 700)
        };
        let mut facts = facts_with(vec![], vec![strict, misrouted]);
        let (state, text) = finding_text(&facts, "rp_filter").unwrap();
        assert!(state == Severity::Note && text.contains("rp_filter=2"), "{text}");
        facts.daemon = Some(RunningDaemon { process: Some(7) });
        assert_eq!(finding_text(&facts, "rp_filter").unwrap().0, Severity::Ok);
        facts.links[0].rp_filter = 2;
        assert_eq!(finding_text(&facts, "rp_filter"), None);
    }

    #[test]
    fn a_costly_default_link_is_noted_if_a_cheaper_one_exists() {
        let (wifi, lte) = (link_facts("wlan0", LinkKind::Wifi, 600), link_facts("wwan0", LinkKind::Lte, 50));
        let (state, text) =
            finding_text(&facts_with(vec![], vec![wifi.clone(), lte.clone()]), "default link").unwrap();
        assert_eq!(state, Severity::Note);
        assert!(text.contains("begin over wwan0, which is a cellular link, although there is wlan0"), "{text}");
        assert!(text.contains("a metric below 50"), "{text}");
        let higher_metric = LinkFacts { metric: Some(700), ..lte.clone() };
        assert_eq!(finding_text(&facts_with(vec![], vec![wifi.clone(), higher_metric]), "default link"), None);
        let requested_links = vec![RequestedLink { name: "wwan0".into(), is_optional: false }];
        let one_requested = HostFacts { requested_links, ..facts_with(vec![], vec![wifi.clone(), lte.clone()]) };
        assert_eq!(
            finding_text(&one_requested, "default link"),
            None,
            "the cheaper interface is no link of the run"
        );
        assert_eq!(finding_text(&facts_with(vec![], vec![lte]), "default link"), None, "there is nothing cheaper");
        let metered = LinkFacts { is_metered: true, metric: Some(1), ..wifi.clone() };
        let text = finding_text(
            &facts_with(vec![], vec![wifi, LinkFacts { name: "eth0".into(), ..metered }]),
            "default link",
        )
        .unwrap()
        .1;
        assert!(text.contains("begin over eth0, which is metered"), "{text}");
    }
}
