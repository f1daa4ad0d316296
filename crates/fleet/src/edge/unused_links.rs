//! Lists links that connections to relays do not use, and why: an edge with two links that only uses one must report it.
//!
//! The list is made from the last sample of the links, the interfaces of this host, and the MPTCP endpoints of the kernel's own path
//! manager. A link is listed if it has a default route and
//!
//! 1. a daemon (`marline paths`) manages the links, and the interface is not among them (a tunnel, a bridge, a VPN beside the main one); or
//! 2. no daemon runs, the kernel manages the paths, and no MPTCP endpoint creates subflows over it. Connections begin over the link of the
//!    preferred default route, which needs no endpoint.

use marline_core::wire::netlink::mptcp::Endpoint;
use marline_net::links::{Interface, InterfaceList, Usability, list_interfaces};
use marline_paths::host_config;

use super::link_rates::LinkSample;

/// Our choice: interfaces change rarely; with this value they are checked every ten seconds.
pub(super) const SAMPLES_PER_CHECK: u64 = 5;

/// A link that carries no traffic to relays.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UnusedLink {
    /// The interface.
    pub name: String,
    /// The reason, and the remedy.
    pub reason: String,
}

/// Checks all interfaces once. Blocks while the kernel answers.
pub(super) fn find_unused(sample: &LinkSample) -> Vec<UnusedLink> {
    let Ok(survey) = list_interfaces() else { return Vec::new() };
    let managed =
        sample.has_path_manager.then(|| sample.links.iter().map(|link| link.name.clone()).collect::<Vec<_>>());
    // Endpoints are unknown without CAP_NET_ADMIN or without MPTCP. If another program manages the paths, they are no evidence.
    let kernel_manages = !sample.has_path_manager && !host_config::is_userspace();
    let endpoints = kernel_manages.then(|| host_config::kernel_endpoints().ok()).flatten();
    unused_links(&survey, managed.as_deref(), endpoints.as_deref())
}

fn unused_links(
    survey: &InterfaceList,
    managed: Option<&[String]>,
    endpoints: Option<&[Endpoint]>,
) -> Vec<UnusedLink> {
    let metric = |interface: &Interface| {
        [&interface.route_v4, &interface.route_v6].into_iter().flatten().map(|route| route.metric).min()
    };
    let with_route = || survey.interfaces.iter().filter(|interface| metric(interface).is_some());
    let preferred =
        with_route().min_by_key(|interface| (metric(interface), interface.index)).map(|first| first.index);
    let why = |interface: &Interface| match (managed, endpoints) {
        (Some(links), _) if links.contains(&interface.name) => None,
        (Some(_), _) => Some(match &interface.usability {
            Usability::Unused(reason) if reason.can_be_overridden() => {
                format!("{reason}; use it with --link {}", interface.name)
            }
            Usability::Unused(reason) => reason.to_string(),
            Usability::Usable => "it is not one of the managed links; add it with --link".to_owned(),
        }),
        (None, Some(endpoints)) => {
            let is_its = |endpoint: &&Endpoint| {
                endpoint.subflow
                    && (endpoint.interface == interface.index || interface.addresses.contains(&endpoint.address))
            };
            let has_endpoint =
                Some(interface.index) == preferred || endpoints.iter().any(|endpoint| is_its(&endpoint));
            let address = interface.addresses.first().map_or_else(|| "ADDRESS".to_owned(), ToString::to_string);
            (!has_endpoint).then(|| {
                format!(
                    "it has no MPTCP endpoint, and no daemon manages the links: run `ip mptcp endpoint add {address} dev {} subflow`, or \
                     run `marline edge` with CAP_NET_ADMIN and without --no-paths",
                    interface.name
                )
            })
        }
        (None, None) => None,
    };
    with_route()
        .filter_map(|interface| Some(UnusedLink { name: interface.name.clone(), reason: why(interface)? }))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use marline_net::links::UnusedReason;
    use marline_net::testing::{default_route, test_interface};

    use super::*;

    fn interface(name: &str, index: u32, metric: Option<u32>, verdict: Usability) -> Interface {
        Interface {
            addresses: vec![IpAddr::from([10, 0, 0, index as u8])],
            route_v4: metric.map(default_route),
            usability: verdict,
            ..test_interface(name, index)
        }
    }

    /// Two tunnels with default routes, and a LAN.
    fn tunnels() -> InterfaceList {
        let interfaces = vec![
            interface("tun0", 2, Some(100), Usability::Usable),
            interface("tun1", 3, Some(200), Usability::Unused(UnusedReason::Tunnel)),
            interface("lan0", 4, None, Usability::Usable),
        ];
        InterfaceList { interfaces, vpn: None }
    }

    fn names(found: &[UnusedLink]) -> Vec<&str> {
        found.iter().map(|unused| unused.name.as_str()).collect()
    }

    #[test]
    fn a_tunnel_that_the_daemon_does_not_manage_is_listed_with_the_option_that_uses_it() {
        let found = unused_links(&tunnels(), Some(&["tun0".to_owned()]), None);
        assert_eq!(names(&found), ["tun1"]);
        assert!(found[0].reason.contains("it is a tunnel") && found[0].reason.contains("--link tun1"), "{found:?}");
        assert_eq!(unused_links(&tunnels(), Some(&["tun0".to_owned(), "tun1".to_owned()]), None), []);
    }

    #[test]
    fn without_a_daemon_a_link_without_an_endpoint_is_listed_with_the_command_that_adds_one() {
        let found = unused_links(&tunnels(), None, Some(&[]));
        assert_eq!(names(&found), ["tun1"], "connections begin over the link of the preferred default route");
        assert!(found[0].reason.contains("ip mptcp endpoint add 10.0.0.3 dev tun1 subflow"), "{found:?}");
        let by_link = Endpoint::for_subflows(IpAddr::from([10, 0, 0, 9]), 3, false);
        let by_address = Endpoint::for_subflows(IpAddr::from([10, 0, 0, 3]), 0, false);
        for endpoint in [by_link, by_address] {
            assert_eq!(unused_links(&tunnels(), None, Some(&[endpoint])), []);
            let only_announced = Endpoint { subflow: false, signal: true, ..endpoint };
            assert_eq!(names(&unused_links(&tunnels(), None, Some(&[only_announced]))), ["tun1"]);
        }
        assert_eq!(unused_links(&tunnels(), None, None), [], "the endpoints are not known");
    }
}
