//! Limits connections whose peer has not identified itself yet, and chooses which one to evict.
//!
//! 1. A new connection is always admitted. Beyond the limit it replaces the oldest connection of the network that has
//!    the most. A client that opens ten thousand connections and sends nothing replaces only its own, and a client
//!    from elsewhere is admitted at once.
//! 2. A network is one IPv4 address or an IPv6 /64, which is the least that a subscriber has (RFC 6177). A subscriber
//!    with many of them has a /48. So networks are compared first by the total of their /48, and then by their own
//!    count.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// The open connections; `T` is the handle that the caller needs to close one.
#[derive(Debug)]
pub struct PendingHandshakes<T> {
    max_total: usize,
    count: usize,
    next_number: u64,
    /// The connections of each network (rule 2), the oldest first: number and handle.
    by_network: BTreeMap<IpAddr, VecDeque<(u64, T)>>,
    /// Number of connections of each /48.
    per_site: BTreeMap<IpAddr, usize>,
}

/// Identifies one open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeTicket {
    network: IpAddr,
    number: u64,
}

impl<T> PendingHandshakes<T> {
    /// At most `max_total` connections, at least one.
    pub fn new(max_total: usize) -> Self {
        Self {
            max_total: max_total.max(1),
            count: 0,
            next_number: 0,
            by_network: BTreeMap::new(),
            per_site: BTreeMap::new(),
        }
    }

    /// Admits a connection: returns its ticket for [`PendingHandshakes::release`], and the handle of an evicted
    /// connection.
    pub fn admit(&mut self, from: IpAddr, handle: T) -> (HandshakeTicket, Option<T>) {
        let evicted = if self.count >= self.max_total { self.evict() } else { None };
        let ticket = HandshakeTicket { network: client_network(from), number: self.next_number };
        (self.next_number, self.count) = (self.next_number + 1, self.count + 1);
        self.by_network.entry(ticket.network).or_default().push_back((ticket.number, handle));
        *self.per_site.entry(client_site(ticket.network)).or_default() += 1;
        (ticket, evicted)
    }

    /// Removes a connection whose peer is identified or which has ended. If it was evicted before, nothing happens.
    pub fn release(&mut self, ticket: HandshakeTicket) {
        let Some(entries) = self.by_network.get_mut(&ticket.network) else { return };
        if let Some(at) = entries.iter().position(|(number, _)| *number == ticket.number) {
            entries.remove(at);
            self.decrement(ticket.network);
        }
    }

    /// Evicts one connection as in rule 1, and returns its handle. Listeners also call it when another resource runs
    /// out, such as file descriptors.
    pub fn evict(&mut self) -> Option<T> {
        // With equal counts the network whose oldest connection is the oldest of all loses it.
        let busiest = self
            .by_network
            .iter()
            .max_by_key(|(network, entries)| {
                let site_count = self.per_site.get(&client_site(**network)).copied();
                (site_count, entries.len(), Reverse(entries.front().map(|(number, _)| *number)))
            })
            .map(|(network, _)| *network)?;
        let (_, handle) = self.by_network.get_mut(&busiest)?.pop_front()?;
        self.decrement(busiest);
        Some(handle)
    }

    fn decrement(&mut self, network: IpAddr) {
        self.count -= 1;
        if self.by_network.get(&network).is_some_and(VecDeque::is_empty) {
            self.by_network.remove(&network);
        }
        let site = client_site(network);
        if let Some(count) = self.per_site.get_mut(&site) {
            *count -= 1;
            if *count == 0 {
                self.per_site.remove(&site);
            }
        }
    }
}

/// The network whose addresses count as one client: the IPv4 address itself, or the /64 of an IPv6 address.
pub fn client_network(address: IpAddr) -> IpAddr {
    ipv6_prefix(address, 64)
}

/// The largest prefix that one IPv6 subscriber has: /48.
fn client_site(network: IpAddr) -> IpAddr {
    ipv6_prefix(network, 48)
}

/// The first `count` bits of an IPv6 address; an IPv4 address unchanged.
fn ipv6_prefix(address: IpAddr, count: u32) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - count))).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    // The handle of each connection is a number; `admit` returns that of the evicted connection in second place.

    #[test]
    fn a_flooding_client_evicts_only_its_own_connections() {
        let mut open = PendingHandshakes::new(4);
        let (edge, evicted) = open.admit(parse_ip("192.0.2.1"), 0);
        assert_eq!(evicted, None);
        let evicted_edges: Vec<_> = (1..20).filter_map(|n| open.admit(parse_ip("198.51.100.1"), n).1).collect();
        assert_eq!(evicted_edges, (1..17).collect::<Vec<_>>());
        open.release(edge);
        open.release(edge);
        assert_eq!(open.admit(parse_ip("203.0.113.1"), 20).1, None);
        assert_eq!(open.admit(parse_ip("203.0.113.2"), 21).1, Some(17));
    }

    #[test]
    fn among_networks_with_equal_counts_the_oldest_connection_is_evicted() {
        let mut open = PendingHandshakes::new(3);
        for (n, address) in ["192.0.2.3", "192.0.2.1", "192.0.2.2"].into_iter().enumerate() {
            open.admit(parse_ip(address), n);
        }
        let evicted: Vec<_> = (3..6).filter_map(|n| open.admit(parse_ip(&format!("192.0.2.1{n}")), n).1).collect();
        assert_eq!(evicted, [0, 1, 2]);
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let mut open = PendingHandshakes::new(3);
        open.admit(parse_ip("2001:db8:0:1::1"), 1);
        open.admit(parse_ip("2001:db8:0:2::1"), 2);
        open.admit(parse_ip("2001:db8:0:2::2"), 3);
        assert_eq!(open.admit(parse_ip("::ffff:192.0.2.1"), 4).1, Some(2));
    }

    #[test]
    fn a_client_with_many_ipv6_networks_evicts_only_its_own_connections() {
        let mut open = PendingHandshakes::new(4);
        open.admit(parse_ip("2001:db8:ffff:1::1"), 0);
        open.admit(parse_ip("192.0.2.1"), 1);
        let flood = |n: u64| parse_ip(&format!("2001:db8:0:{n:x}::1"));
        let evicted: Vec<_> = (2..20).filter_map(|n| open.admit(flood(n), n).1).collect();
        assert_eq!(evicted, (2..18).collect::<Vec<_>>());
        // Within the /48 the network with the most connections loses one.
        assert_eq!(open.admit(flood(19), 20).1, Some(18));
        assert_eq!(open.admit(parse_ip("192.0.2.2"), 21).1, Some(19));
    }

    #[test]
    fn released_handshakes_leave_no_entries() {
        let mut open = PendingHandshakes::new(10);
        let tickets: Vec<_> = (0..10).map(|n| open.admit(parse_ip("192.0.2.1"), n).0).collect();
        tickets.into_iter().for_each(|ticket| open.release(ticket));
        assert!(open.count == 0 && open.by_network.is_empty() && open.per_site.is_empty());
    }
}
