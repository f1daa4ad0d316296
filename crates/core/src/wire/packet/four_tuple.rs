//! Who talks to whom: addresses of one family, and with their ports a flow.
//!
//! In: a packet's addresses. Out: [`Pair`] and [`Flow`], values that can key a map and that a packet can be made for.
//!
//! 1. Both ends are of one family, or there is no such value: what makes a packet never has to ask.
//! 2. A flow is one direction. [`Flow::reversed`] is the other.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::inet_checksum::InetSum;

/// Source and destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddrPair {
    /// Of IPv4: from, to.
    V4(Ipv4Addr, Ipv4Addr),
    /// Of IPv6: from, to.
    V6(Ipv6Addr, Ipv6Addr),
}

impl AddrPair {
    /// `None` if one is an IPv4 address and the other is not.
    pub const fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Some(Self::V4(from, to)),
            (IpAddr::V6(from), IpAddr::V6(to)) => Some(Self::V6(from, to)),
            _ => None,
        }
    }

    /// Who has sent it.
    pub const fn source(&self) -> IpAddr {
        match *self {
            Self::V4(from, _) => IpAddr::V4(from),
            Self::V6(from, _) => IpAddr::V6(from),
        }
    }

    /// Whom it is for.
    pub const fn destination(&self) -> IpAddr {
        match *self {
            Self::V4(_, to) => IpAddr::V4(to),
            Self::V6(_, to) => IpAddr::V6(to),
        }
    }

    /// The way back.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        match *self {
            Self::V4(from, to) => Self::V4(to, from),
            Self::V6(from, to) => Self::V6(to, from),
        }
    }

    /// The addresses' part of a pseudo header.
    pub(super) fn inet_sum(&self) -> InetSum {
        match self {
            Self::V4(from, to) => InetSum::default().add(&from.octets()).add(&to.octets()),
            Self::V6(from, to) => InetSum::default().add(&from.octets()).add(&to.octets()),
        }
    }
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FourTuple {
    /// The addresses.
    pub addrs: AddrPair,
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
}

impl FourTuple {
    /// `None` if the ends are of different families.
    pub const fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        match AddrPair::new(source.ip(), destination.ip()) {
            Some(pair) => {
                Some(Self { addrs: pair, source_port: source.port(), destination_port: destination.port() })
            }
            None => None,
        }
    }

    /// The sender.
    pub const fn source(&self) -> SocketAddr {
        SocketAddr::new(self.addrs.source(), self.source_port)
    }

    /// The receiver.
    pub const fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.addrs.destination(), self.destination_port)
    }

    /// The other direction.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            addrs: self.addrs.reversed(),
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ends_of_two_families_are_no_flow() {
        assert_eq!(FourTuple::new("10.0.0.1:1".parse().unwrap(), "[fd00::1]:1".parse().unwrap()), None);
    }

    proptest! {
        #[test]
        fn the_other_direction_of_the_other_is_this_one(a: SocketAddr, b: SocketAddr) {
            if let Some(flow) = FourTuple::new(a, b) {
                prop_assert_eq!(flow.reversed().reversed(), flow);
                prop_assert_eq!((flow.source().ip(), flow.destination().port()), (a.ip(), b.port()));
            }
        }
    }
}
