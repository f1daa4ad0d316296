//! Access rules: which targets edges may reach through a relay, by host name, port and resolved address.
//!
//! 1. Host and port are checked first, addresses after name resolution. The relay connects to exactly the address that was checked, so
//!    that a name cannot change in between.
//! 2. Only addresses of the public Internet are allowed (RFC 6890 and IANA's registries of special-purpose addresses), unless the
//!    configuration allows a network: all other addresses belong to the relay's local network or to a cloud's metadata service.
//! 3. An IPv6 address that embeds an IPv4 address (mapped, NAT64, 6to4, Teredo) counts as both, and both must be allowed.
//! 4. The relay's own addresses, including loopback, are refused even if public, because services of the relay itself listen
//!    there. A network in the configuration does not allow them; only the single address does, or a network within 127.0.0.0/8.
//! 5. Without a list of host names all names are allowed. A list contains whole names, or `*.` before a domain.
//! 6. The text of a refusal does not contain the address, because it may belong to the relay's private network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

pub use marline_net::egress::IpPrefix;
use marline_net::egress::embedded_v4;

/// The access rules of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// Ports that edges may request.
    pub ports: Vec<PortRange>,
    /// Host names that edges may request; empty: all. With a list, targets given as addresses are refused, because they have no name.
    pub hosts: Vec<HostPattern>,
    /// Networks that are allowed although they are not public.
    pub networks: Vec<IpPrefix>,
}

impl Default for Acl {
    fn default() -> Self {
        Self { ports: DEFAULT_PORTS.map(PortRange::single).to_vec(), hosts: Vec::new(), networks: Vec::new() }
    }
}

/// Our choice: the ports of live video services: RTMP; RTMPS and HLS or WHIP over HTTPS; HTTP.
const DEFAULT_PORTS: [u16; 3] = [1935, 443, 80];

/// Why a target is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The port is not allowed.
    #[error("port {0} is not allowed here")]
    Port(u16),
    /// The host name is not allowed.
    #[error("this host is not allowed here")]
    Host,
    /// The address is not public.
    #[error("its address is not allowed here")]
    Address(IpAddr),
    /// The address belongs to the relay.
    #[error("its address is not allowed here")]
    OwnAddress(IpAddr),
}

impl Acl {
    /// Whether an edge may request `host` (a lower-case name without a final dot, or an address) and `port`.
    ///
    /// # Errors
    /// The rule that refuses the target.
    pub fn check_target(&self, host: &str, port: u16) -> Result<(), Refusal> {
        if !self.ports.iter().any(|ports| ports.0.contains(&port)) {
            return Err(Refusal::Port(port));
        }
        let is_listed = self.hosts.is_empty() || self.hosts.iter().any(|allowed| allowed.matches(host));
        if is_listed { Ok(()) } else { Err(Refusal::Host) }
    }

    /// Whether the relay may connect to `address`. `is_own` states which addresses belong to the relay.
    ///
    /// # Errors
    /// The rule that refuses the address.
    pub fn check_address(&self, address: IpAddr, is_own: impl Fn(IpAddr) -> bool) -> Result<(), Refusal> {
        let address = address.to_canonical();
        let embedded = embedded_v4(address).into_iter().map(IpAddr::V4);
        std::iter::once(address).chain(embedded).try_for_each(|address| self.check_one(address, &is_own))
    }

    /// Checks one address without regard to an address embedded in it.
    fn check_one(&self, address: IpAddr, is_own: impl Fn(IpAddr) -> bool) -> Result<(), Refusal> {
        let mut exceptions = self.networks.iter().filter(|network| network.contains(address));
        if (is_local(address) || is_own(address)) && !exceptions.clone().any(|network| network.is_single_host()) {
            return Err(Refusal::OwnAddress(address));
        }
        let is_public_address = match address {
            IpAddr::V4(address) => is_public(address),
            IpAddr::V6(address) => is_public_v6(address),
        };
        if is_public_address || exceptions.next().is_some() { Ok(()) } else { Err(Refusal::Address(address)) }
    }
}

/// Addresses that lead to this host whatever its interfaces are.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified()
}

