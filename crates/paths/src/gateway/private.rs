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
//! 5. After a crash, the table that outlives the process (`block`) asks in the same way, so the rules have to be there as long as it is. Before
//!    they are removed, it is replaced by one that drops TCP to all private networks, or is removed.

use std::io;

use marline_core::wire::netlink::{Route, SourceRule, TproxyRoute, family, messages};
use marline_net::egress::AddressZone;
use marline_net::links::RTPROT_MARLINE;
use marline_sys::netlink::RouteSocket;

use super::beyond::PLACE;
use crate::forward::detour::LAN;
use crate::forward::rules::Families;

/// The mark under which the kernel is asked.
const MARK: u32 = LAN.mark + 1;
/// The chain of the gateway's table that is jumped to for private addresses.
pub(super) const CHAIN: &str = "private";

/// The rules of the routing policy for these families.
pub(super) fn wanted(families: Families) -> Vec<TproxyRoute> {
    // Prefixes so short are default routes or parts of one, as `beyond` takes them.
    let each = [(families.ipv4, family::V4, 1), (families.ipv6, family::V6, 3)];
    let of = |(_, family, shortest)| {
        let rule = |table, priority, suppress| TproxyRoute {
            family,
            mark: MARK,
            table,
            priority,
            suppress_prefixlength: suppress,
            protocol: RTPROT_MARLINE,
        };
        [rule(Route::MAIN, PLACE, Some(shortest)), rule(LAN.mark, PLACE + 1, None)]
    };
    each.into_iter().filter(|(is_meant, ..)| *is_meant).flat_map(of).collect()
}

/// The rules that are installed now, those of an earlier run included.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn there(socket: &RouteSocket) -> io::Result<Vec<TproxyRoute>> {
    let rules = socket.request(&SourceRule::dump(family::UNSPECIFIED).finish(1))?;
    let rules = messages(&rules).filter_map(|message| TproxyRoute::parse(&message));
    Ok(rules.filter(|rule| (rule.protocol, rule.mark) == (RTPROT_MARLINE, MARK)).collect())
}

/// The jumps to the chain, and the chain's rules, as nft reads them.
pub(super) fn jumps() -> [String; 2] {
    let [v4, v6] = addresses(AddressZone::Private);
    [format!("ip daddr {v4} jump {CHAIN}"), format!("ip6 daddr {v6} jump {CHAIN}")]
}

/// The chain's rules, as nft reads them. What they accept is forwarded, unless other tables stop it.
pub(super) fn chain() -> Vec<String> {
    let [v4, v6] = addresses(AddressZone::Metadata);
    vec![
        format!("ip daddr {v4} return"),
        format!("ip6 daddr {v6} return"),
        "ct state established ct status & snat == 0 return".to_owned(),
        "meta mark != 0 return".to_owned(),
        format!("meta mark set {MARK:#x}"),
        "fib daddr . mark oif exists meta mark set 0 accept".to_owned(),
        "meta mark set 0".to_owned(),
    ]
}

/// The chain of a table without TPROXY, for TCP that came in over the LAN: drops what has no more than a default route.
///
/// TPROXY has marked what goes to the edge. What bears another mark here would have gone to the edge as well.
pub(super) fn unrouted() -> Vec<String> {
    vec![
        format!("meta mark {:#x} return", LAN.mark),
        "meta mark != 0 drop".to_owned(),
        format!("meta mark set {MARK:#x}"),
        "fib daddr . mark oif missing drop".to_owned(),
        "meta mark set 0".to_owned(),
    ]
}

/// Conditions that hold for TCP to all addresses but those that may be forwarded, one for each of several rules.
pub(super) fn others() -> [String; 4] {
    let ([v4, v6], [m4, m6]) = (addresses(AddressZone::Private), addresses(AddressZone::Metadata));
    [format!("ip daddr != {v4}"), format!("ip6 daddr != {v6}"), format!("ip daddr {m4}"), format!("ip6 daddr {m6}")]
}

/// The networks of a zone, as nft reads sets: of IPv4 and of IPv6.
fn addresses(zone: AddressZone) -> [String; 2] {
    [true, false].map(|is_ipv4| {
        let networks = zone.prefixes().filter(|network| network.is_ipv4() == is_ipv4);
        let written: Vec<String> = networks.map(|network| network.to_string()).collect();
        format!("{{ {} }}", written.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_those_of_the_registries_without_a_clouds_metadata() {
        let [v4, v6] = jumps();
        assert_eq!(v4, "ip daddr { 10.0.0.0/8, 100.64.0.0/10, 172.16.0.0/12, 192.168.0.0/16 } jump private");
        assert_eq!(v6, "ip6 daddr { fc00::/7, fec0::/10 } jump private");
        let chain = chain();
        assert!(chain[0].contains("100.100.100.200") && chain[0].ends_with("return"), "{chain:?}");
        assert!(chain[1].contains("fd00:ec2::/32") && chain[1].ends_with("return"), "{chain:?}");
    }
}
