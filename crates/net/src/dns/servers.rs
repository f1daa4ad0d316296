//! Finds the DNS servers of a link in the records of this machine's network services.
//!
//! 1. Only the first service that lists a server of the link is used: systemd-resolved or systemd-networkd (their
//!    files, then D-Bus), NetworkManager, the files of DHCP clients and resolvconf (`super::leases`) and of OpenWrt
//!    (`super::netifd`), `/etc/resolv.conf`.
//! 2. Servers on the loopback, and those of a family that the link lacks, cannot be queried over the link and are
//!    omitted.
//! 3. Servers in `/etc/resolv.conf` with a private address count only for the link whose subnet contains them, or to
//!    which the kernel's route to them points: a provider's server may be outside the subnet, and reachable only over
//!    its own link.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use super::server_notation::{is_reached_over, nameservers, parse_server, server_from_bytes};
use super::system_paths::SystemPaths;
use super::{ResolutionSource, leases};
use crate::links::{Bus, BusValue, Interface};

/// The service that listed a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ServerSource {
    SystemdResolved,
    NetworkManager,
    DhcpLease,
    ResolvConf,
}

impl ServerSource {
    /// The source of an answer from this server.
    pub(super) fn resolution_source(self, server: SocketAddr, link: &str) -> ResolutionSource {
        let (server, link) = (server.ip(), link.to_owned());
        match self {
            Self::SystemdResolved => ResolutionSource::Resolved { server, link },
            Self::NetworkManager => ResolutionSource::NetworkManager { server, link },
            Self::DhcpLease => ResolutionSource::Lease { server, link },
            Self::ResolvConf => ResolutionSource::ResolvConf { server, link },
        }
    }
}

/// The servers that can be queried over the link, with the service that listed them. Waits for D-Bus at most 200 ms
/// in all.
pub(super) fn link_servers(paths: &SystemPaths, link: &Interface) -> Option<(ServerSource, Vec<SocketAddr>)> {
    let mut bus = None;
    for source in [
        ServerSource::SystemdResolved,
        ServerSource::NetworkManager,
        ServerSource::DhcpLease,
        ServerSource::ResolvConf,
    ] {
        let mut servers = match source {
            // These services identify links by index and name, and an emulated link has both in a namespace of its
            // own.
            ServerSource::SystemdResolved | ServerSource::NetworkManager | ServerSource::DhcpLease
                if link.emulated =>
            {
                continue;
            }
            ServerSource::SystemdResolved => resolved_servers(paths, link, &mut bus),
            ServerSource::NetworkManager => network_manager_servers(paths, link, &mut bus),
            ServerSource::DhcpLease => leases::server_texts(paths, link)
                .iter()
                .filter_map(|server_text| parse_server(paths, link, server_text))
                .collect(),
            ServerSource::ResolvConf => resolv_conf_servers(paths, link),
        };
        servers.retain(|server| is_reachable(server.ip(), link));
        if !servers.is_empty() {
            return Some((source, servers));
        }
    }
    None
}

fn is_reachable(server: IpAddr, link: &Interface) -> bool {
    match server {
        _ if server.is_loopback() || server.is_unspecified() => false,
        IpAddr::V4(_) => link.has_v4(),
        // A router's link-local address can be queried from the link-local address that each IPv6 interface has.
        IpAddr::V6(server) => server.is_unicast_link_local() || link.has_v6() || link.is_on_subnet(server.into()),
    }
}

fn resolved_servers(paths: &SystemPaths, link: &Interface, bus: &mut Option<Bus>) -> Vec<SocketAddr> {
    for (path, key) in [("run/systemd/resolve/netif", "SERVERS="), ("run/systemd/netif/links", "DNS=")] {
        let text = paths.read(&format!("{path}/{}", link.index));
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let servers: Vec<_> =
            line.split_whitespace().filter_map(|server_text| parse_server(paths, link, server_text)).collect();
        if !servers.is_empty() {
            return servers;
        }
    }
    if !paths.exists("run/systemd/resolve") {
        return Vec::new();
    }
    const SERVICE: &str = "org.freedesktop.resolve1";
    let query = |bus: &mut Bus| {
        bus.property(SERVICE, "/org/freedesktop/resolve1", "org.freedesktop.resolve1.Manager", "DNS")
    };
    let entries = bus_connection(paths, bus).and_then(|bus| query(bus).ok());
    let of_link = |entry: &BusValue| match entry.as_list() {
        [index, _family, address] if index.as_number() == Some(link.index.into()) => {
            server_from_bytes(paths, link, address.as_bytes()?)
        }
        _ => None,
    };
    entries.map(|entries| entries.as_list().iter().filter_map(of_link).collect()).unwrap_or_default()
}

