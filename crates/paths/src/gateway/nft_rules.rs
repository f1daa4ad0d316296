//! The rules that lead a LAN's TCP to an edge and let the rest pass: one table of nftables, which ends with its holder.
//!
//! In: the LAN's interfaces, where the edge listens, and what the host passes on only because of it. Out: the table as nft reads it.
//!
//! 1. Led to the edge is TCP that comes in over the LAN and goes beyond it: not to this host's own addresses (its names, its
//!    leases, its shell), not to many (broadcast, multicast), not to link-local ones, not to another part of the LAN, not to private
//!    networks that this host has routes to ([`private_networks`]).
//! 2. IPv6 goes there only while this host has an IPv6 route to the destination. Without one a SYN is answered with a reset, and a client
//!    that has IPv4 as well takes that at once (RFC 8305). IPv4 always goes there: a relay brings it over links of IPv6 alone.
//!    Replies to connections that others have begun towards the LAN go back where those came from. After connection tracking has been
//!    flushed, the edge's own packets to the LAN can begin an entry: such an entry gets a mark (`ct mark`), so that the LAN's packets of it
//!    still go to the edge.
//! 3. All packets of such a connection are led, not only its first: after a restart the kernel answers those of older ones with
//!    a reset, and their programs begin anew.
//! 4. The rest passes as through any router, and gets the address of the link that it leaves by. Where the host passes packets
//!    on only because of this, it passes nothing else but what comes back: nobody reaches the LAN, or another link, through it.
//!    Where it was a router before, that is its firewall's matter.
//! 5. TCP that is forwarded gets a maximum segment size (MSS) that fits the MTUs of the routes in both directions, so that it does not depend on
//!    ICMP messages about packets that are too large (RFC 4821 section 2).

use super::private_networks;
use crate::transparent::policy_route::LAN_TRAFFIC;

/// The table's name.
pub(super) const TABLE: &str = "marline-edge";

/// The interfaces of a LAN: at least one, each with a name that nft can be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lan(pub(super) Vec<String>);

impl Lan {
    /// As nft reads sets.
    pub(super) fn to_nft_set(&self) -> String {
        let names: Vec<String> = self.0.iter().map(|name| format!("\"{name}\"")).collect();
        format!("{{ {} }}", names.join(", "))
    }
}

impl Lan {
    /// Of these interfaces.
    ///
    /// # Errors
    /// One line that says which is no name of an interface.
    pub fn new(names: Vec<String>) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        for name in &names {
            // `IFNAMSIZ`, and dev_valid_name of the kernel; quotation marks and stars would be nft's.
            let is_valid_name =
                (1..=15).contains(&name.len()) && name.bytes().all(is_plain) && name != "." && name != "..";
            if !is_valid_name {
                return Err(format!("`{name}` is no name of an interface, such as br-lan or wlan1"));
            }
        }
        if names.is_empty() { Err("it names no interface".to_owned()) } else { Ok(Self(names)) }
    }
}

/// No table at all: only its owner may say so, where there is one.
pub(super) fn delete_table() -> String {
    format!("add table inet {TABLE}; delete table inet {TABLE}\n")
}

/// The table: it commits when a line ends.
pub(super) fn table_text(lan: &Lan, port: u16, enabled_here: (bool, bool)) -> String {
    let lan = lan.to_nft_set();
    let edge_mark = LAN_TRAFFIC.mark;
    let mut prerouting_rules = vec![
        // Before the table that outlives this one (`standing_firewall`), and before the forwarder of `marline paths --transparent`, which takes only
        // what comes over the loopback.
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

/// The condition that a packet is a reply in a connection that was begun from beyond the LAN.
pub(super) fn inbound_reply_match() -> String {
    format!("ct direction reply ct mark != {:#x}", LAN_TRAFFIC.mark)
}

/// Rules after which a chain at `prerouting` has only TCP that came in over the LAN and goes beyond it.
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
    fn what_stays_is_sorted_out_before_anything_is_led_away() {
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
    fn a_name_that_nft_would_take_for_something_else_is_refused() {
        for names in [&["a\""][..], &["a*"], &["a b"], &[""], &["sixteen-letters-"], &[".."], &["a/b"], &[]] {
            assert!(lan(names).is_err(), "{names:?}");
        }
        assert!(lan(&["eth0.7", "wlan0-1", "br-lan@x"]).is_ok());
    }
}
