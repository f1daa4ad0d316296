//! How packets of each link leave, and what stands in their way: default routes, subnets, reverse path filters, cost.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::link::LinkKind;
use marline_net::links::{Interface, InterfaceList, LinkArg, MeteredHints, Subnet, UnusedReason, Usability};
use marline_sys::netlink::RouteSocket;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{Facts, Finding, State};
use crate::ground::{Settings, exit_of};

/// What is known of one interface that is no loopback.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Road {
    /// The interface.
    pub name: String,
    /// What it is taken for.
    pub kind: LinkKind,
    /// Whether its bytes cost money, as far as anybody says.
    pub metered: bool,
    /// Its lowest metric of a default route of IPv4, else of IPv6.
    pub metric: Option<u32>,
    /// The stricter of the two settings that count for it: 1 strict, 2 loose, 0 none.
    pub rp_filter: u8,
    /// Addresses whose packets to the world would leave by another interface, or not at all.
    pub astray: Vec<IpAddr>,
    /// Its addresses that another interface has as well.
    pub shared: Vec<IpAddr>,
    /// Of such a link: whether its router answers a socket that is bound to it; none: not tried.
    pub answers: Option<bool>,
}

/// Asks the kernel about each interface that has an address and a default route; `known` is what the configuration says.
pub(super) fn roads(
    survey: &InterfaceList,
    metered: &MeteredHints,
    settings: &Settings,
    known: &[LinkArg],
) -> Vec<Road> {
    let socket = RouteSocket::open();
    let is_shared = |address: &IpAddr| {
        survey.interfaces.iter().filter(|interface| interface.addresses.contains(address)).count() > 1
    };
    // Of a shared address only bound sockets have a link of their own.
    let leaves = |address: IpAddr, link: u32| {
        let bound = is_shared(&address).then_some(link);
        socket.as_ref().ok().and_then(|socket| exit_of(socket, address, bound))
    };
    let interfaces = survey.interfaces.iter().filter(|interface| can_lead(interface));
    let road = |interface: &Interface| {
        let routed = |address: &&IpAddr| {
            if address.is_ipv4() { interface.route_v4.is_some() } else { interface.route_v6.is_some() }
        };
        let astray = interface
            .addresses
            .iter()
            .filter(routed)
            .filter(|a| leaves(**a, interface.index) != Some(interface.index));
        let shared: Vec<IpAddr> = interface.addresses.iter().copied().filter(is_shared).collect();
        let filter = |name: &str| {
            settings.read_of_interface("net/ipv4/conf", name, "rp_filter").and_then(|text| text.parse().ok())
        };
        let said = known.iter().find(|named| named.name == interface.name);
        let hinted = || metered.get(&interface.name).is_some_and(|metered| metered.metered);
        Road {
            name: interface.name.clone(),
            kind: said.and_then(|said| said.kind).unwrap_or(interface.kind),
            metered: said.and_then(|said| said.metered).unwrap_or_else(hinted),
            metric: interface.route_v4.or(interface.route_v6).map(|route| route.metric),
            rp_filter: filter("all").unwrap_or(0).max(filter(&interface.name).unwrap_or(0)),
            astray: astray.copied().collect(),
            answers: None,
            shared,
        }
    };
    let interfaces: Vec<&Interface> = interfaces.collect();
    let mut roads: Vec<Road> = interfaces.iter().map(|interface| road(interface)).collect();
    std::thread::scope(|scope| {
        let tried: Vec<_> = roads
            .iter_mut()
            .zip(&interfaces)
            .filter(|(road, _)| !road.shared.is_empty())
            .filter_map(|(road, interface)| Some((road, interface.route_v4.or(interface.route_v6)?.gateway?)))
            .map(|(road, gateway)| {
                let name = road.name.clone();
                (road, scope.spawn(move || answers(&name, gateway)))
            })
            .collect();
        for (road, tried) in tried {
            road.answers = tried.join().ok();
        }
    });
    roads
}