fn is_public(address: Ipv4Addr) -> bool {
    !SPECIAL_PURPOSE
        .iter()
        .any(|(network, bits)| IpPrefix::new(IpAddr::V4(*network), *bits).contains(address.into()))
}

/// IANA IPv4 Special-Purpose Address Registry, multicast (RFC 5771) and reserved addresses (RFC 1112 §4). Then the address at which
/// virtual machines of Azure reach their host, which is in a public range.
const SPECIAL_PURPOSE: [(Ipv4Addr, u8); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
    (Ipv4Addr::new(168, 63, 129, 16), 32),
];

/// Global unicast (RFC 4291 §2.4, today 2000::/3) without the blocks that IANA has set apart. An address of 6to4 or of the well-known
/// prefix of NAT64 (RFC 6052 §2.1) is as public as the IPv4 address embedded in it.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, ..] = address.segments();
    match (a, b) {
        (0x64, 0xff9b) => [c, d, e, f] == [0; 4],
        // Teredo, benchmarking, ORCHID and other protocol assignments; the documentation prefixes, old and new.
        (0x2001, ..0x200) | (0x2001, 0xdb8) | (0x3fff, ..0x1000) => false,
        (0x2000..=0x3fff, _) => true,
        _ => false,
    }
}

/// One port or a range, `1935` or `8000-8999`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRange(RangeInclusive<u16>);

impl PortRange {
    /// A range of a single port.
    pub fn single(port: u16) -> Self {
        Self(port..=port)
    }
}

impl FromStr for PortRange {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self(first..=last)),
            _ => Err(format!("`{text}` is not a port such as 1935 or a range such as 8000-8999")),
        }
    }
}

/// A host name, or with a leading `*.` all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    name: String,
    is_wildcard: bool,
}

impl HostPattern {
    fn matches(&self, host: &str) -> bool {
        match host.strip_suffix(self.name.as_str()) {
            Some("") => !self.is_wildcard,
            Some(remaining) => self.is_wildcard && remaining.ends_with('.'),
            None => false,
        }
    }
}

