//! One interface of this machine: what it has, and why it is used or not.
//!
//! In: facts that [`super::enumerate()`] gathered. Out: a value that prints and serializes as `marline links` shows it.
//!
//! 1. The verdict is the first reason that holds, in the order in which a person would look: what it is, whether it
//!    is up, whether it has an address, whether it leads anywhere.
//! 2. A verdict says what happens without any option; the user's own choice comes later, in [`super::select()`].

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use marline_core::link::LinkKind;
use serde::Serialize;

/// A network interface and what matters of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Interface {
    /// Its name: `wlan0`.
    pub name: String,
    /// The kernel's number for it.
    pub index: u32,
    /// The access technology, as far as the system tells.
    pub kind: LinkKind,
    /// Addresses that reach beyond the link, IPv4 first, sorted; on the loopback its own. What begins here begins from
    /// these.
    pub addresses: Vec<IpAddr>,
    /// Temporary (RFC 8981) and deprecated ones, sorted: what has them is this interface's, and nothing begins from them.
    #[serde(skip)]
    pub transient_addresses: Vec<IpAddr>,
    /// The same addresses with the length of their prefix.
    #[serde(skip)]
    pub subnets: Vec<Subnet>,
    /// Its best IPv4 default route.
    pub route_v4: Option<DefaultRoute>,
    /// Its best IPv6 default route.
    pub route_v6: Option<DefaultRoute>,
    /// Whether its bytes cost money, if anybody said so.
    pub metered: Option<MeteredStatus>,
    /// The largest packet that it sends, in bytes.
    #[serde(skip)]
    pub mtu: u32,
    /// Whether it is an emulated link of the lab. The system's services know nothing of it, even where they know
    /// another interface of this name or number.
    pub emulated: bool,
    /// Whether it is used when the user names no link.
    #[serde(flatten)]
    pub usability: Usability,
}

impl Interface {
    /// Whether an IPv4 server can be asked over it. Without any default route its own subnet still counts.
    pub fn has_v4(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv4) && (self.route_v4.is_some() || self.route_v6.is_none())
    }

    /// Whether an IPv6 server can be asked over it. Without any default route its own subnet still counts.
    pub fn has_v6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6) && (self.route_v6.is_some() || self.route_v4.is_none())
    }

    /// Whether it has an IPv6 address that the whole Internet can answer, not only one of RFC 4193.
    pub fn has_public_v6(&self) -> bool {
        self.has_v6() && self.addresses.iter().any(|a| matches!(a, IpAddr::V6(a) if !is_unique_local(*a)))
    }

    /// Whether the address is on one of the interface's own subnets.
    pub fn is_on_subnet(&self, address: IpAddr) -> bool {
        self.subnets.iter().any(|subnet| subnet.contains(address))
    }

    /// Whether it is used when the user names no link.
    pub fn is_usable(&self) -> bool {
        self.usability == Usability::Usable
    }
}

/// `fc00::/7` (RFC 4193).
fn is_unique_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xfe00 == 0xfc00
}

/// An address and the subnet around it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Subnet {
    /// The interface's own address.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub prefix_len: u8,
}

impl Subnet {
    /// Whether the other address has the same prefix.
    pub fn contains(&self, address: IpAddr) -> bool {
        let prefix = u32::from(self.prefix_len);
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= prefix.min(32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= prefix.min(128),
            _ => false,
        }
    }
}

/// A default route over an interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct DefaultRoute {
    /// The kernel prefers the lowest.
    pub metric: u32,
    /// The routing table that holds it; 254 is the main one.
    pub table: u32,
    /// The router; none on a line with only two ends.
    pub gateway: Option<IpAddr>,
}

/// Whether each byte costs money, and who says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MeteredStatus {
    /// The answer.
    pub metered: bool,
    /// Whose answer.
    pub source: MeteredSource,
}

/// Who says whether a link is metered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MeteredSource {
    /// An option or the configuration file.
    User,
    /// NetworkManager's connection profile.
    NetworkManager,
    /// NetworkManager guesses, from the kind of the device or from what the DHCP server said.
    NetworkManagerGuess,
}

impl fmt::Display for MeteredSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "said by the user",
            Self::NetworkManager => "said by NetworkManager",
            Self::NetworkManagerGuess => "guessed by NetworkManager",
        })
    }
}

