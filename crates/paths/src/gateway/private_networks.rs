//! Private networks that a LAN's TCP reaches by routing: modems' pages behind the links, offices behind static routes of the host.
//!
//! TCP to them is forwarded as UDP is, by the same routes, with the same masquerade, and through the host's own rules for forwarded packets
//! (its FORWARD chain). The condition is that the kernel has more than a default route for the address. The gateway's table asks for that
//! with `fib`, under a mark for which two rules count:
//!
//! ```text
//!  20002  fwmark 0x6d63: main, without its default routes
//!  20003  fwmark 0x6d63: table 28002, which delivers here        `fib` finds no interface to leave by
//! ```
//!
//! 1. The kernel answers for each new connection. A set of prefixes in the table would have to follow the routes, and would be wrong for
//!    some time after each change. It would also lack what other programs' rules before 20002 lead elsewhere, which UDP follows.
//! 2. The packet bears the mark only while `fib` runs. A packet that another program has marked is not asked for; it goes to the edge.
//! 3. A connection of the edge stays there when a route comes: it is established, and has no masquerade. A forwarded one is forwarded as
//!    long as there is a route. When that goes, what its client sends goes to the edge, where the kernel answers with a reset.
//! 4. An address of a cloud's metadata service is never forwarded. It goes to the edge, which refuses it.
//! 5. After a crash, the table that outlives the process (`standing_firewall`) asks in the same way, so the rules have to be there as long as it is. Before
//!    they are removed, it is replaced by one that drops TCP to all private networks, or is removed.

use std::io;

use marline_core::wire::netlink::{Route, SourceRule, TproxyRoute, family, messages};
use marline_net::egress::AddressZone;
use marline_net::links::RTPROT_MARLINE;
use marline_sys::netlink::RouteSocket;

use super::non_tcp_route::RULE_PRIORITY;
use crate::transparent::nft_rules::IpFamilies;
use crate::transparent::policy_route::LAN_TRAFFIC;

/// The mark under which the kernel is asked.
const FIB_MARK: u32 = LAN_TRAFFIC.mark + 1;
/// The chain of the gateway's table that is jumped to for private addresses.
pub(super) const PRIVATE_CHAIN: &str = "private";

/// The rules of the routing policy for these families.
pub(super) fn required_rules(families: IpFamilies) -> Vec<TproxyRoute> {
    // Prefixes so short are default routes or parts of one, as `non_tcp_route` takes them.
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
            rule(Route::MAIN, RULE_PRIORITY, Some(suppressed_prefix_len)),
            rule(LAN_TRAFFIC.mark, RULE_PRIORITY + 1, None),
        ]
    };
    versions.into_iter().filter(|(is_enabled, ..)| *is_enabled).flat_map(rules_for).collect()
}

/// The rules that are installed now, those of an earlier run included.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn installed_rules(socket: &RouteSocket) -> io::Result<Vec<TproxyRoute>> {
    let rules = socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
    let rules = messages(&rules).filter_map(|message| TproxyRoute::parse(&message));
    Ok(rules.filter(|rule| (rule.protocol, rule.mark) == (RTPROT_MARLINE, FIB_MARK)).collect())
}

/// The jumps to the chain, and the chain's rules, as nft reads them.
pub(super) fn jump_rules() -> [String; 2] {
    let [v4, v6] = zone_set(AddressZone::Private);
    [format!("ip daddr {v4} jump {PRIVATE_CHAIN}"), format!("ip6 daddr {v6} jump {PRIVATE_CHAIN}")]
}

/// The chain's rules, as nft reads them. What they accept is forwarded, unless other tables stop it.
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

/// The chain of a table without TPROXY, for TCP that came in over the LAN: drops what has no more than a default route.
///
/// TPROXY has marked what goes to the edge. What bears another mark here would have gone to the edge as well.
pub(super) fn unrouted_rules() -> Vec<String> {
    vec![
        format!("meta mark {:#x} return", LAN_TRAFFIC.mark),
        "meta mark != 0 drop".to_owned(),
        format!("meta mark set {FIB_MARK:#x}"),
        "fib daddr . mark oif missing drop".to_owned(),
        "meta mark set 0".to_owned(),
    ]
}

/// Conditions that hold for TCP to all addresses but those that may be forwarded, one for each of several rules.
pub(super) fn excluded_matches() -> [String; 4] {
    let ([v4, v6], [metadata_v4, metadata_v6]) = (zone_set(AddressZone::Private), zone_set(AddressZone::Metadata));
    [
        format!("ip daddr != {v4}"),
        format!("ip6 daddr != {v6}"),
        format!("ip daddr {metadata_v4}"),
        format!("ip6 daddr {metadata_v6}"),
    ]
}

/// The networks of a zone, as nft reads sets: of IPv4 and of IPv6.
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
    fn private_addresses_are_those_of_the_registries_without_a_clouds_metadata() {
        let [v4, v6] = jump_rules();
        assert_eq!(v4, "ip daddr { 10.0.0.0/8, 100.64.0.0/10, 172.16.0.0/12, 192.168.0.0/16 } jump private");
        assert_eq!(v6, "ip6 daddr { fc00::/7, fec0::/10 } jump private");
        let rules = chain_rules();
        assert!(rules[0].contains("100.100.100.200") && rules[0].ends_with("return"), "{rules:?}");
        assert!(rules[1].contains("fd00:ec2::/32") && rules[1].ends_with("return"), "{rules:?}");
    }
}
