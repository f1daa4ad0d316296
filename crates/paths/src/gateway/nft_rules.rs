//! The gateway's nftables table: redirects a LAN's TCP to an edge and forwards the rest. It disappears with its
//! owner.
//!
//! 1. TCP that comes in from the LAN and goes beyond it is redirected to the edge. Exceptions are this host's own
//!    addresses (its DNS, DHCP, SSH), broadcast, multicast and link-local addresses, other parts of the LAN, and
//!    private networks to which this host has routes ([`private_networks`]).
//! 2. IPv6 is redirected only while this host has an IPv6 route to the destination. Otherwise a SYN is answered with
//!    a reset, after which a dual-stack client uses IPv4 at once (RFC 8305). IPv4 is always redirected: a relay
//!    carries it over IPv6-only links. Replies to connections that were opened from outside towards the LAN are
//!    routed back. After connection tracking was flushed, packets of the edge to the LAN can create an entry. Such an
//!    entry gets a mark (`ct mark`), so that the LAN's packets still go to the edge.
//! 3. All packets of a connection are redirected, not only the first. After a restart the kernel thus answers packets
//!    of older connections with a reset, and their programs reconnect.
//! 4. Other packets are forwarded as by any router and masqueraded with the address of the outgoing link. If the host
//!    forwards only because of the gateway, only traffic of the LAN and replies to it pass, so that neither the LAN
//!    nor another link can be reached through this host. If it was a router before, its own firewall decides.
//! 5. The maximum segment size (MSS) of forwarded TCP is clamped to the MTUs of the routes in both directions, so
//!    that it does not depend on ICMP messages about large packets (RFC 4821 section 2).

use super::private_networks;
use crate::transparent::policy_route::LAN_TRAFFIC;

pub(super) const TABLE: &str = "marline-edge";

/// The interfaces of a LAN: at least one, each with a name that is safe in nft syntax.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lan(pub(super) Vec<String>);

impl Lan {
    /// The names in nft's set syntax.
    pub(super) fn to_nft_set(&self) -> String {
        let names: Vec<String> = self.0.iter().map(|name| format!("\"{name}\"")).collect();
        format!("{{ {} }}", names.join(", "))
    }
}

impl Lan {
    /// Checks the names.
    ///
    /// # Errors
    /// One line that names an invalid interface.
    pub fn new(names: Vec<String>) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        for name in &names {
            // `IFNAMSIZ`, and dev_valid_name of the kernel; quotation marks and stars would be nft's.
            let is_valid_name =
                (1..=15).contains(&name.len()) && name.bytes().all(is_plain) && name != "." && name != "..";
            if !is_valid_name {
                return Err(format!("`{name}` is not a valid interface name (examples: br-lan, wlan1)"));
            }
        }
        if names.is_empty() { Err("no interface is given".to_owned()) } else { Ok(Self(names)) }
    }
}

/// Deletes the table. Only the owner may do so while the table has one.
pub(super) fn delete_table() -> String {
    format!("add table inet {TABLE}; delete table inet {TABLE}\n")
}