/// Whether a router answers a socket that is bound to this link, by accepting or by refusing a connection.
fn answers(link: &str, router: IpAddr) -> bool {
    let domain = if router.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let connect = || {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.bind_device(Some(link.as_bytes()))?;
        socket.connect_timeout(&SockAddr::from(SocketAddr::new(router, HTTP)), PATIENCE)
    };
    match connect() {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

/// The port of a modem's page. One that has no page refuses the connection.
const HTTP: u16 = 80;
/// chosen: two SYNs, at 0 and 1 s.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether it is, or might be, a link.
fn can_lead(interface: &Interface) -> bool {
    match &interface.usability {
        Usability::Usable => true,
        Usability::Unused(reason) => matches!(reason, UnusedReason::NoDefaultRoute | UnusedReason::BelowVpn(_)),
    }
}

/// The findings about links.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![links(facts)];
    findings.extend(facts.survey.vpn.as_ref().map(|vpn| {
        Finding::note(
            "VPN",
            format!("{vpn} is this machine's way to the Internet: connections go through it alone"),
            "name the links below it with --link if connections may go beside it",
        )
    }));
    findings.extend(missing(facts));
    findings.extend(astray(facts));
    findings.extend(same_subnet(&facts.survey));
    findings.extend(same_address(facts));
    findings.extend(strict(facts));
    findings.extend(dear(facts));
    findings
}

fn links(facts: &Facts) -> Finding {
    let found = |name: &str| facts.survey.interfaces.iter().find(|interface| interface.name == name);
    if let Some(absent) = facts.named.iter().find(|wish| !wish.later && found(&wish.name).is_none()) {
        let name = &absent.name;
        return Finding::blocks(
            "links",
            format!("the configuration names {name}, and there is no such interface"),
            format!("`marline links` lists those there are; in `later` of [paths], {name} is waited for"),
        );
    }
    let can = |interface: &&Interface| match &interface.usability {
        Usability::Usable => is_wanted(facts, &interface.name),
        Usability::Unused(reason) => {
            !facts.named.is_empty() && is_wanted(facts, &interface.name) && reason.can_be_overridden()
        }
    };
    let usable: Vec<&str> = facts.survey.interfaces.iter().filter(can).map(|i| i.name.as_str()).collect();
    let of = if facts.named.is_empty() { "" } else { " of those that the configuration names" };
    match usable.len() {
        0 if facts.named.iter().any(|wish| wish.later) => Finding::note(
            "links",
            format!("no link{of} can be used yet"),
            "connect one; `marline links` says why others are not used",
        ),
        0 => Finding::blocks(
            "links",
            format!("no link{of} can be used"),
            "`marline links` says why, for each interface",
        ),
        1 => Finding::note(
            "links",
            format!("only one link{of} can be used: {}", usable.join(", ")),
            "connect a second one; `marline links` says why others are not used",
        ),
        count => Finding::ok("links", format!("{count}: {}", usable.join(", "))),
    }
}

/// Whether a run would use it, as far as the configuration says.
fn is_wanted(facts: &Facts, name: &str) -> bool {
    facts.named.is_empty() || facts.named.iter().any(|wish| wish.name == name)
}

fn missing(facts: &Facts) -> Vec<Finding> {
    let lost =
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
    lost.map(finding).collect()
}

fn astray(facts: &Facts) -> Option<Finding> {
    let astray: Vec<String> = facts
        .roads
        .iter()
        .filter(|road| !road.astray.is_empty())
        .map(|road| {
            let addresses: Vec<String> = road.astray.iter().map(ToString::to_string).collect();
            format!("{} of {}", addresses.join(", "), road.name)
        })
        .collect();
    let addresses = astray.join("; ");
    match (astray.is_empty(), facts.daemon) {
        (true, _) if facts.roads.len() < 2 => None,
        (true, _) => Some(Finding::ok("routing", "what has a link's address leaves by that link")),
        (false, None) => Some(Finding::ok(
            "routing",
            format!("{addresses} would leave by another link; `marline paths` sets rules against it while it runs"),
        )),
        (false, Some(daemon)) => Some(Finding::note(
            "routing",
            format!("{addresses} would leave by another link, although {daemon} runs"),
            "if it steers these links, too, its log says why there is no rule (another program may remove it again and \
             again); otherwise name them with --link",
        )),
    }
}

fn same_subnet(survey: &InterfaceList) -> Vec<Finding> {
    let usable: Vec<&Interface> = survey.interfaces.iter().filter(|interface| can_lead(interface)).collect();
    let mut findings = Vec::new();
    for (n, first) in usable.iter().enumerate() {
        for second in &usable[n + 1..] {
            let shared =
                |a: &&Subnet| second.subnets.iter().any(|b| a.contains(b.address) && b.contains(a.address));
            if let Some(network) = first.subnets.iter().find(shared) {
                let (a, b) = (&first.name, &second.name);
                findings.push(Finding::note(
                    "subnet",
                    format!("{a} and {b} are both in the subnet of {}/{}", network.address, network.prefix_len),
                    format!(
                        "works, since subflows are bound to their device; if {a} answers for {b}: \
                         `sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2`, or give one modem another subnet"
                    ),
                ));
            }
        }
    }
    findings
}

/// Links that share an address, as two modems of one brand do.
fn same_address(facts: &Facts) -> Vec<Finding> {
    let twins: Vec<&Road> = facts.roads.iter().filter(|road| !road.shared.is_empty()).collect();
    let names: Vec<&str> = twins.iter().map(|road| road.name.as_str()).collect();
    let strict: Vec<&str> =
        twins.iter().filter(|road| road.rp_filter == 1).map(|road| road.name.as_str()).collect();
    let silent = twins.iter().filter(|road| road.answers == Some(false));
    let finding = |road: &&Road| {
        let name = &road.name;
        Finding::note(
            "address",
            format!("the router of {name} does not answer over it; {} have the same address", names.join(", ")),
            if road.rp_filter == 1 {
                format!(
                    "`sysctl -w net.ipv4.conf.{name}.rp_filter=2`: the strict filter drops what comes in over {name}"
                )
            } else {
                format!("restart the modem of {name}, or give it another subnet (its page, as a rule)")
            },
        )
    };
    let mut findings: Vec<Finding> = silent.map(finding).collect();
    if findings.is_empty() && twins.iter().any(|road| road.answers == Some(true)) {
        findings.push(Finding::ok(
            "address",
            format!("{} have the same address, and the router of each answers over its own link", names.join(", ")),
        ));
    }
    if let Some(first) = strict.first().filter(|_| findings.iter().all(|finding| finding.state == State::Ok)) {
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

fn strict(facts: &Facts) -> Option<Finding> {
    let strict: Vec<&str> = facts
        .roads
        .iter()
        .filter(|road| road.rp_filter == 1 && road.shared.is_empty())
        .map(|road| road.name.as_str())
        .collect();
    if strict.is_empty() {
        return None;
    }
    let names = strict.join(", ");
    // With rules for the source the way back is the way there, and strict filters pass it.
    Some(if facts.daemon.is_some() || facts.roads.iter().all(|road| road.astray.is_empty()) {
        Finding::ok("rp_filter", format!("strict on {names}, which the rules for sources satisfy"))
    } else {
        Finding::note(
            "rp_filter",
            format!(
                "strict on {names}: without rules for sources, answers over other links than the default one are dropped"
            ),
            "`marline paths` sets such rules while it runs; if a link stays silent all the same, \
             `sysctl -w net.ipv4.conf.all.rp_filter=2` makes the filter loose",
        )
    })
}

fn dear(facts: &Facts) -> Option<Finding> {
    let is_dear = |road: &&Road| road.metered || road.kind.is_cellular();
    let default = facts.roads.iter().filter(|road| road.metric.is_some()).min_by_key(|road| road.metric)?;
    let is_cheaper = |road: &&Road| road.metric.is_some() && !is_dear(road) && is_wanted(facts, &road.name);
    let cheaper = facts.roads.iter().find(is_cheaper)?;
    is_dear(&default).then(|| {
        let (dear, cheap) = (&default.name, &cheaper.name);
        Finding::note(
            "default link",
            format!("connections begin over {dear}, which is {}, although there is {cheap}", why_dear(default)),
            format!(
                "give {cheap} the lower metric: `nmcli connection modify NAME ipv4.route-metric 50 ipv6.route-metric 50`, \
                 or `ip route` with a metric below {}",
                default.metric.unwrap_or(0)
            ),
        )
    })
}

fn why_dear(road: &Road) -> &'static str {
    if road.metered { "metered" } else { "a cellular link" }
}

#[cfg(test)]
mod tests {
    use marline_net::links::DefaultRoute;

    use super::*;
    use crate::doctor::checks::tests::facts;
    use crate::doctor::{Running, Wish};

    fn road(name: &str, kind: LinkKind, metric: u32) -> Road {
        Road {
            name: name.into(),
            kind,
            metered: false,
            metric: Some(metric),
            rp_filter: 0,
            astray: Vec::new(),
            shared: Vec::new(),
            answers: None,
        }
    }

    fn interface(name: &str, address: &str, verdict: Usability) -> Interface {
        let address: IpAddr = address.parse().unwrap();
        Interface {
            name: name.into(),
            index: 3,
            kind: LinkKind::Wifi,
            addresses: vec![address],
            transient_addresses: Vec::new(),
            subnets: vec![Subnet { address, prefix_len: 24 }],
            route_v4: Some(DefaultRoute { metric: 1, table: 254, gateway: None }),
            route_v6: None,
            metered: None,
            mtu: 1500,
            emulated: false,
            usability: verdict,
        }
    }

    fn with(interfaces: Vec<Interface>, roads: Vec<Road>) -> Facts {
        Facts { survey: InterfaceList { interfaces, vpn: None }, roads, ..facts() }
    }

    fn found(facts: &Facts, name: &str) -> Option<(State, String)> {
        all(facts).into_iter().find(|f| f.name == name).map(|f| (f.state, format!("{} {}", f.says, f.remedy)))
    }

    #[test]
    fn no_link_blocks_and_one_is_noted() {
        assert_eq!(found(&with(vec![], vec![]), "links").unwrap().0, State::Blocks);
        let one = interface("wlan0", "10.1.0.2", Usability::Usable);
        let two = interface("wwan0", "10.2.0.2", Usability::Usable);
        assert_eq!(found(&with(vec![one.clone()], vec![]), "links").unwrap().0, State::Note);
        let ok = found(&with(vec![one, two], vec![]), "links").unwrap();
        assert_eq!(ok, (State::Ok, "2: wlan0, wwan0 ".into()));
    }

    #[test]
    fn links_that_the_configuration_names_are_those_that_count() {
        let wish = |name: &str, later| Wish { name: name.into(), later };
        let there = || {
            vec![
                interface("wlan0", "10.1.0.2", Usability::Usable),
                interface("eth0", "10.2.0.2", Usability::Usable),
            ]
        };
        let named = |named: Vec<Wish>| found(&Facts { named, ..with(there(), vec![]) }, "links").unwrap();
        assert_eq!(named(vec![]).0, State::Ok);
        let (state, text) = named(vec![wish("wlan0", false), wish("usb0", true)]);
        assert!(
            state == State::Note && text.contains("only one link of those that the configuration names"),
            "{text}"
        );
        let (state, text) = named(vec![wish("wlan0", false), wish("wwan9", false)]);
        assert!(state == State::Blocks && text.contains("names wwan9, and there is no such interface"), "{text}");
        let (state, text) = named(vec![wish("usb0", true)]);
        assert!(state == State::Note && text.contains("can be used yet"), "{text}");
    }

    #[test]
    fn a_link_without_a_default_route_is_told_with_the_command() {
        let lost = interface("eth1", "10.1.0.2", Usability::Unused(UnusedReason::NoDefaultRoute));
        let (state, text) = found(&with(vec![lost], vec![]), "route").unwrap();
        assert_eq!(state, State::Note);
        assert!(text.contains("`ip route add default via ROUTER dev eth1 metric 1000`"), "{text}");
    }

    #[test]
    fn one_subnet_on_two_links_is_told_once() {
        let a = interface("wwan0", "192.168.8.100", Usability::Usable);
        let b = interface("wwan1", "192.168.8.101", Usability::Usable);
        let (state, text) = found(&with(vec![a.clone(), b], vec![]), "subnet").unwrap();
        assert!(
            state == State::Note && text.contains("wwan0 and wwan1 are both in the subnet of 192.168.8.100/24")
        );
        let other = interface("wlan0", "192.168.9.1", Usability::Usable);
        assert_eq!(found(&with(vec![a, other], vec![]), "subnet"), None);
    }

    #[test]
    fn links_of_one_address_are_well_if_the_router_of_each_answers() {
        let twin = |name: &str, answers| Road {
            shared: vec!["192.168.8.100".parse().unwrap()],
            answers: Some(answers),
            ..road(name, LinkKind::Lte, 1)
        };
        let mut facts = with(vec![], vec![twin("wwan0", true), twin("wwan1", true)]);
        let (state, text) = found(&facts, "address").unwrap();
        assert!(state == State::Ok && text.starts_with("wwan0, wwan1 have the same address"), "{text}");
        facts.roads[1] = twin("wwan1", false);
        let (state, text) = found(&facts, "address").unwrap();
        assert!(state == State::Note && text.starts_with("the router of wwan1 does not answer"), "{text}");
        facts.roads[1].rp_filter = 1;
        assert!(found(&facts, "address").unwrap().1.contains("net.ipv4.conf.wwan1.rp_filter=2"));
        assert_eq!(found(&with(vec![], vec![road("wlan0", LinkKind::Wifi, 1)]), "address"), None);
    }

    #[test]
    fn addresses_that_go_astray_are_no_trouble_before_a_daemon_runs() {
        let astray = Road { astray: vec!["10.2.0.2".parse().unwrap()], ..road("wwan0", LinkKind::Lte, 700) };
        let mut facts = with(vec![], vec![road("wlan0", LinkKind::Wifi, 600), astray]);
        let (state, text) = found(&facts, "routing").unwrap();
        assert!(state == State::Ok && text.starts_with("10.2.0.2 of wwan0 would leave by another link"), "{text}");
        facts.daemon = Some(Running { process: Some(7) });
        assert_eq!(found(&facts, "routing").unwrap().0, State::Note);
        facts.roads[1].astray.clear();
        assert_eq!(found(&facts, "routing").unwrap().0, State::Ok);
    }

    #[test]
    fn a_strict_filter_is_noted_where_nothing_satisfies_it() {
        let strict = Road { rp_filter: 1, ..road("wlan0", LinkKind::Wifi, 600) };
        let astray = Road { astray: vec!["10.2.0.2".parse().unwrap()], ..road("wwan0", LinkKind::Lte, 700) };
        let mut facts = with(vec![], vec![strict, astray]);
        let (state, text) = found(&facts, "rp_filter").unwrap();
        assert!(state == State::Note && text.contains("rp_filter=2"), "{text}");
        facts.daemon = Some(Running { process: Some(7) });
        assert_eq!(found(&facts, "rp_filter").unwrap().0, State::Ok);
        facts.roads[0].rp_filter = 2;
        assert_eq!(found(&facts, "rp_filter"), None);
    }

    #[test]
    fn a_dear_default_link_is_noted_where_there_is_a_cheaper_one() {
        let (wifi, lte) = (road("wlan0", LinkKind::Wifi, 600), road("wwan0", LinkKind::Lte, 50));
        let (state, text) = found(&with(vec![], vec![wifi.clone(), lte.clone()]), "default link").unwrap();
        assert_eq!(state, State::Note);
        assert!(text.contains("begin over wwan0, which is a cellular link, although there is wlan0"), "{text}");
        assert!(text.contains("a metric below 50"), "{text}");
        let later = Road { metric: Some(700), ..lte.clone() };
        assert_eq!(found(&with(vec![], vec![wifi.clone(), later]), "default link"), None);
        let only = vec![Wish { name: "wwan0".into(), later: false }];
        let alone = Facts { named: only, ..with(vec![], vec![wifi.clone(), lte.clone()]) };
        assert_eq!(found(&alone, "default link"), None, "what is cheaper is none of the links");
        assert_eq!(found(&with(vec![], vec![lte]), "default link"), None, "there is nothing cheaper");
        let metered = Road { metered: true, metric: Some(1), ..wifi.clone() };
        let text =
            found(&with(vec![], vec![wifi, Road { name: "eth0".into(), ..metered }]), "default link").unwrap().1;
        assert!(text.contains("begin over eth0, which is metered"), "{text}");
    }
}
