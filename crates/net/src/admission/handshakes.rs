//! Connections that have not said yet who they are: how many there may be, and who goes when there are too many.
//!
//! In: a connection's address when it comes, and when it is known or gone. Out: the one that has to go.
//!
//! 1. There is room for so many. One more takes the place of the oldest of those whose network has the most: who opens ten
//!    thousand and says nothing replaces his own, and an edge from elsewhere gets in at once.
//! 2. A network is an address of IPv4, or 64 bits of IPv6, which is what one customer has at least (RFC 6177). Whoever has many
//!    of these has 48 bits: networks that share them count together first, and then each for itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Those that are open; `T` is what is needed to end one.
#[derive(Debug)]
pub struct PendingHandshakes<T> {
    max_total: usize,
    count: usize,
    next_number: u64,
    by_network: BTreeMap<IpAddr, VecDeque<(u64, T)>>,
    /// How many there are of each 48 bits.
    per_site: BTreeMap<IpAddr, usize>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeTicket {
    network: IpAddr,
    number: u64,
}

impl<T> PendingHandshakes<T> {
    /// At most `room` connections, at least one.
    pub fn new(max_total: usize) -> Self {
        Self {
            max_total: max_total.max(1),
            count: 0,
            next_number: 0,
            by_network: BTreeMap::new(),
            per_site: BTreeMap::new(),
        }
    }

    /// One has come: its ticket for [`Handshakes::done`], and who has to go for it.
    pub fn admit(&mut self, from: IpAddr, handle: T) -> (HandshakeTicket, Option<T>) {
        let evicted = if self.count >= self.max_total { self.evict() } else { None };
        let ticket = HandshakeTicket { network: client_network(from), number: self.next_number };
        (self.next_number, self.count) = (self.next_number + 1, self.count + 1);
        self.by_network.entry(ticket.network).or_default().push_back((ticket.number, handle));
        *self.per_site.entry(client_site(ticket.network)).or_default() += 1;
        (ticket, evicted)
    }

    /// It is known who it is, or it has gone. One that had to go is no longer there, which is as well.
    pub fn release(&mut self, ticket: HandshakeTicket) {
        let Some(entries) = self.by_network.get_mut(&ticket.network) else { return };
        if let Some(at) = entries.iter().position(|(number, _)| *number == ticket.number) {
            entries.remove(at);
            self.decrement(ticket.network);
        }
    }

    /// Who has to go when there is no room for one more for another reason.
    pub fn evict(&mut self) -> Option<T> {
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

/// Whose addresses count as one: an IPv6 subscriber has at least 64 bits of his own.
pub fn client_network(address: IpAddr) -> IpAddr {
    ipv6_prefix(address, 64)
}

/// What a subscriber of IPv6 has at most.
fn client_site(network: IpAddr) -> IpAddr {
    ipv6_prefix(network, 48)
}

/// So many of an IPv6 address; one of IPv4 as it is.
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

    #[test]
    fn who_floods_replaces_his_own() {
        let mut open = PendingHandshakes::new(4);
        let (edge, goes) = open.admit(parse_ip("192.0.2.1"), 0);
        assert_eq!(goes, None);
        let gone: Vec<_> = (1..20).filter_map(|n| open.admit(parse_ip("198.51.100.1"), n).1).collect();
        assert_eq!(gone, (1..17).collect::<Vec<_>>());
        open.release(edge);
        open.release(edge);
        assert_eq!(open.admit(parse_ip("203.0.113.1"), 20).1, None);
        assert_eq!(open.admit(parse_ip("203.0.113.2"), 21).1, Some(17));
    }

    #[test]
    fn of_networks_with_as_many_the_one_that_came_first_goes() {
        let mut open = PendingHandshakes::new(3);
        for (n, address) in ["192.0.2.3", "192.0.2.1", "192.0.2.2"].into_iter().enumerate() {
            open.admit(parse_ip(address), n);
        }
        let gone: Vec<_> = (3..6).filter_map(|n| open.admit(parse_ip(&format!("192.0.2.1{n}")), n).1).collect();
        assert_eq!(gone, [0, 1, 2]);
    }

    #[test]
    fn one_network_of_ipv6_is_one_flooder() {
        let mut open = PendingHandshakes::new(3);
        open.admit(parse_ip("2001:db8:0:1::1"), 1);
        open.admit(parse_ip("2001:db8:0:2::1"), 2);
        open.admit(parse_ip("2001:db8:0:2::2"), 3);
        assert_eq!(open.admit(parse_ip("::ffff:192.0.2.1"), 4).1, Some(2));
    }

    #[test]
    fn who_has_many_networks_of_ipv6_replaces_his_own() {
        let mut open = PendingHandshakes::new(4);
        open.admit(parse_ip("2001:db8:ffff:1::1"), 0);
        open.admit(parse_ip("192.0.2.1"), 1);
        let flood = |n: u64| parse_ip(&format!("2001:db8:0:{n:x}::1"));
        let gone: Vec<_> = (2..20).filter_map(|n| open.admit(flood(n), n).1).collect();
        assert_eq!(gone, (2..18).collect::<Vec<_>>());
        // Within them it is again who has the most.
        assert_eq!(open.admit(flood(19), 20).1, Some(18));
        assert_eq!(open.admit(parse_ip("192.0.2.2"), 21).1, Some(19));
    }

    #[test]
    fn what_is_done_leaves_nothing_behind() {
        let mut open = PendingHandshakes::new(10);
        let tickets: Vec<_> = (0..10).map(|n| open.admit(parse_ip("192.0.2.1"), n).0).collect();
        tickets.into_iter().for_each(|ticket| open.release(ticket));
        assert!(open.count == 0 && open.by_network.is_empty() && open.per_site.is_empty());
    }
}
