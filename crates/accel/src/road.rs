//! The links by their names: which device, and who is asked whether it is alive.
//!
//! In: the names that the user wrote, perhaps with gateways. Out: a [`Road`] each, the primary first, or one line.
//!
//! 1. A gateway is what the user says, else that of the device's best default route, IPv4 first.
//! 2. A line with only two ends has a default route without a gateway: the first other address of the device's own network
//!    is asked then, and taken if it answers. (A dark link with a guessed gateway would never be told from a bright one.)
//! 3. What cannot be a link is refused before anything is opened.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use marline_core::accel::Families;
use marline_core::link::LinkId;
use marline_net::links::{Interface, InterfaceList, Subnet, UnusedReason, Usability};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::AccelError;
use super::ping::Pinger;

/// A link as the user names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The interface's name.
    pub name: String,
    /// Who is asked whether it is alive; none: whom its routes name.
    pub gateway: Option<IpAddr>,
}

/// A link that can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Road {
    /// Its number here; the primary one's is zero.
    pub link: LinkId,
    /// The interface's name.
    pub name: String,
    /// The kernel's number for it.
    pub index: u32,
    /// Who is asked whether it is alive.
    pub gateway: IpAddr,
    /// The user has named that one.
    pub is_named: bool,
    /// Where it leads to.
    pub families: Families,
    /// The router of its default route of IPv6.
    pub router: Option<Ipv6Addr>,
}

/// The links, the primary one first. Asks the network where a gateway has to be guessed, for two seconds at most for each.
///
/// # Errors
/// One of them cannot be used.
pub fn roads(survey: &InterfaceList, wanted: &[Wanted]) -> Result<Vec<Road>, AccelError> {
    for (at, one) in wanted.iter().enumerate() {
        if wanted.iter().take(at).any(|other| other.name == one.name) {
            return Err(AccelError::Wrong(format!(
                "link {}: it is named twice; a link cannot help itself",
                one.name
            )));
        }
    }
    let interfaces: Vec<&Interface> =
        wanted.iter().map(|wanted| interface(survey, wanted)).collect::<Result<_, _>>()?;
    let roads = wanted.iter().zip(interfaces).zip(0..);
    roads.map(|((wanted, interface), number)| road(wanted, interface, LinkId(number))).collect()
}

fn road(wanted: &Wanted, interface: &Interface, link: LinkId) -> Result<Road, AccelError> {
    let of_routes = [interface.route_v4, interface.route_v6].into_iter().flatten().find_map(|route| route.gateway);
    let gateway = match wanted.gateway.or(of_routes) {
        Some(gateway) => gateway,
        None => guessed(interface)?,
    };
    let is_named = wanted.gateway.is_some();
    let families = match (interface.has_v4(), interface.has_v6()) {
        (true, false) => Families::V4,
        (false, true) => Families::V6,
        _ => Families::Both,
    };
    let router = interface.route_v6.and_then(|route| route.gateway).and_then(|router| match router {
        IpAddr::V6(router) => Some(router),
        IpAddr::V4(_) => None,
    });
    Ok(Road { link, name: interface.name.clone(), index: interface.index, gateway, is_named, families, router })
}

/// The interface, if it can be a link.
fn interface<'a>(survey: &'a InterfaceList, wanted: &Wanted) -> Result<&'a Interface, AccelError> {
    let name = &wanted.name;
    let Some(interface) = survey.by_name(name) else {
        return Err(AccelError::Link(format!(
            "link {name}: no such interface; `marline links` lists those there are"
        )));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
    if name.starts_with('-') || !name.chars().all(plain) {
        return Err(AccelError::Wrong(format!(
            "link {name}: a rule for packets cannot name it; rename the interface"
        )));
    }
    match &interface.usability {
        Usability::Unused(UnusedReason::Loopback) => Err(AccelError::Wrong(format!(
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

/// The gateway of a line with two ends.
fn guessed(interface: &Interface) -> Result<IpAddr, AccelError> {
    let name = &interface.name;
    let candidate = interface.subnets.iter().find_map(other_end);
    let asked =
        candidate.map(|candidate| answers(interface, candidate).map(|answers| (candidate, answers))).transpose()?;
    let tried = match asked {
        Some((candidate, true)) => return Ok(candidate),
        Some((candidate, false)) => format!(", and {candidate}, the likeliest, does not answer"),
        None => String::new(),
    };
    Err(AccelError::Link(format!(
        "link {name}: its default route names no gateway{tried}; name an address behind it that answers pings, with \
         --primary-gateway or --secondary-gateway"
    )))
}

/// The first address of a network that is not the interface's own.
fn other_end(network: &Subnet) -> Option<IpAddr> {
    let candidates: [IpAddr; 2] = match network.address {
        IpAddr::V4(own) => {
            let bits = u32::from(network.prefix_len);
            let first = own.to_bits() & u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            // A network of two addresses has no name of its own (RFC 3021).
            let from = first + u32::from(bits < 31);
            if bits > 31 { None } else { Some([from, from + 1].map(|bits| Ipv4Addr::from_bits(bits).into())) }
        }
        IpAddr::V6(own) => {
            let bits = u32::from(network.prefix_len);
            let first = own.to_bits() & u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            let from = first + u128::from(bits < 127);
            if bits > 127 { None } else { Some([from, from + 1].map(|bits| Ipv6Addr::from_bits(bits).into())) }
        }
    }?;
    candidates.into_iter().find(|candidate| *candidate != network.address)
}

/// Whether somebody answers there.
fn answers(interface: &Interface, gateway: IpAddr) -> Result<bool, AccelError> {
    let mut pinger = Pinger::open(&interface.name, interface.index, gateway)?;
    for sequence in 0..TRIES {
        let until = Instant::now() + PATIENCE;
        // One that cannot be sent is not answered.
        let _ = pinger.ask(sequence);
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let wait = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&pinger, PollFlags::IN)], Some(&wait));
            if !pinger.answers().is_empty() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// chosen: one may be lost, and a sleeping neighbour has to be found first.
const TRIES: u16 = 3;
/// chosen: longer than the round trip over any access link.
const PATIENCE: Duration = Duration::from_millis(700);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_the_first_address_that_is_not_ours() {
        for (own, prefix, other) in [
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
            let network = Subnet { address: own.parse().unwrap(), prefix_len: prefix };
            assert_eq!(other_end(&network), other.map(|other| other.parse().unwrap()), "{own}/{prefix}");
        }
    }
}
