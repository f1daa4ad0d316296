//! What only programs of this machine may reach through the edge: the machine itself.
//!
//! In: who asks, and where to. Out: whether that is refused.
//!
//! 1. Who asks from elsewhere is refused the loopback, this machine's own addresses, what is link-local, what goes to many, and the
//!    names of the loopback: a service that listens for programs of this machine trusts them, and the edge is one of these.
//! 2. A program of this machine could go there itself, and may.
//! 3. Addresses that carry one of IPv4 in themselves count as that one.
//!
//! Other names are looked up by the relay, which refuses its own neighbourhood; where they are looked up here, their addresses are
//! to be asked about again.

use std::net::IpAddr;

use crate::own::leads_here;
use crate::tunnel::Target;

/// Whether who asks from there may not go to this target.
pub(super) fn refuses(from: IpAddr, target: &Target) -> bool {
    if from.to_canonical().is_loopback() {
        return false;
    }
    match target.host.parse() {
        Ok(address) => is_here(address),
        Err(_) => target.host == "localhost" || target.host.ends_with(".localhost"),
    }
}

/// Whether an address is this machine, or means it from wherever it is asked.
pub(super) fn is_here(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let never = match address {
        IpAddr::V4(v4) => {
            // "This network" (RFC 1122 §3.2.1.3) is this host to Linux.
            v4.octets()[0] == 0 || v4.is_loopback() || v4.is_link_local() || v4.is_multicast() || v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            let embeds_v4 = v6.segments()[..6] == [0; 6];
            embeds_v4 || v6.is_unicast_link_local() || v6.is_multicast()
        }
    };
    never || leads_here(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_elsewhere_nobody_reaches_this_machine() {
        let to = |text: &str| Target::parse(text).unwrap();
        let (here, elsewhere): (IpAddr, IpAddr) = ("127.0.0.1".parse().unwrap(), "192.0.2.7".parse().unwrap());
        for target in [
            "127.0.0.1:80",
            "127.9.9.9:80",
            "0.0.0.0:80",
            "0.1.2.3:80",
            "169.254.169.254:80",
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
            assert!(refuses(elsewhere, &to(target)), "{target}");
            assert!(!refuses(here, &to(target)), "{target}");
            assert!(!refuses("::ffff:127.0.0.1".parse().unwrap(), &to(target)), "{target}");
        }
        for target in ["192.0.2.1:80", "[2001:db8::1]:80", "a.example:80", "notlocalhost:80"] {
            assert!(!refuses(elsewhere, &to(target)), "{target}");
        }
    }
}
