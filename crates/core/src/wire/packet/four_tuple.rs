//! Addresses of a packet, and with the ports its flow.
//!
//! [`AddrPair`] and [`FourTuple`] can be map keys, and packets can be built for them.
//!
//! 1. Source and destination are of the same family by construction, so builders never have to check.
//! 2. A flow is one direction; [`FourTuple::reversed`] is the other.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::inet_checksum::InetSum;

/// Source and destination address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddrPair {
    /// IPv4 source and destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6 source and destination.
    V6(Ipv6Addr, Ipv6Addr),
}

impl AddrPair {
    /// Creates a pair; `None` if the addresses are of different families.
    pub const fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Some(Self::V4(from, to)),
            (IpAddr::V6(from), IpAddr::V6(to)) => Some(Self::V6(from, to)),
            _ => None,
        }
    }

    /// Source address.
    pub const fn source(&self) -> IpAddr {
        match *self {
            Self::V4(from, _) => IpAddr::V4(from),
            Self::V6(from, _) => IpAddr::V6(from),
        }
    }

    /// Destination address.
    pub const fn destination(&self) -> IpAddr {
        match *self {
            Self::V4(_, to) => IpAddr::V4(to),
            Self::V6(_, to) => IpAddr::V6(to),
        }
    }

    /// The same pair with source and destination exchanged.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        match *self {
            Self::V4(from, to) => Self::V4(to, from),
            Self::V6(from, to) => Self::V6(to, from),
        }
    }

    /// Checksum contribution of the addresses in a pseudo header.
    pub(super) fn inet_sum(&self) -> InetSum {
        match self {
            Self::V4(from, to) => InetSum::default().add(&from.octets()).add(&to.octets()),
            Self::V6(from, to) => InetSum::default().add(&from.octets()).add(&to.octets()),
        }
    }
}

/// One direction of a connection: addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FourTuple {
    /// Source and destination address.
    pub addrs: AddrPair,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl FourTuple {
    /// Creates a four-tuple; `None` if the addresses are of different families.
    pub const fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        match AddrPair::new(source.ip(), destination.ip()) {
            Some(pair) => {
                Some(Self { addrs: pair, source_port: source.port(), destination_port: destination.port() })
            }
            None => None,
        }
    }

    /// Source address and port.
    pub const fn source(&self) -> SocketAddr {
        SocketAddr::new(self.addrs.source(), self.source_port)
    }

    /// Destination address and port.
    pub const fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.addrs.destination(), self.destination_port)
    }

    /// The opposite direction of the same connection.
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
    fn addresses_of_different_families_are_rejected() {
        assert_eq!(FourTuple::new("10.0.0.1:1".parse().unwrap(), "[fd00::1]:1".parse().unwrap()), None);
    }

    proptest! {
        #[test]
        fn reversing_twice_gives_the_same_flow(a: SocketAddr, b: SocketAddr) {
            if let Some(flow) = FourTuple::new(a, b) {
                prop_assert_eq!(flow.reversed().reversed(), flow);
                prop_assert_eq!((flow.source().ip(), flow.destination().port()), (a.ip(), b.port()));
            }
        }
    }
}