/// Whether an interface is used when the user names no link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "verdict", content = "reason", rename_all = "snake_case")]
pub enum Usability {
    /// It is.
    Usable,
    /// It is not, for this reason.
    Unused(UnusedReason),
}

/// Why an interface is not used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnusedReason {
    /// It leads back to this machine.
    Loopback,
    /// It is switched off.
    Down,
    /// It is a port of this bridge or bond, which carries the addresses.
    PortOf(String),
    /// No cable, no access point, no modem session.
    NoCarrier,
    /// It has no address that reaches beyond the link.
    NoAddress,
    /// It leads to its own subnet only.
    NoDefaultRoute,
    /// It joins containers or virtual machines to this one.
    Bridge,
    /// It joins a container to this machine, and leads no further.
    Container,
    /// A tunnel that is not the machine's way to the Internet.
    Tunnel,
    /// It translates IPv4 for the links with IPv6 (464XLAT), which are used by themselves.
    Clat,
    /// The machine's way to the Internet is this VPN, so the links below it are left alone.
    BelowVpn(String),
}

impl UnusedReason {
    /// Whether it could carry something if the user insisted.
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
            Self::Loopback => f.write_str("it leads back to this machine"),
            Self::Down => f.write_str("it is down"),
            Self::PortOf(controller) => write!(f, "it is a port of {controller}"),
            Self::NoCarrier => f.write_str("it has no carrier (no cable, access point or modem session)"),
            Self::NoAddress => f.write_str("it has no address beyond its link"),
            Self::NoDefaultRoute => f.write_str("it has no default route"),
            Self::Bridge => f.write_str("it is a bridge to containers or virtual machines"),
            Self::Container => f.write_str("it joins a container to this machine, and has no default route"),
            Self::Clat => {
                f.write_str("it translates IPv4 for the links with IPv6 (464XLAT), which are used by themselves")
            }
            Self::Tunnel => f.write_str("it is a tunnel, and not this machine's way to the Internet"),
            Self::BelowVpn(tunnel) => {
                write!(
                    f,
                    "the VPN {tunnel} is this machine's way to the Internet (--bypass-vpn to use it all the same)"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str, prefix: u8) -> Subnet {
        Subnet { address: text.parse().unwrap(), prefix_len: prefix }
    }

    #[test]
    fn a_network_ends_where_its_prefix_says() {
        let lan = network("192.168.1.20", 24);
        assert!(lan.contains("192.168.1.1".parse().unwrap()));
        assert!(!lan.contains("192.168.2.1".parse().unwrap()));
        assert!(!lan.contains("::1".parse().unwrap()));
        assert!(network("10.0.0.1", 0).contains("203.0.113.9".parse().unwrap()));
        assert!(!network("10.0.0.1", 32).contains("10.0.0.2".parse().unwrap()));
        assert!(network("2001:db8::1", 64).contains("2001:db8::ffff".parse().unwrap()));
        assert!(!network("2001:db8::1", 128).contains("2001:db8::".parse().unwrap()));
        assert!(network("2001:db8::1", 255).contains("2001:db8::1".parse().unwrap()), "nonsense does not panic");
    }

    #[test]
    fn an_unused_interface_says_why_in_json_too() {
        let interface = Interface {
            name: "docker0".into(),
            index: 7,
            kind: LinkKind::Other,
            addresses: vec!["172.17.0.1".parse().unwrap()],
            transient_addresses: Vec::new(),
            subnets: vec![network("172.17.0.1", 16)],
            route_v4: None,
            route_v6: None,
            metered: Some(MeteredStatus { metered: true, source: MeteredSource::NetworkManagerGuess }),
            mtu: 1500,
            emulated: false,
            usability: Usability::Unused(UnusedReason::Bridge),
        };
        assert_eq!(
            serde_json::to_string(&interface).unwrap(),
            r#"{"name":"docker0","index":7,"kind":"other","addresses":["172.17.0.1"],"route_v4":null,"route_v6":null,"metered":{"metered":true,"source":"network_manager_guess"},"emulated":false,"verdict":"unused","reason":"bridge"}"#
        );
        assert_eq!(interface.usability.to_string(), "not used: it is a bridge to containers or virtual machines");
    }
}
