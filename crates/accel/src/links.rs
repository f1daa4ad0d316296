//! Resolves links by their names: the device, and the address that is probed to detect outages (its gateway).
//!
//! 1. The gateway is what the user named, else that of the device's default route with the lowest metric, IPv4 first.
//! 2. A point-to-point link has a default route without a gateway: the first other address of the device's own network,
//!    mostly its peer, is probed then, and used if it replies. One that does not reply is refused, because the silence
//!    of a gateway that has never replied proves no outage: many do not answer pings.
//! 3. What cannot be a link is refused before any socket is opened.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use marline_core::accel::AddressFamilies;
use marline_core::link::LinkId;
use marline_net::links::{Interface, InterfaceList, Subnet, UnusedReason, Usability};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::AccelError;
use crate::gateway_probe::GatewayProber;

/// A link as the user names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkArg {
    /// The interface's name.
    pub name: String,
    /// The address to probe; none: the gateway of its default route.
    pub gateway: Option<IpAddr>,
}

/// A link that can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccelLink {
    /// Its id; the primary link is zero.
    pub link: LinkId,
    /// The interface's name.
    pub name: String,
    /// The interface's index.
    pub index: u32,
    /// The address that is probed.
    pub gateway: IpAddr,
    /// The user has named the gateway; a new default route does not replace it then.
    pub has_named_gateway: bool,
    /// Whether IPv4 servers, IPv6 servers or both can be reached over it.
    pub families: AddressFamilies,
    /// The gateway of its IPv6 default route.
    pub router: Option<Ipv6Addr>,
}

/// The links, the primary one first. Probes a gateway where it has to be guessed, for two seconds at most for each.
///
/// # Errors
/// One of them cannot be used.
pub fn resolve_links(survey: &InterfaceList, args: &[LinkArg]) -> Result<Vec<AccelLink>, AccelError> {
    for (at, one) in args.iter().enumerate() {
        if args.iter().take(at).any(|other| other.name == one.name) {
            return Err(AccelError::Usage(format!(
                "link {}: it is named twice; a link cannot assist itself",
                one.name
            )));
        }
    }
    let interfaces: Vec<&Interface> = args.iter().map(|arg| interface(survey, arg)).collect::<Result<_, _>>()?;
    let links = args.iter().zip(interfaces).zip(0..);
    links.map(|((arg, interface), number)| resolve_link(arg, interface, LinkId(number))).collect()
}

fn resolve_link(arg: &LinkArg, interface: &Interface, link: LinkId) -> Result<AccelLink, AccelError> {
    let route_gateway =
        [interface.route_v4, interface.route_v6].into_iter().flatten().find_map(|route| route.gateway);
    let gateway = match arg.gateway.or(route_gateway) {
        Some(gateway) => gateway,
        None => guess_gateway(interface)?,
    };
    let families = match (interface.has_v4(), interface.has_v6()) {
        (true, false) => AddressFamilies::V4,
        (false, true) => AddressFamilies::V6,
        _ => AddressFamilies::Both,
    };
    let router = interface.route_v6.and_then(|route| route.gateway).and_then(|router| match router {
        IpAddr::V6(router) => Some(router),
        IpAddr::V4(_) => None,
    });
    Ok(AccelLink {
        link,
        name: interface.name.clone(),
        index: interface.index,
        gateway,
        has_named_gateway: arg.gateway.is_some(),
        families,
        router,
    })
}

/// The interface, if it can be a link.
fn interface<'a>(survey: &'a InterfaceList, arg: &LinkArg) -> Result<&'a Interface, AccelError> {
    let name = &arg.name;
    let Some(interface) = survey.by_name(name) else {
        return Err(AccelError::Link(format!(
            "link {name}: no such interface; `marline links` lists those there are"
        )));
    };
    // Such a name needs no quotes in the input of `iptables-restore`.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
    if name.starts_with('-') || !name.chars().all(is_plain) {
        return Err(AccelError::Usage(format!(
            "link {name}: an iptables rule cannot contain this name; rename the interface"
        )));
    }
    match &interface.usability {
        Usability::Unused(UnusedReason::Loopback) => Err(AccelError::Usage(format!(
            "link {name}: it is the loopback; name the interface that leads to the servers"
        ))),
        Usability::Unused(
            why
            @ (UnusedReason::Down | UnusedReason::NoCarrier | UnusedReason::NoAddress | UnusedReason::PortOf(_)),
        ) => Err(AccelError::Link(format!("link {name}: {why}"))),
        _ if interface.route_v4.is_none() && interface.route_v6.is_none() => Err(AccelError::Link(format!(
            "link {name}: it has no gateway, as no default route leads over it; add one (`ip route add default via … dev {name} \
             metric 900`)"
        ))),
        _ => Ok(interface),
    }
}

