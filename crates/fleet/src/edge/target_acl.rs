//! Access control for targets: which addresses only programs on this host may reach through the edge.
//!
//! 1. Other hosts cannot reach the loopback, this host's own addresses, link-local and multicast addresses, metadata services, and names of
//!    the loopback. A service that listens for local programs trusts them, and a connection from the edge looks like one of these.
//! 2. Programs on this host could connect there themselves, so they may.
//!
//! Other names are resolved by the relay, which protects its own network. Private addresses are also left to the relay, whose operator may
//! allow them. For a direct connection each address is checked again ([`direct`](super::direct)).

use std::net::SocketAddr;

use marline_net::egress::{AddressZone, EgressPolicy};

use crate::tunnel::Target;

/// Whether a client at this address may not reach the target, neither through a relay nor directly.
pub(super) fn is_forbidden(client_addr: SocketAddr, target: &Target) -> bool {
    if !EgressPolicy::for_peer(client_addr).has_remote_requester() {
        return false;
    }
    match target.host.parse() {
        Ok(address) => AddressZone::of(address) > AddressZone::Private,
        Err(_) => target.host == "localhost" || target.host.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_hosts_do_not_reach_this_host_through_the_edge() {
        let to = |text: &str| Target::parse(text).unwrap();
        let [here, elsewhere, mapped] =
            ["127.0.0.1:9", "192.0.2.7:9", "[::ffff:127.0.0.1]:9"].map(|from| from.parse::<SocketAddr>().unwrap());
        for target in [
            "127.0.0.1:80",
            "127.9.9.9:80",
            "0.0.0.0:80",
            "0.1.2.3:80",
            "169.254.169.254:80",
            "100.100.100.200:80",
            "[64:ff9b::127.0.0.1]:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "[::1]:80",
            "[::]:80",
            "[::127.0.0.1]:80",
            "[::ffff:127.0.0.1]:80",
            "[fe80::1]:80",
            "[ff02::1]:80",
            "localhost:80",
            "a.LocalHost.:80",
        ] {
            assert!(is_forbidden(elsewhere, &to(target)), "{target}");
            assert!(!is_forbidden(here, &to(target)), "{target}");
            assert!(!is_forbidden(mapped, &to(target)), "{target}");
        }
        for target in ["192.0.2.1:80", "10.1.1.1:80", "[2001:db8::1]:80", "a.example:80", "notlocalhost:80"] {
            assert!(!is_forbidden(elsewhere, &to(target)), "{target}");
        }
    }
}
