//! Lists real interfaces in network namespaces that the tests create. Needs root and `ip`; without them the tests are
//! skipped with a message.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use marline_core::link::LinkKind;
use marline_sys::tun::Tun;

use super::{
    InterfaceList, LinkSelection, MeteredHints, Monitor, UnusedReason, Usability, choose_links, list_interfaces,
};
use crate::testing::{cable, in_a_network, ip};

/// Creates a TUN device with an address; it exists as long as the returned handle.
fn add_tun(name: &str, address: &str) -> Tun {
    let tun = Tun::create(name).unwrap();
    ip(&format!("link set {name} up"));
    ip(&format!("address add {address} dev {name}"));
    tun
}

/// `name: kind, usability` of each interface, sorted. The peer of `cable("eth0", …)` is `eth0x`.
fn interface_lines(list: &InterfaceList) -> Vec<String> {
    let mut lines: Vec<String> =
        list.interfaces.iter().map(|i| format!("{}: {}, {}", i.name, i.kind, i.usability)).collect();
    lines.sort();
    lines
}

/// The first list that fulfills the condition, or the last one after ten seconds: the kernel reports changes of
/// carrier up to a second late (`linkwatch`).
fn wait_until(condition: impl Fn(&InterfaceList) -> bool) -> InterfaceList {
    let started = Instant::now();
    loop {
        let list = list_interfaces().unwrap();
        if condition(&list) || started.elapsed() > Duration::from_secs(10) {
            return list;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn usable_names(list: &InterfaceList) -> Vec<&str> {
    list.interfaces.iter().filter(|i| i.is_usable()).map(|i| i.name.as_str()).collect()
}

#[test]
fn each_sort_of_interface_is_classified() {
    in_a_network(|| {
        cable("eth0", "10.1.0.2/24");
        ip("address add 2001:db8:1::2/64 dev eth0 nodad");
        ip("route add default via 10.1.0.1 dev eth0 metric 100");
        ip("route add default via 10.1.0.9 dev eth0 metric 900");
        cable("eth1", "10.1.0.3/24");
        ip("route add default via 10.1.0.1 dev eth1 table 1001");
        cable("eth2", "10.3.0.2/24");
        cable("eth3", "169.254.7.7/16");
        ip("route add default dev eth3 metric 5000");
        cable("six0", "2001:db8:6::2/64");
        ip("-6 route add 2000::/3 via 2001:db8:6::1 dev six0 metric 700");
        cable("off0", "10.4.0.2/24");
        ip("link set off0 down");
        cable("cut0", "10.5.0.2/24");
        ip("route add default via 10.5.0.1 dev cut0 metric 50");
        ip("link set cut0x down");
        ip("link add name docker0 type bridge");
        ip("link set docker0 up");
        ip("address add 172.17.0.1/16 dev docker0");
        ip("link add name vethab type veth peer name inside");
        ip("link set vethab master docker0 up");
        let _tunnel = add_tun("tun0", "10.8.0.2/24");
        let _wifi = add_tun("wifi", "10.9.0.2/24");
        ip("link set wifi alias marline-lab~kind=wifi");
        ip("route add default dev wifi metric 800");
        let expected = [
            "cut0: ethernet, not used: it has no carrier (no cable, access point or modem session)",
            "cut0x: ethernet, not used: it is down",
            "docker0: other, not used: it is a bridge to containers or virtual machines",
            "eth0: ethernet, usable",
            "eth0x: ethernet, not used: it connects a container to this machine and has no default route",
            "eth1: ethernet, usable",
            "eth1x: ethernet, not used: it connects a container to this machine and has no default route",
            "eth2: ethernet, not used: it connects a container to this machine and has no default route",
            "eth2x: ethernet, not used: it connects a container to this machine and has no default route",
            "eth3: ethernet, not used: it has no address that is valid beyond its link",
            "eth3x: ethernet, not used: it connects a container to this machine and has no default route",
            "inside: ethernet, not used: it is down",
            "lo: other, not used: it is the loopback interface",
            "off0: ethernet, not used: it is down",
            "off0x: ethernet, not used: it connects a container to this machine and has no default route",
            "six0: ethernet, usable",
            "six0x: ethernet, not used: it connects a container to this machine and has no default route",
            "tun0: tunnel, not used: it is a tunnel that does not carry this machine's Internet traffic",
            "vethab: ethernet, not used: it is a port of docker0",
            "wifi: wifi, usable",
        ];
        let survey = wait_until(|survey| interface_lines(survey) == expected);
        assert_eq!(interface_lines(&survey), expected);
        let eth0 = survey.by_name("eth0").unwrap();
        assert_eq!(eth0.addresses, ["10.1.0.2", "2001:db8:1::2"].map(|a| a.parse::<IpAddr>().unwrap()));
        let route = eth0.route_v4.unwrap();
        assert_eq!((route.metric, route.table), (100, 254));
        assert_eq!(route.gateway, Some("10.1.0.1".parse().unwrap()));
        assert!(eth0.has_v4() && !eth0.has_v6(), "its IPv6 address has no route");
        assert!(eth0.is_on_subnet("10.1.0.77".parse().unwrap()) && !eth0.is_on_subnet("10.2.0.1".parse().unwrap()));
        assert_eq!(survey.by_name("eth1").unwrap().route_v4.unwrap().table, 1001);
        let six0 = survey.by_name("six0").unwrap();
        assert!(six0.has_v6() && !six0.has_v4() && six0.has_public_v6());
        assert_eq!(survey.loopback().unwrap().addresses.len(), 2);
        let chosen = choose_links(&survey, &AUTO, &MeteredHints::unknown()).unwrap();
        let names: Vec<_> = chosen.links.iter().map(|(_, profile)| profile.name.as_str()).collect();
        assert_eq!(names, ["eth1", "eth0", "six0", "wifi"]);
        assert_eq!(chosen.links[3].1.kind, LinkKind::Wifi);
        if let Some(path) = std::env::var_os("MARLINE_RECORD_SURVEY") {
            super::enumerate::save_dumps(std::path::Path::new(&path)).unwrap();
        }
    });
}

const AUTO: LinkSelection = LinkSelection::Auto { bypass_vpn: false, configured: Vec::new() };

/// Creates two Ethernet links and a tunnel, sets up the VPN, and checks that it is found and can be bypassed.
fn with_vpn(set_up: impl FnOnce() + Send) {
    in_a_network(|| {
        cable("eth0", "10.1.0.2/24");
        ip("route add default via 10.1.0.1 dev eth0 metric 100");
        cable("eth1", "10.2.0.2/24");
        ip("route add default via 10.2.0.1 dev eth1 metric 200");
        let _tunnel = add_tun("tun0", "10.8.0.2/24");
        assert_eq!(list_interfaces().unwrap().vpn, None);
        set_up();
        let survey = wait_until(|survey| usable_names(survey) == ["tun0"]);
        assert_eq!(survey.vpn.as_deref(), Some("tun0"));
        assert_eq!(usable_names(&survey), ["tun0"]);
        assert!(survey.by_name("tun0").is_some_and(|tun| tun.route_v4.is_some() && tun.has_v4() && !tun.has_v6()));
        let chosen = choose_links(&survey, &AUTO, &MeteredHints::unknown()).unwrap();
        assert_eq!(chosen.links.len(), 1);
        assert!(chosen.vpn_note.unwrap().contains("tun0"));
        let bypass = LinkSelection::Auto { bypass_vpn: true, configured: Vec::new() };
        let bypassing = choose_links(&survey, &bypass, &MeteredHints::unknown()).unwrap();
        assert_eq!(bypassing.links.iter().map(|(i, _)| i.name.as_str()).collect::<Vec<_>>(), ["eth0", "eth1"]);
    });
}

#[test]
fn a_vpn_with_the_best_default_route_is_found() {
    with_vpn(|| ip("route add default dev tun0 metric 50"));
}

#[test]
fn a_vpn_with_two_routes_for_half_of_the_addresses_is_found() {
    with_vpn(|| {
        ip("route add 0.0.0.0/1 via 10.8.0.1 dev tun0");
        ip("route add 128.0.0.0/1 via 10.8.0.1 dev tun0");
    });
}

#[test]
fn a_vpn_with_a_rule_and_a_separate_table_is_found() {
    with_vpn(|| {
        ip("route add default dev tun0 table 51820");
        ip("rule add not fwmark 51820 table 51820");
    });
}

#[test]
fn neither_an_ipv6_tunnel_beside_ipv4_nor_an_emulated_link_is_a_vpn() {
    in_a_network(|| {
        cable("eth0", "10.1.0.2/24");
        ip("route add default via 10.1.0.1 dev eth0 metric 100");
        let _six = add_tun("he6", "2001:db8:8::2/64");
        ip("-6 route add default dev he6");
        let without_lab_link = wait_until(|survey| usable_names(survey) == ["eth0"]);
        assert_eq!((without_lab_link.vpn.as_deref(), usable_names(&without_lab_link)), (None, vec!["eth0"]));
        let _lab = add_tun("lte", "10.9.0.2/24");
        ip("link set lte alias marline-lab~kind=lte");
        ip("route add default dev lte metric 1");
        let with_lab_link = wait_until(|survey| usable_names(survey) == ["eth0", "lte"]);
        assert_eq!((with_lab_link.vpn.as_deref(), usable_names(&with_lab_link)), (None, vec!["eth0", "lte"]));
    });
}

/// In an IPv6-only network, IPv4 leaves through a translator on this machine, which is not a VPN.
#[test]
fn both_ipv6_only_links_are_used_and_the_clat_is_not() {
    for (name, address) in [("cl-wlan0", "192.0.0.1/32"), ("clat", "192.0.0.1/32"), ("tun7", "192.0.0.4/29")] {
        in_a_network(|| {
            cable("wlan0", "2001:db8:1::2/64");
            ip("-6 route add default via 2001:db8:1::1 dev wlan0 metric 600");
            cable("wwan0", "2001:db8:2::2/64");
            ip("-6 route add default via 2001:db8:2::1 dev wwan0 metric 700");
            let _clat = add_tun(name, address);
            ip(&format!("route add default dev {name} metric 2048"));
            let survey = wait_until(|survey| usable_names(survey) == ["wlan0", "wwan0"]);
            assert_eq!((survey.vpn.as_deref(), usable_names(&survey)), (None, vec!["wlan0", "wwan0"]), "{name}");
            assert_eq!(survey.by_name(name).unwrap().usability, Usability::Unused(UnusedReason::Clat));
            let chosen = choose_links(&survey, &AUTO, &MeteredHints::unknown()).unwrap();
            assert_eq!((chosen.links.len(), chosen.vpn_note), (2, None));
            // A VPN is recognized beside a CLAT as well.
            let _vpn = add_tun("tun0", "2001:db8:8::2/64");
            ip("-6 route add default dev tun0 metric 50");
            let below = wait_until(|survey| usable_names(survey) == ["tun0"]);
            assert_eq!((below.vpn.as_deref(), usable_names(&below)), (Some("tun0"), vec!["tun0"]), "{name}");
        });
    }
}

/// A link with both address families keeps its IPv4 route beside a CLAT.
#[test]
fn a_link_beside_a_clat_keeps_its_own_ipv4() {
    in_a_network(|| {
        cable("eth0", "10.1.0.2/24");
        ip("route add default via 10.1.0.1 dev eth0 metric 100");
        cable("wwan0", "2001:db8:2::2/64");
        ip("-6 route add default via 2001:db8:2::1 dev wwan0 metric 700");
        let _clat = add_tun("v4-wwan0", "192.0.0.4/32");
        ip("route add default dev v4-wwan0 metric 50");
        let survey = wait_until(|survey| usable_names(survey) == ["eth0", "wwan0"]);
        assert_eq!((survey.vpn.as_deref(), usable_names(&survey)), (None, vec!["eth0", "wwan0"]));
        assert!(survey.by_name("eth0").unwrap().has_v4());
    });
}

#[test]
fn a_bridge_with_a_default_route_is_a_link_and_a_multipath_route_counts_for_each_link() {
    in_a_network(|| {
        cable("eth0", "10.1.0.2/24");
        ip("link add name br0 type bridge");
        ip("link set br0 up");
        ip("link set eth0 master br0");
        ip("address flush dev eth0");
        ip("address add 10.1.0.2/24 dev br0");
        cable("eth1", "10.2.0.2/24");
        ip("route add default nexthop via 10.1.0.1 dev br0 nexthop via 10.2.0.1 dev eth1");
        let survey = wait_until(|survey| usable_names(survey) == ["br0", "eth1"]);
        assert_eq!(usable_names(&survey), ["br0", "eth1"]);
        assert_eq!(survey.by_name("eth0").unwrap().usability.to_string(), "not used: it is a port of br0");
        assert_eq!(survey.by_name("br0").unwrap().route_v4.unwrap().gateway, Some("10.1.0.1".parse().unwrap()));
    });
}

#[test]
fn listing_a_hundred_interfaces_is_quick() {
    in_a_network(|| {
        for number in 0..50 {
            ip(&format!("link add name v{number} type veth peer name w{number}"));
        }
        let start = Instant::now();
        let rounds = 20;
        for _ in 0..rounds {
            assert_eq!(list_interfaces().unwrap().interfaces.len(), 101);
        }
        eprintln!("listing 101 interfaces takes {:?}", start.elapsed() / rounds);
    });
}

#[test]
fn the_monitor_reports_changes_of_links_addresses_and_routes() {
    in_a_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut monitor = Monitor::new().unwrap();
            let changes = [
                "link add name eth0 type veth peer name eth0x",
                "link set eth0 up",
                "address add 10.1.0.2/24 dev eth0",
                "route add default via 10.1.0.1 dev eth0",
                "-6 address add 2001:db8::2/64 dev eth0",
                "-6 route add default via 2001:db8::1 dev eth0",
                "link delete eth0",
            ];
            for change in changes {
                // An interface that was just set up keeps changing for a moment.
                while tokio::time::timeout(Duration::from_millis(50), monitor.changed()).await.is_ok() {}
                ip(change);
                let changed = tokio::time::timeout(Duration::from_secs(5), monitor.changed()).await;
                assert!(changed.is_ok(), "not reported: {change}");
                changed.unwrap().unwrap();
            }
            assert!(list_interfaces().unwrap().by_name("eth0").is_none());
        });
    });
}

#[test]
fn a_burst_of_changes_is_reported_as_a_change_and_not_an_error() {
    in_a_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut monitor = Monitor::new().unwrap();
            ip("link add name eth0 type veth peer name eth0x");
            let commands: String = (0..400).map(|n| format!("link set eth0 mtu {}\n", 1400 + n % 50)).collect();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), commands).unwrap();
            ip(&format!("-batch {}", file.path().display()));
            let mut change_count = 0;
            while let Ok(change) = tokio::time::timeout(Duration::from_millis(50), monitor.changed()).await {
                change.unwrap();
                change_count += 1;
            }
            // Simultaneous changes are reported as one; the kernel may add a late one.
            assert!((1..10).contains(&change_count), "{change_count} changes");
        });
    });
}