/// The gateway of a point-to-point link: the likeliest address, if it replies. Blocks until then, for two seconds at
/// most.
fn guess_gateway(interface: &Interface) -> Result<IpAddr, AccelError> {
    let name = &interface.name;
    let candidate = interface.subnets.iter().find_map(first_other_address);
    let reply = candidate
        .map(|candidate| gateway_replies(interface, candidate).map(|answers| (candidate, answers)))
        .transpose()?;
    let tried = match reply {
        Some((candidate, true)) => return Ok(candidate),
        Some((candidate, false)) => format!(", and {candidate}, the likeliest, does not answer"),
        None => String::new(),
    };
    Err(AccelError::Link(format!(
        "link {name}: its default route names no gateway{tried}; name an address behind it that answers pings, with \
         --primary-gateway or --secondary-gateway"
    )))
}

/// The first address of a network that is not the interface's own; none: the network has no other. The lowest one of a
/// network is left out, because it is the network address (IPv4) or the anycast address of its routers (IPv6), except
/// in a network of two addresses (RFC 3021, RFC 6164).
fn first_other_address(network: &Subnet) -> Option<IpAddr> {
    let candidates: [IpAddr; 2] = match network.address {
        IpAddr::V4(v4) => {
            let bits = u32::from(network.prefix_len);
            let first = v4.to_bits() & u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            let from = first + u32::from(bits < 31);
            if bits > 31 { None } else { Some([from, from + 1].map(|bits| Ipv4Addr::from_bits(bits).into())) }
        }
        IpAddr::V6(v6) => {
            let bits = u32::from(network.prefix_len);
            let first = v6.to_bits() & u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            let from = first + u128::from(bits < 127);
            if bits > 127 { None } else { Some([from, from + 1].map(|bits| Ipv6Addr::from_bits(bits).into())) }
        }
    }?;
    candidates.into_iter().find(|candidate| *candidate != network.address)
}

/// Whether the address replies to pings. A late reply to an earlier one counts as well.
fn gateway_replies(interface: &Interface, gateway: IpAddr) -> Result<bool, AccelError> {
    let mut prober = GatewayProber::open(&interface.name, interface.index, gateway)?;
    for sequence in 0..MAX_TRIES {
        let until = Instant::now() + REPLY_TIMEOUT;
        // A probe that cannot be sent is not answered.
        let _ = prober.probe(sequence);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let wait = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&prober, PollFlags::IN)], Some(&wait));
            if !prober.take_replies().is_empty() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Our choice: one probe may be lost, and the address has to be resolved first (ARP, neighbor discovery).
const MAX_TRIES: u16 = 3;
/// Our choice: longer than the round trip over any access link.
const REPLY_TIMEOUT: Duration = Duration::from_millis(700);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_is_the_first_address_that_is_not_ours() {
        for (local, prefix, other) in [
            ("10.1.0.2", 24, Some("10.1.0.1")),
            ("10.1.0.1", 24, Some("10.1.0.2")),
            ("10.1.0.6", 31, Some("10.1.0.7")),
            ("10.1.0.7", 31, Some("10.1.0.6")),
            ("10.1.0.6", 30, Some("10.1.0.5")),
            ("10.1.0.2", 32, None),
            ("10.1.0.2", 0, Some("0.0.0.1")),
            ("fd00::2", 64, Some("fd00::1")),
            ("fd00::2", 127, Some("fd00::3")),
            ("fd00::2", 128, None),
        ] {
            let network = Subnet { address: local.parse().unwrap(), prefix_len: prefix };
            assert_eq!(
                first_other_address(&network),
                other.map(|other| other.parse().unwrap()),
                "{local}/{prefix}"
            );
        }
    }
}
