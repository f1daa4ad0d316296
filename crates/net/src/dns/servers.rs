//! The DNS servers of a link, as the machine's network services know them.
//!
//! In: a link, the file system and the system's bus. Out: the servers in order, with the service that named them.
//!
//! 1. The first service that knows any server of the link counts alone: systemd-resolved or systemd-networkd (their
//!    files, then the bus), NetworkManager, the files of DHCP clients, resolvconf ([`super::leases`]) and OpenWrt
//!    ([`super::netifd`]), `/etc/resolv.conf`.
//! 2. Servers on the loopback, and those of a family that the link lacks, cannot be asked over it.
//! 3. Servers of `/etc/resolv.conf` with a private address count only on the link whose subnet they are in, or by which
//!    the kernel's route to them leads: a provider's server may be beyond the subnet, and nowhere but on its own link.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Source, leases};
use crate::links::{Bus, BusValue, Interface, leads_over};

/// Where the machine keeps its configuration.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// The root of the file system.
    pub(super) root: PathBuf,
    /// The port that servers listen on unless they say another.
    pub(super) port: u16,
    /// The link by which the kernel's route to an address leads.
    pub(super) route: fn(IpAddr) -> Option<u32>,
}

impl Default for Places {
    fn default() -> Self {
        Self { root: PathBuf::from("/"), port: 53, route: leads_over }
    }
}

impl Places {
    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }
}

/// Who named a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Namer {
    Resolved,
    NetworkManager,
    Lease,
    ResolvConf,
}

impl Namer {
    /// The source of an answer from this server.
    pub(super) fn source(self, server: SocketAddr, link: &str) -> Source {
        let (server, link) = (server.ip(), link.to_owned());
        match self {
            Self::Resolved => Source::Resolved { server, link },
            Self::NetworkManager => Source::NetworkManager { server, link },
            Self::Lease => Source::Lease { server, link },
            Self::ResolvConf => Source::ResolvConf { server, link },
        }
    }
}

/// The servers that can be asked over the link. Blocks for at most 200 ms.
pub(super) fn servers(places: &Places, link: &Interface) -> Option<(Namer, Vec<SocketAddr>)> {
    let mut bus = None;
    for namer in [Namer::Resolved, Namer::NetworkManager, Namer::Lease, Namer::ResolvConf] {
        let mut servers = match namer {
            // Services name links by number and name, and an emulated one has both in a network of its own.
            Namer::Resolved | Namer::NetworkManager | Namer::Lease if link.emulated => continue,
            Namer::Resolved => of_resolved(places, link, &mut bus),
            Namer::NetworkManager => of_network_manager(places, link, &mut bus),
            Namer::Lease => {
                leases::words(places, link).iter().filter_map(|word| written(places, link, word)).collect()
            }
            Namer::ResolvConf => of_resolv_conf(places, link),
        };
        servers.retain(|server| can_be_asked(server.ip(), link));
        if !servers.is_empty() {
            return Some((namer, servers));
        }
    }
    None
}

fn can_be_asked(server: IpAddr, link: &Interface) -> bool {
    match server {
        _ if server.is_loopback() || server.is_unspecified() => false,
        IpAddr::V4(_) => link.has_v4(),
        // A router's link-local address can be asked from one, which every interface with IPv6 has.
        IpAddr::V6(server) => server.is_unicast_link_local() || link.has_v6() || link.is_neighbour(server.into()),
    }
}

fn of_resolved(places: &Places, link: &Interface, bus: &mut Option<Bus>) -> Vec<SocketAddr> {
    for (path, key) in [("run/systemd/resolve/netif", "SERVERS="), ("run/systemd/netif/links", "DNS=")] {
        let text = places.read(&format!("{path}/{}", link.index));
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let servers: Vec<_> = line.split_whitespace().filter_map(|word| written(places, link, word)).collect();
        if !servers.is_empty() {
            return servers;
        }
    }
    if !places.exists("run/systemd/resolve") {
        return Vec::new();
    }
    const SERVICE: &str = "org.freedesktop.resolve1";
    let ask = |bus: &mut Bus| {
        bus.property(SERVICE, "/org/freedesktop/resolve1", "org.freedesktop.resolve1.Manager", "DNS")
    };
    let all = connected(places, bus).and_then(|bus| ask(bus).ok());
    let of_link = |entry: &BusValue| match entry.list() {
        [index, _family, address] if index.number() == Some(link.index.into()) => {
            octets(places, link, address.bytes()?)
        }
        _ => None,
    };
    all.map(|all| all.list().iter().filter_map(of_link).collect()).unwrap_or_default()
}