fn network_manager_servers(paths: &SystemPaths, link: &Interface, bus: &mut Option<Bus>) -> Vec<SocketAddr> {
    if !paths.exists("run/NetworkManager") {
        return Vec::new();
    }
    bus_connection(paths, bus).and_then(|bus| query_network_manager(paths, link, bus)).unwrap_or_default()
}

fn query_network_manager(paths: &SystemPaths, link: &Interface, bus: &mut Bus) -> Option<Vec<SocketAddr>> {
    const SERVICE: &str = "org.freedesktop.NetworkManager";
    const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
    let path = "/org/freedesktop/NetworkManager";
    let device = bus.call(SERVICE, path, SERVICE, "GetDeviceByIpIface", &[&link.name]).ok()?;
    let device = device.first()?.as_text()?.to_owned();
    let mut servers = Vec::new();
    // For IPv4 the list of numbers is deprecated; for IPv6 the list of bytes is not.
    for (family, property) in [("IP4Config", "NameserverData"), ("IP6Config", "Nameservers")] {
        let config = format!("Ip{}Config", &family[2..3]);
        let Ok(config) = bus.property(SERVICE, &device, DEVICE, &config) else { continue };
        let Some(config) = config.as_text().filter(|path| *path != "/") else { continue };
        let Ok(list) = bus.property(SERVICE, config, &format!("{SERVICE}.{family}"), property) else { continue };
        servers.extend(list.as_list().iter().filter_map(|entry| match entry.as_bytes() {
            Some(bytes) => server_from_bytes(paths, link, bytes),
            None => parse_server(paths, link, dict_entry(entry, "address")?.as_text()?),
        }));
    }
    Some(servers)
}

/// The value of a key in a dictionary.
fn dict_entry<'a>(dictionary: &'a BusValue, key: &str) -> Option<&'a BusValue> {
    dictionary.as_list().iter().find_map(|entry| match entry.as_list() {
        [name, value] if name.as_text() == Some(key) => Some(value),
        _ => None,
    })
}

fn resolv_conf_servers(paths: &SystemPaths, link: &Interface) -> Vec<SocketAddr> {
    let text = paths.read("etc/resolv.conf");
    let servers = nameservers(&text).filter_map(|server_text| parse_server(paths, link, &server_text));
    servers.filter(|server| !is_private(server.ip()) || is_reached_over(paths, link, server.ip())).collect()
}

/// Whether the address can belong to different machines on different networks.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            a.is_private() || a.is_link_local() || (a.octets()[0] == 100 && a.octets()[1] & 0xc0 == 64)
        }
        IpAddr::V6(a) => a.is_unicast_link_local() || a.is_unique_local(),
    }
}

