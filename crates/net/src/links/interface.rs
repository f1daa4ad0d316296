//! One interface of this machine: its properties, and whether and why it is used or not.
//!
//! `super::enumerate` fills in the values. They print and serialize as `marline links` shows them.
//!
//! 1. [`UnusedReason`] is the first reason that applies, in the order in which a person would check: what the
//!    interface is, whether it is up, whether it has an address, whether it has a route.
//! 2. [`Usability`] describes the default, without options. `super::select` applies the user's choice later.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use marline_core::link::LinkKind;
use serde::Serialize;

/// A network interface with the properties that matter for choosing links.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Interface {
    /// The kernel's name, such as `wlan0`.
    pub name: String,
    /// The kernel's index.
    pub index: u32,
    /// The access technology, as far as the system reveals it.
    pub kind: LinkKind,
    /// Addresses that are valid beyond the link, IPv4 first, sorted; for the loopback its own addresses. New
    /// connections use these as source addresses.
    pub addresses: Vec<IpAddr>,
    /// Temporary (RFC 8981) and deprecated addresses, sorted. Existing connections may have them; new connections do
    /// not use them.
    #[serde(skip)]
    pub transient_addresses: Vec<IpAddr>,
    /// The addresses of `addresses`, each with its prefix length.
    #[serde(skip)]
    pub subnets: Vec<Subnet>,
    /// The IPv4 default route with the lowest metric.
    pub route_v4: Option<DefaultRoute>,
    /// The IPv6 default route with the lowest metric.
    pub route_v6: Option<DefaultRoute>,
    /// Whether its traffic costs money; `None`: unknown.
    pub metered: Option<MeteredStatus>,
    /// Maximum transmission unit in bytes.
    #[serde(skip)]
    pub mtu: u32,
    /// Whether it is an emulated link of the laboratory. System services do not know these, even if they know another
    /// interface of the same name or index.
    pub emulated: bool,
    /// Whether it is used by default, when the user names no link.
    #[serde(flatten)]
    pub usability: Usability,
}

impl Interface {
    /// Whether IPv4 servers can be reached over it. Without any default route, the servers of its own subnet count.
    pub fn has_v4(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv4) && (self.route_v4.is_some() || self.route_v6.is_none())
    }

    /// Whether IPv6 servers can be reached over it. Without any default route, the servers of its own subnet count.
    pub fn has_v6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6) && (self.route_v6.is_some() || self.route_v4.is_none())
    }

    /// Whether it has a globally reachable IPv6 address, not only a unique local one (RFC 4193).
    pub fn has_public_v6(&self) -> bool {
        self.has_v6() && self.addresses.iter().any(|a| matches!(a, IpAddr::V6(a) if !is_unique_local(*a)))
    }

    /// Whether the address is in one of the interface's own subnets.
    pub fn is_on_subnet(&self, address: IpAddr) -> bool {
        self.subnets.iter().any(|subnet| subnet.contains(address))
    }

    /// Whether it is used by default, when the user names no link.
    pub fn is_usable(&self) -> bool {
        self.usability == Usability::Usable
    }
}

/// Whether an address is unique local: `fc00::/7` (RFC 4193).
fn is_unique_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xfe00 == 0xfc00
}

/// Whether the kernel accepts the name (`dev_valid_name`). The check also keeps a name from leading outside
/// `/sys/class/net`.
pub(super) fn is_interface_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0')
}

/// An address of an interface with its subnet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Subnet {
    /// The address of the interface itself.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix_len: u8,
}

impl Subnet {
    /// Whether the subnet contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let prefix = u32::from(self.prefix_len);
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= prefix.min(32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= prefix.min(128),
            _ => false,
        }
    }
}

/// A default route over one interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct DefaultRoute {
    /// Priority: the kernel prefers the lowest metric.
    pub metric: u32,
    /// The routing table that contains it; 254 is the main table.
    pub table: u32,
    /// The next hop; `None` on point-to-point links.
    pub gateway: Option<IpAddr>,
}

/// Whether traffic over a link costs money, and the source of this information.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MeteredStatus {
    /// Whether each byte costs money.
    pub metered: bool,
    /// Where this information comes from.
    pub source: MeteredSource,
}

/// Source of the information whether a link is metered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MeteredSource {
    /// An option or the configuration file.
    User,
    /// The setting in NetworkManager's connection profile.
    NetworkManager,
    /// NetworkManager's guess, from the kind of the device or from DHCP options.
    NetworkManagerGuess,
}

impl fmt::Display for MeteredSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "set by the user",
            Self::NetworkManager => "set in NetworkManager",
            Self::NetworkManagerGuess => "guessed by NetworkManager",
        })
    }
}