fn of_network_manager(places: &Places, link: &Interface, bus: &mut Option<Bus>) -> Vec<SocketAddr> {
    if !places.exists("run/NetworkManager") {
        return Vec::new();
    }
    connected(places, bus).and_then(|bus| ask_network_manager(places, link, bus)).unwrap_or_default()
}

fn ask_network_manager(places: &Places, link: &Interface, bus: &mut Bus) -> Option<Vec<SocketAddr>> {
    const SERVICE: &str = "org.freedesktop.NetworkManager";
    const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
    let path = "/org/freedesktop/NetworkManager";
    let device = bus.call(SERVICE, path, SERVICE, "GetDeviceByIpIface", &[&link.name]).ok()?;
    let device = device.first()?.text()?.to_owned();
    let mut servers = Vec::new();
    // IPv4's list of numbers is deprecated, IPv6's list of bytes is not.
    for (family, property) in [("IP4Config", "NameserverData"), ("IP6Config", "Nameservers")] {
        let config = format!("Ip{}Config", &family[2..3]);
        let Ok(config) = bus.property(SERVICE, &device, DEVICE, &config) else { continue };
        let Some(config) = config.text().filter(|path| *path != "/") else { continue };
        let Ok(list) = bus.property(SERVICE, config, &format!("{SERVICE}.{family}"), property) else { continue };
        servers.extend(list.list().iter().filter_map(|entry| match entry.bytes() {
            Some(bytes) => octets(places, link, bytes),
            None => written(places, link, entry_named(entry, "address")?.text()?),
        }));
    }
    Some(servers)
}

/// The value of this key in a dictionary.
fn entry_named<'a>(dictionary: &'a BusValue, key: &str) -> Option<&'a BusValue> {
    dictionary.list().iter().find_map(|entry| match entry.list() {
        [name, value] if name.text() == Some(key) => Some(value),
        _ => None,
    })
}

fn of_resolv_conf(places: &Places, link: &Interface) -> Vec<SocketAddr> {
    let text = places.read("etc/resolv.conf");
    let servers = leases::nameservers(&text).filter_map(|word| written(places, link, &word));
    servers.filter(|server| !is_private(server.ip()) || is_there(places, link, server.ip())).collect()
}

/// Whether the server is in the link's subnet, or the kernel's route to it leads over the link.
fn is_there(places: &Places, link: &Interface, server: IpAddr) -> bool {
    link.is_neighbour(server) || (places.route)(server) == Some(link.index)
}

/// The same for a server in the services' notation.
pub(super) fn is_route(places: &Places, link: &Interface, word: &str) -> bool {
    written(places, link, word).is_some_and(|server| is_there(places, link, server.ip()))
}

/// Whether the address means another machine on each network.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            a.is_private() || a.is_link_local() || (a.octets()[0] == 100 && a.octets()[1] & 0xc0 == 64)
        }
        IpAddr::V6(a) => a.is_unicast_link_local() || a.is_unique_local(),
    }
}

/// The one connection to the bus.
fn connected<'a>(places: &Places, bus: &'a mut Option<Bus>) -> Option<&'a mut Bus> {
    /// chosen: as for the question about cost; a name must not wait longer for a broken bus.
    const LIMIT: Duration = Duration::from_millis(200);
    if bus.is_none() {
        let socket = places.root.join("run/dbus/system_bus_socket");
        *bus = Path::exists(&socket).then(|| Bus::connect(&socket, LIMIT).ok()).flatten();
    }
    bus.as_mut()
}

/// A server in the services' notation: `192.0.2.1`, `192.0.2.1:5353`, `[2001:db8::1]:53`, `fe80::1%wlan0`, and with
/// `#name` behind it for TLS.
fn written(places: &Places, link: &Interface, word: &str) -> Option<SocketAddr> {
    let word = word.split('#').next()?;
    let (word, zone) = word.split_once('%').unwrap_or((word, link.name.as_str()));
    if zone != link.name && zone.parse() != Ok(link.index) {
        return None;
    }
    if let Ok(address) = word.parse::<IpAddr>() {
        return Some(at(places, link, address));
    }
    word.parse().ok()
}

/// A server as the bytes of its address.
fn octets(places: &Places, link: &Interface, bytes: &[u8]) -> Option<SocketAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)).map(|address| at(places, link, address))
}