/// The table, in one line: nft commits at the end of a line.
pub(super) fn table_text(lan: &Lan, port: u16, enabled_here: (bool, bool)) -> String {
    let lan = lan.to_nft_set();
    let edge_mark = LAN_TRAFFIC.mark;
    let mut prerouting_rules = vec![
        // Before the standing firewall (`standing_firewall`), and before the forwarder of `marline paths
        // --transparent`, which takes only packets from the loopback.
        "type filter hook prerouting priority -152; policy accept".to_owned(),
    ];
    prerouting_rules.extend(lan_tcp_rules(&lan));
    prerouting_rules.extend(private_networks::jump_rules());
    prerouting_rules.extend([
        "meta nfproto ipv6 fib daddr oif missing reject with tcp reset".to_owned(),
        format!(
            "meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:{port} meta mark set {edge_mark:#x} accept"
        ),
        format!(
            "meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [::1]:{port} meta mark set {edge_mark:#x} accept"
        ),
    ]);
    let mut forward_rules = vec![
        "type filter hook forward priority 0; policy accept".to_owned(),
        format!("iifname {lan} tcp flags syn tcp option maxseg size set rt mtu"),
        format!("oifname {lan} tcp flags syn tcp option maxseg size set rt mtu"),
        format!("iifname {lan} accept"),
        format!("oifname {lan} ct state established,related accept"),
    ];
    for (is_enabled_here, family) in [(enabled_here.0, "ipv4"), (enabled_here.1, "ipv6")] {
        if is_enabled_here {
            forward_rules.push(format!("meta nfproto {family} drop"));
        }
    }
    let postrouting_rules = [
        "type nat hook postrouting priority 100; policy accept".to_owned(),
        format!("iifname {lan} oifname != {lan} masquerade"),
    ];
    let output_rules = [
        "type filter hook output priority 0; policy accept".to_owned(),
        format!(
            "oifname {lan} meta l4proto tcp ct direction original fib saddr type != local ct mark set {edge_mark:#x}"
        ),
    ];
    let delete = delete_table();
    let chain = |name: &str, rules: &[String]| format!("chain {name} {{ {}; }}; ", rules.join("; "));
    let chains = [
        chain(private_networks::PRIVATE_CHAIN, &private_networks::chain_rules()),
        chain("arriving", &prerouting_rules),
        chain("answering", &output_rules),
        chain("passing", &forward_rules),
        chain("leaving", &postrouting_rules),
    ];
    let chains = chains.concat();
    format!("{delete}table inet {TABLE} {{ flags owner; {chains}}}\n")
}

/// Matches replies in a connection that was opened from outside the LAN.
pub(super) fn inbound_reply_match() -> String {
    format!("ct direction reply ct mark != {:#x}", LAN_TRAFFIC.mark)
}

/// Rules of a `prerouting` chain that return all packets except TCP from the LAN to destinations beyond it.
pub(super) fn lan_tcp_rules(lan: &str) -> [String; 6] {
    [
        format!("iifname != {lan} return"),
        "meta l4proto != tcp return".to_owned(),
        format!("{} return", inbound_reply_match()),
        "fib daddr type { local, broadcast, multicast, anycast } return".to_owned(),
        "ip6 daddr fe80::/10 return".to_owned(),
        format!("fib daddr oifname {lan} return"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lan(names: &[&str]) -> Result<Lan, String> {
        Lan::new(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn exceptions_precede_the_redirection() {
        let text = table_text(&lan(&["br-lan", "wlan1"]).unwrap(), 7000, (true, false));
        let order = [
            "iifname != { \"br-lan\", \"wlan1\" } return",
            "l4proto != tcp return",
            "ct direction reply ct mark != 0x6d62 return",
            "daddr type { local, broadcast, multicast, anycast } return",
            "fe80::/10 return",
            "daddr oifname { \"br-lan\", \"wlan1\" } return",
            "172.16.0.0/12, 192.168.0.0/16 } jump private",
            "nfproto ipv6 fib daddr oif missing reject with tcp reset",
            "tproxy ip to 127.0.0.1:7000 meta mark set 0x6d62 accept",
            "tproxy ip6 to [::1]:7000 meta mark set 0x6d62 accept",
            "masquerade",
        ];
        let mut offset = 0;
        for rule in order {
            offset += text[offset..].find(rule).unwrap_or_else(|| panic!("{rule} is not in its place: {text}"));
        }
        assert!(text.contains("nfproto ipv4 drop") && !text.contains("nfproto ipv6 drop"), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("flags owner"));
    }

    #[test]
    fn names_with_nft_syntax_are_refused() {
        for names in [&["a\""][..], &["a*"], &["a b"], &[""], &["sixteen-letters-"], &[".."], &["a/b"], &[]] {
            assert!(lan(names).is_err(), "{names:?}");
        }
        assert!(lan(&["eth0.7", "wlan0-1", "br-lan@x"]).is_ok());
    }
}