impl FromStr for HostPattern {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (below, name) = text.strip_prefix("*.").map_or((false, text), |remaining| (true, remaining));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(format!("`{text}` is not a host name such as live.example.org or *.example.org"));
        }
        Ok(Self { name: name.trim_end_matches('.').to_ascii_lowercase(), is_wildcard: below })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_default(address: &str) -> Result<(), Refusal> {
        Acl::default().check_address(address.parse().unwrap(), |_| false)
    }

    #[test]
    fn public_addresses_are_allowed() {
        for address in [
            "1.1.1.1",
            "93.184.216.34",
            "172.32.0.1",
            "100.128.0.1",
            "2606:2800:220:1::1",
            "2001:200::1",
            "2002:101:101::1",
            "64:ff9b::101:101",
            "::ffff:1.1.1.1",
        ] {
            assert_eq!(check_default(address), Ok(()), "{address}");
        }
    }

    #[test]
    fn local_addresses_and_metadata_services_are_refused() {
        for address in [
            "127.0.0.1",
            "127.255.0.9",
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "239.1.1.1",
            "255.255.255.255",
            "168.63.129.16",
            "192.0.2.1",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "2001:10::1",
            "3fff::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1.1.1.1",
            "4000::1",
        ] {
            assert!(check_default(address).is_err(), "{address}");
        }
    }

    #[test]
    fn an_allowed_network_permits_neither_embedded_addresses_nor_the_relay_itself() {
        let own_addresses =
            ["1.2.3.4", "2606:4700::1", "10.7.0.1"].map(|address| address.parse::<IpAddr>().unwrap());
        let rules = |networks: &[&str]| Acl {
            networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
            ..Acl::default()
        };
        let is_allowed = |networks: &[&str], address: &str| {
            rules(networks)
                .check_address(address.parse().unwrap(), |address| own_addresses.contains(&address))
                .is_ok()
        };
        let all = ["0.0.0.0/0", "::/0"];
        for address in [
            "1.2.3.4",
            "10.7.0.1",
            "2606:4700::1",
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "::",
            "::1",
            "::ffff:1.2.3.4",
            "::1.2.3.4",
            "::ffff:0:1.2.3.4",
            "64:ff9b::1.2.3.4",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1.2.3.4",
            "64:ff9b:1:102:3:400::",
            "64:ff9b:1:ab01:2:304::",
            "64:ff9b:1:abcd:1:203:400:0",
            "2002:102:304::1",
            "2002:7f00:1::1",
            // Teredo contains the client's address inverted and the server's address unchanged.
            "2001:0:909:909::fefd:fcfb",
            "2001:0:102:304::f6f6:f6f6",
        ] {
            assert!(!is_allowed(&all, address), "{address}");
        }
        // An allowed network does not permit embedded addresses outside the allowed networks.
        let local = ["64:ff9b:1::/48", "64:ff9b::/96", "2002::/16", "2001::/32"];
        for address in ["64:ff9b:1::10.1.1.1", "64:ff9b:1:a01:1:100::", "64:ff9b::a9fe:a9fe", "2002:a00:1::1"] {
            assert!(!is_allowed(&local, address) && is_allowed(&all, address), "{address}");
        }
        for address in ["64:ff9b:1::9.9.9.9", "64:ff9b:1:909:9:900::", "64:ff9b:1:ab09:9:909::", "2002:909:909::1"]
        {
            assert!(is_allowed(&local, address), "{address}");
        }
        assert!(is_allowed(&["10.0.0.0/8"], "10.7.0.2") && !is_allowed(&["10.0.0.0/8"], "10.7.0.1"));
        assert!(is_allowed(&["10.7.0.1"], "10.7.0.1") && is_allowed(&["127.0.0.0/24"], "127.0.0.9"));
        assert!(is_allowed(&["1.2.3.4/32"], "64:ff9b::1.2.3.4") && is_allowed(&["::1"], "::1"));
    }

    #[test]
    fn a_refusal_does_not_reveal_the_address() {
        for why in [Refusal::Address("10.1.2.3".parse().unwrap()), Refusal::OwnAddress("10.1.2.3".parse().unwrap())]
        {
            assert_eq!(why.to_string(), "its address is not allowed here");
        }
    }

    #[test]
    fn a_configured_network_is_allowed_and_the_relay_itself_is_not() {
        let is_own = |address: IpAddr| address == "1.2.3.4".parse::<IpAddr>().unwrap();
        let rules =
            Acl { networks: vec!["10.7.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()], ..Acl::default() };
        for (address, good) in [
            ("10.7.1.1", true),
            ("10.8.0.1", false),
            ("fdff::1", true),
            ("fc00::1", false),
            ("::ffff:10.7.1.1", true),
        ] {
            assert_eq!(rules.check_address(address.parse().unwrap(), is_own).is_ok(), good, "{address}");
        }
        assert_eq!(
            rules.check_address("1.2.3.4".parse().unwrap(), is_own),
            Err(Refusal::OwnAddress("1.2.3.4".parse().unwrap()))
        );
        assert!(rules.check_address("::ffff:1.2.3.4".parse().unwrap(), is_own).is_err());
    }

    #[test]
    fn ports_and_names_are_checked_first() {
        let rules = Acl {
            ports: vec!["1935".parse().unwrap(), "8000-8002".parse().unwrap()],
            hosts: vec!["live.example.org".parse().unwrap(), "*.twitch.tv".parse().unwrap()],
            ..Acl::default()
        };
        assert_eq!(rules.check_target("live.example.org", 1935), Ok(()));
        assert_eq!(rules.check_target("a.b.twitch.tv", 8001), Ok(()));
        assert_eq!(rules.check_target("live.example.org", 22), Err(Refusal::Port(22)));
        for host in [
            "example.org",
            "alive.example.org",
            "twitch.tv",
            "eviltwitch.tv",
            "1.1.1.1",
            "live.example.org.evil.net",
        ] {
            assert_eq!(rules.check_target(host, 1935), Err(Refusal::Host), "{host}");
        }
        for text in ["0", "9-8", "x", "70000", "1-", ""] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
        for text in ["10.0.0.0/33", "::/129", "10.0.0", "a/8", "10.0.0.0/"] {
            assert!(text.parse::<IpPrefix>().is_err(), "{text}");
        }
        assert!("0.0.0.0/0".parse::<IpPrefix>().unwrap().contains("9.9.9.9".parse().unwrap()));
    }
}