/// Returns the D-Bus connection; the first call opens it.
fn bus_connection<'a>(paths: &SystemPaths, bus: &'a mut Option<Bus>) -> Option<&'a mut Bus> {
    /// For connecting and all queries of one look-up. Our choice: as for metered links; a name look-up must not wait
    /// longer for a broken bus.
    const BUS_TIMEOUT: Duration = Duration::from_millis(200);
    if bus.is_none() {
        let socket = paths.root.join("run/dbus/system_bus_socket");
        *bus = Path::exists(&socket).then(|| Bus::connect(&socket, BUS_TIMEOUT).ok()).flatten();
    }
    bus.as_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::tests::{system_files, test_link};

    fn texts(found: Option<(ServerSource, Vec<SocketAddr>)>) -> Option<(ServerSource, Vec<String>)> {
        found.map(|(source, servers)| (source, servers.iter().map(ToString::to_string).collect()))
    }

    /// A host route to a provider's server over link 5.
    fn route(address: IpAddr) -> Option<u32> {
        (address == IpAddr::from([10, 64, 0, 1])).then_some(5)
    }

    fn servers_of(files: &[(&str, &str)], link: &Interface) -> Option<(ServerSource, Vec<String>)> {
        let root = system_files(files);
        texts(link_servers(&SystemPaths { root: root.path().to_owned(), dns_port: 53, route_lookup: route }, link))
    }

    #[test]
    fn only_the_first_service_that_lists_a_server_is_used() {
        let wifi = test_link("wlan0", 3, &["192.168.1.20/24"]);
        let resolved =
            ("run/systemd/resolve/netif/3", "# private\nLLMNR=yes\nSERVERS=192.168.1.1 9.9.9.9:5353#tls.example\n");
        let networkd = ("run/systemd/netif/links/3", "DNS=192.168.1.2\nDOMAINS=lan\n");
        let conf = ("etc/resolv.conf", "nameserver 1.1.1.1\n");
        let expected = |source, servers: &[&str]| Some((source, servers.iter().map(|s| s.to_string()).collect()));
        assert_eq!(
            servers_of(&[resolved, networkd, conf], &wifi),
            expected(ServerSource::SystemdResolved, &["192.168.1.1:53", "9.9.9.9:5353"])
        );
        assert_eq!(
            servers_of(&[networkd, conf], &wifi),
            expected(ServerSource::SystemdResolved, &["192.168.1.2:53"])
        );
        assert_eq!(servers_of(&[conf], &wifi), expected(ServerSource::ResolvConf, &["1.1.1.1:53"]));
        assert_eq!(
            servers_of(&[("run/systemd/netif/links/4", "DNS=192.168.1.2\n")], &wifi),
            None,
            "a file of another link"
        );
        assert_eq!(servers_of(&[], &wifi), None);
        let emulated = Interface { emulated: true, ..wifi };
        assert_eq!(
            servers_of(&[resolved, networkd, conf], &emulated),
            expected(ServerSource::ResolvConf, &["1.1.1.1:53"])
        );
    }

    #[test]
    fn a_providers_server_is_queried_only_over_its_own_link() {
        let (wifi, wwan) = (test_link("wlan0", 3, &["192.168.1.20/24"]), test_link("wwan0", 5, &["10.40.7.3/32"]));
        let conf = ("etc/resolv.conf", "nameserver 192.168.1.1\nnameserver 10.64.0.1\n");
        assert_eq!(servers_of(&[conf], &wifi), Some((ServerSource::ResolvConf, vec!["192.168.1.1:53".to_owned()])));
        assert_eq!(servers_of(&[conf], &wwan), Some((ServerSource::ResolvConf, vec!["10.64.0.1:53".to_owned()])));
        let lease = ("run/resolvconf/interface/wwan0.dhclient", "nameserver 10.64.0.9\n");
        assert_eq!(
            servers_of(&[conf, lease], &wwan),
            Some((ServerSource::DhcpLease, vec!["10.64.0.9:53".to_owned()]))
        );
        assert_eq!(
            servers_of(&[conf, lease], &wifi),
            Some((ServerSource::ResolvConf, vec!["192.168.1.1:53".to_owned()]))
        );
    }

    #[test]
    fn a_server_that_the_link_cannot_reach_is_skipped() {
        let wifi = test_link("wlan0", 3, &["192.168.1.20/24"]);
        for (servers, want) in [
            ("nameserver 127.0.0.53\noptions edns0", None),
            ("nameserver ::1", None),
            ("nameserver 192.168.2.1", None),
            ("nameserver 100.100.100.100", None),
            ("nameserver 2001:db8::53", None),
            ("nameserver nonsense\nnameserver\n# nameserver 1.1.1.1", None),
            ("nameserver 192.168.1.1", Some("192.168.1.1:53")),
            ("nameserver\t127.0.0.53\nnameserver 9.9.9.9", Some("9.9.9.9:53")),
            ("nameserver fe80::1%wlan0", None),
        ] {
            let found = servers_of(&[("etc/resolv.conf", servers)], &wifi);
            assert_eq!(found.map(|(_, servers)| servers.join(" ")).as_deref(), want, "{servers}");
        }
        let v6_link = test_link("wlan0", 3, &["2001:db8::20/64"]);
        let interface_servers = servers_of(
            &[("run/systemd/netif/links/3", "DNS=fe80::1%wlan0 fe80::2%eth0 [2001:db8::53]:54 192.168.1.1\n")],
            &v6_link,
        );
        assert_eq!(interface_servers.unwrap().1, ["[fe80::1%3]:53", "[2001:db8::53]:54"]);
    }
}