/// Whether an interface is used when the user names no link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "verdict", content = "reason", rename_all = "snake_case")]
pub enum Usability {
    /// Used by default.
    Usable,
    /// Not used, for this reason.
    Unused(UnusedReason),
}

/// Why an interface is not used by default.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnusedReason {
    /// The loopback interface.
    Loopback,
    /// Administratively down.
    Down,
    /// A port of this bridge or bond, which has the addresses.
    PortOf(String),
    /// No cable, no access point, or no modem session.
    NoCarrier,
    /// No address that is valid beyond the link.
    NoAddress,
    /// No default route: only its own subnet is reachable.
    NoDefaultRoute,
    /// A bridge that connects containers or virtual machines to this host.
    Bridge,
    /// A veth device that connects a container to this machine, without a default route.
    Container,
    /// A tunnel that does not carry this machine's Internet traffic.
    Tunnel,
    /// A translator from IPv4 to IPv6 (464XLAT) above IPv6 links that are used directly.
    Clat,
    /// This VPN carries the machine's Internet traffic, so the links below it are not used.
    BelowVpn(String),
}

impl UnusedReason {
    /// Whether the interface can carry traffic if the user names it.
    pub fn can_be_overridden(&self) -> bool {
        !matches!(self, Self::Down | Self::PortOf(_) | Self::NoCarrier | Self::NoAddress)
    }
}

impl fmt::Display for Usability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable => f.write_str("usable"),
            Self::Unused(reason) => write!(f, "not used: {reason}"),
        }
    }
}

impl fmt::Display for UnusedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("it is the loopback interface"),
            Self::Down => f.write_str("it is down"),
            Self::PortOf(controller) => write!(f, "it is a port of {controller}"),
            Self::NoCarrier => f.write_str("it has no carrier (no cable, access point or modem session)"),
            Self::NoAddress => f.write_str("it has no address that is valid beyond its link"),
            Self::NoDefaultRoute => f.write_str("it has no default route"),
            Self::Bridge => f.write_str("it is a bridge to containers or virtual machines"),
            Self::Container => f.write_str("it connects a container to this machine and has no default route"),
            Self::Clat => {
                f.write_str("it translates IPv4 packets to IPv6 (464XLAT) for links that are already used directly")
            }
            Self::Tunnel => f.write_str("it is a tunnel that does not carry this machine's Internet traffic"),
            Self::BelowVpn(tunnel) => {
                write!(
                    f,
                    "the VPN {tunnel} carries this machine's Internet traffic (--bypass-vpn uses this link anyway)"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_interface;

    fn network(text: &str, prefix: u8) -> Subnet {
        Subnet { address: text.parse().unwrap(), prefix_len: prefix }
    }

    #[test]
    fn a_subnet_contains_the_addresses_of_its_prefix() {
        let lan = network("192.168.1.20", 24);
        assert!(lan.contains("192.168.1.1".parse().unwrap()));
        assert!(!lan.contains("192.168.2.1".parse().unwrap()));
        assert!(!lan.contains("::1".parse().unwrap()));
        assert!(network("10.0.0.1", 0).contains("203.0.113.9".parse().unwrap()));
        assert!(!network("10.0.0.1", 32).contains("10.0.0.2".parse().unwrap()));
        assert!(network("2001:db8::1", 64).contains("2001:db8::ffff".parse().unwrap()));
        assert!(!network("2001:db8::1", 128).contains("2001:db8::".parse().unwrap()));
        assert!(
            network("2001:db8::1", 255).contains("2001:db8::1".parse().unwrap()),
            "an impossible prefix length does not panic"
        );
    }

    #[test]
    fn the_reason_of_an_unused_interface_is_in_text_and_json() {
        let interface = Interface {
            kind: LinkKind::Other,
            addresses: vec!["172.17.0.1".parse().unwrap()],
            subnets: vec![network("172.17.0.1", 16)],
            metered: Some(MeteredStatus { metered: true, source: MeteredSource::NetworkManagerGuess }),
            usability: Usability::Unused(UnusedReason::Bridge),
            ..test_interface("docker0", 7)
        };
        assert_eq!(
            serde_json::to_string(&interface).unwrap(),
            r#"{"name":"docker0","index":7,"kind":"other","addresses":["172.17.0.1"],"route_v4":null,"route_v6":null,"metered":{"metered":true,"source":"network_manager_guess"},"emulated":false,"verdict":"unused","reason":"bridge"}"#
        );
        assert_eq!(interface.usability.to_string(), "not used: it is a bridge to containers or virtual machines");
    }
}
