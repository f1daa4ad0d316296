//! Private networks that a LAN's TCP reaches by routing: web pages of modems behind the links, offices behind static
//! routes of the host.
//!
//! TCP to them is forwarded like UDP, by the same routes, with the same masquerade, and through the host's own rules
//! for forwarded packets (its FORWARD chain). The condition is that the kernel has a more specific route than a
//! default route for the address. The gateway's table checks that with `fib`, under a mark for which two rules apply:
//!
//! ```text
//!  20002  fwmark 0x6d63: main, without its default routes
//!  20003  fwmark 0x6d63: table 28002, which delivers locally     `fib` finds no output interface
//! ```
//!
//! 1. The kernel decides for each new connection. A set of prefixes in the table would have to follow the routes and
//!    would be wrong for some time after each change. It would also ignore rules of other programs before 20002,
//!    which UDP follows.
//! 2. The packet carries the mark only during the `fib` lookup. A packet that another program has marked is not
//!    looked up; it goes to the edge.
//! 3. A connection of the edge stays there when a route appears, because it is established and has no masquerade. A
//!    forwarded connection is forwarded as long as the route exists. When the route disappears, packets of its client
//!    go to the edge, where the kernel replies with a reset.
//! 4. Addresses of cloud metadata services are never forwarded. They go to the edge, which refuses them.
//! 5. After a crash, the table that outlives the process (`standing_firewall`) performs the same lookup, so the rules
//!    must exist as long as it does. Before they are removed, that table is removed or replaced by one that drops TCP
//!    to all private networks.

use std::io;

use marline_core::wire::netlink::{Route, SourceRule, TproxyRoute, family, messages};
use marline_net::egress::AddressZone;
use marline_net::links::RTPROT_MARLINE;
use marline_sys::netlink::RouteSocket;

use super::route_requests::LAN_RULE_PRIORITY;
use crate::transparent::nft_rules::IpFamilies;
use crate::transparent::policy_route::LAN_TRAFFIC;

/// Mark of a packet during the `fib` lookup.
const FIB_MARK: u32 = LAN_TRAFFIC.mark + 1;
/// Chain of the gateway's table for private destinations.
pub(super) const PRIVATE_CHAIN: &str = "private";

/// The policy routing rules for these families.
pub(super) fn required_rules(families: IpFamilies) -> Vec<TproxyRoute> {
    // Shorter prefixes are default routes or parts of one, as in `non_tcp_route`.
    let versions = [(families.ipv4, family::V4, 1), (families.ipv6, family::V6, 3)];
    let rules_for = |(_, family, suppressed_prefix_len)| {
        let rule = |table, priority, suppress_prefixlength| TproxyRoute {
            family,
            mark: FIB_MARK,
            table,
            priority,
            suppress_prefixlength,
            protocol: RTPROT_MARLINE,
        };
        [
            rule(Route::MAIN, LAN_RULE_PRIORITY, Some(suppressed_prefix_len)),
            rule(LAN_TRAFFIC.mark, LAN_RULE_PRIORITY + 1, None),
        ]
    };
    versions.into_iter().filter(|(is_enabled, ..)| *is_enabled).flat_map(rules_for).collect()
}

/// The installed rules, including those of an earlier run.
///
/// # Errors
/// The kernel's rules cannot be read.
pub(super) fn installed_rules(socket: &RouteSocket) -> io::Result<Vec<TproxyRoute>> {
    let rules = socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
    let rules = messages(&rules).filter_map(|message| TproxyRoute::parse(&message));
    Ok(rules.filter(|rule| (rule.protocol, rule.mark) == (RTPROT_MARLINE, FIB_MARK)).collect())
}

/// The jumps to the chain, in the syntax of nft.
pub(super) fn jump_rules() -> [String; 2] {
    let [v4, v6] = zone_set(AddressZone::Private);
    [format!("ip daddr {v4} jump {PRIVATE_CHAIN}"), format!("ip6 daddr {v6} jump {PRIVATE_CHAIN}")]
}

/// The rules of the chain, in the syntax of nft. Packets that they accept are forwarded, unless other tables drop
/// them.
pub(super) fn chain_rules() -> Vec<String> {
    let [v4, v6] = zone_set(AddressZone::Metadata);
    vec![
        format!("ip daddr {v4} return"),
        format!("ip6 daddr {v6} return"),
        "ct state established ct status & snat == 0 return".to_owned(),
        "meta mark != 0 return".to_owned(),
        format!("meta mark set {FIB_MARK:#x}"),
        "fib daddr . mark oif exists meta mark set 0 accept".to_owned(),
        "meta mark set 0".to_owned(),
    ]
}

/// Rules for a table without TPROXY, for TCP that came in from the LAN: drops packets for which only a default route
/// exists.
///
/// TPROXY has marked packets for the edge. Packets with any other mark would have gone to the edge as well, so they
/// are dropped.
pub(super) fn unrouted_rules() -> Vec<String> {
    vec![
        format!("meta mark {:#x} return", LAN_TRAFFIC.mark),
        "meta mark != 0 drop".to_owned(),
        format!("meta mark set {FIB_MARK:#x}"),
        "fib daddr . mark oif missing drop".to_owned(),
        "meta mark set 0".to_owned(),
    ]
}

/// Matches for TCP to all addresses except those that may be forwarded, one for each of several rules.
pub(super) fn excluded_matches() -> [String; 4] {
    let ([v4, v6], [metadata_v4, metadata_v6]) = (zone_set(AddressZone::Private), zone_set(AddressZone::Metadata));
    [
        format!("ip daddr != {v4}"),
        format!("ip6 daddr != {v6}"),
        format!("ip daddr {metadata_v4}"),
        format!("ip6 daddr {metadata_v6}"),
    ]
}

/// The networks of a zone in nft's set syntax: IPv4 and IPv6.
fn zone_set(zone: AddressZone) -> [String; 2] {
    [true, false].map(|is_ipv4| {
        let networks = zone.prefixes().filter(|network| network.is_ipv4() == is_ipv4);
        let cidrs: Vec<String> = networks.map(|network| network.to_string()).collect();
        format!("{{ {} }}", cidrs.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_exclude_cloud_metadata() {
        let [v4, v6] = jump_rules();
        assert_eq!(v4, "ip daddr { 10.0.0.0/8, 100.64.0.0/10, 172.16.0.0/12, 192.168.0.0/16 } jump private");
        assert_eq!(v6, "ip6 daddr { fc00::/7, fec0::/10 } jump private");
        let rules = chain_rules();
        assert!(rules[0].contains("100.100.100.200") && rules[0].ends_with("return"), "{rules:?}");
        assert!(rules[1].contains("fd00:ec2::/32") && rules[1].ends_with("return"), "{rules:?}");
    }
}