/// The server's socket address; a link-local one means a neighbour on this link.
fn at(places: &Places, link: &Interface, address: IpAddr) -> SocketAddr {
    let scope = |a: Ipv6Addr| if a.is_unicast_link_local() { link.index } else { 0 };
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, places.port),
        IpAddr::V6(a) => SocketAddrV6::new(a, places.port, 0, scope(a)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::tests::{link, places};

    fn texts(found: Option<(Namer, Vec<SocketAddr>)>) -> Option<(Namer, Vec<String>)> {
        found.map(|(namer, servers)| (namer, servers.iter().map(ToString::to_string).collect()))
    }

    /// A host route to a provider's server over link 5.
    fn route(address: IpAddr) -> Option<u32> {
        (address == IpAddr::from([10, 64, 0, 1])).then_some(5)
    }

    fn of(files: &[(&str, &str)], link: &Interface) -> Option<(Namer, Vec<String>)> {
        let root = places(files);
        texts(servers(&Places { root: root.path().to_owned(), port: 53, route }, link))
    }

    #[test]
    fn the_first_service_that_knows_a_server_counts() {
        let wifi = link("wlan0", 3, &["192.168.1.20/24"]);
        let resolved =
            ("run/systemd/resolve/netif/3", "# private\nLLMNR=yes\nSERVERS=192.168.1.1 9.9.9.9:5353#tls.example\n");
        let networkd = ("run/systemd/netif/links/3", "DNS=192.168.1.2\nDOMAINS=lan\n");
        let conf = ("etc/resolv.conf", "nameserver 1.1.1.1\n");
        let named = |namer, servers: &[&str]| Some((namer, servers.iter().map(|s| s.to_string()).collect()));
        assert_eq!(
            of(&[resolved, networkd, conf], &wifi),
            named(Namer::Resolved, &["192.168.1.1:53", "9.9.9.9:5353"])
        );
        assert_eq!(of(&[networkd, conf], &wifi), named(Namer::Resolved, &["192.168.1.2:53"]));
        assert_eq!(of(&[conf], &wifi), named(Namer::ResolvConf, &["1.1.1.1:53"]));
        assert_eq!(of(&[("run/systemd/netif/links/4", "DNS=192.168.1.2\n")], &wifi), None, "another link's");
        assert_eq!(of(&[], &wifi), None);
        let emulated = Interface { emulated: true, ..wifi };
        assert_eq!(of(&[resolved, networkd, conf], &emulated), named(Namer::ResolvConf, &["1.1.1.1:53"]));
    }

    #[test]
    fn a_providers_server_is_asked_over_its_own_link_and_no_other() {
        let (wifi, wwan) = (link("wlan0", 3, &["192.168.1.20/24"]), link("wwan0", 5, &["10.40.7.3/32"]));
        let conf = ("etc/resolv.conf", "nameserver 192.168.1.1\nnameserver 10.64.0.1\n");
        assert_eq!(of(&[conf], &wifi), Some((Namer::ResolvConf, vec!["192.168.1.1:53".to_owned()])));
        assert_eq!(of(&[conf], &wwan), Some((Namer::ResolvConf, vec!["10.64.0.1:53".to_owned()])));
        let lease = ("run/resolvconf/interface/wwan0.dhclient", "nameserver 10.64.0.9\n");
        assert_eq!(of(&[conf, lease], &wwan), Some((Namer::Lease, vec!["10.64.0.9:53".to_owned()])));
        assert_eq!(of(&[conf, lease], &wifi), Some((Namer::ResolvConf, vec!["192.168.1.1:53".to_owned()])));
    }

    #[test]
    fn a_server_that_the_link_cannot_ask_is_passed_over() {
        let wifi = link("wlan0", 3, &["192.168.1.20/24"]);
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
            let found = of(&[("etc/resolv.conf", servers)], &wifi);
            assert_eq!(found.map(|(_, servers)| servers.join(" ")).as_deref(), want, "{servers}");
        }
        let six = link("wlan0", 3, &["2001:db8::20/64"]);
        let own = of(
            &[("run/systemd/netif/links/3", "DNS=fe80::1%wlan0 fe80::2%eth0 [2001:db8::53]:54 192.168.1.1\n")],
            &six,
        );
        assert_eq!(own.unwrap().1, ["[fe80::1%3]:53", "[2001:db8::53]:54"]);
    }
}
