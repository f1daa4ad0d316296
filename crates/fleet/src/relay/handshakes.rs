//! Connections that have not said yet who they are: how many there may be, and who goes when there are too many.
//!
//! In: a connection's address when it comes, and when it is known or gone. Out: the one that has to go.
//!
//! 1. There is room for so many. One more takes the place of the oldest of those whose network has the most: who opens ten
//!    thousand and says nothing replaces his own, and an edge from elsewhere gets in at once.
//! 2. A network is an address of IPv4, or 64 bits of IPv6, which is what one customer has at least (RFC 6177).

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Those that are open; `T` is what is needed to end one.
#[derive(Debug)]
pub(crate) struct Handshakes<T> {
    room: usize,
    count: usize,
    next: u64,
    networks: BTreeMap<IpAddr, VecDeque<(u64, T)>>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    network: IpAddr,
    number: u64,
}

impl<T> Handshakes<T> {
    pub(crate) fn new(room: usize) -> Self {
        Self { room: room.max(1), count: 0, next: 0, networks: BTreeMap::new() }
    }

    /// One has come: its ticket for [`Handshakes::done`], and who has to go for it.
    pub(crate) fn came(&mut self, from: IpAddr, handle: T) -> (Ticket, Option<T>) {
        let goes = if self.count >= self.room { self.evict() } else { None };
        let ticket = Ticket { network: network(from), number: self.next };
        (self.next, self.count) = (self.next + 1, self.count + 1);
        self.networks.entry(ticket.network).or_default().push_back((ticket.number, handle));
        (ticket, goes)
    }

    /// It is known who it is, or it has gone. One that had to go is no longer there, which is as well.
    pub(crate) fn done(&mut self, ticket: Ticket) {
        let Some(of) = self.networks.get_mut(&ticket.network) else { return };
        if let Some(at) = of.iter().position(|(number, _)| *number == ticket.number) {
            of.remove(at);
            self.count -= 1;
        }
        if of.is_empty() {
            self.networks.remove(&ticket.network);
        }
    }

    /// Who has to go when there is no room for one more for another reason.
    pub(crate) fn evict(&mut self) -> Option<T> {
        let most = self
            .networks
            .iter()
            .max_by_key(|(_, of)| (of.len(), Reverse(of.front().map(|(number, _)| *number))))
            .map(|(network, _)| *network)?;
        let of = self.networks.get_mut(&most)?;
        let (_, handle) = of.pop_front()?;
        self.count -= 1;
        if of.is_empty() {
            self.networks.remove(&most);
        }
        Some(handle)
    }
}

/// Whose addresses count as one: an IPv6 subscriber has at least 64 bits of his own.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_floods_replaces_his_own() {
        let mut open = Handshakes::new(4);
        let (edge, goes) = open.came(from("192.0.2.1"), 0);
        assert_eq!(goes, None);
        let gone: Vec<_> = (1..20).filter_map(|n| open.came(from("198.51.100.1"), n).1).collect();
        assert_eq!(gone, (1..17).collect::<Vec<_>>());
        open.done(edge);
        open.done(edge);
        assert_eq!(open.came(from("203.0.113.1"), 20).1, None);
        assert_eq!(open.came(from("203.0.113.2"), 21).1, Some(17));
    }

    #[test]
    fn of_networks_with_as_many_the_one_that_came_first_goes() {
        let mut open = Handshakes::new(3);
        for (n, address) in ["192.0.2.3", "192.0.2.1", "192.0.2.2"].into_iter().enumerate() {
            open.came(from(address), n);
        }
        let gone: Vec<_> = (3..6).filter_map(|n| open.came(from(&format!("192.0.2.1{n}")), n).1).collect();
        assert_eq!(gone, [0, 1, 2]);
    }

    #[test]
    fn one_network_of_ipv6_is_one_flooder() {
        let mut open = Handshakes::new(3);
        open.came(from("2001:db8:0:1::1"), 1);
        open.came(from("2001:db8:0:2::1"), 2);
        open.came(from("2001:db8:0:2::2"), 3);
        assert_eq!(open.came(from("::ffff:192.0.2.1"), 4).1, Some(2));
    }

    #[test]
    fn what_is_done_leaves_nothing_behind() {
        let mut open = Handshakes::new(10);
        let tickets: Vec<_> = (0..10).map(|n| open.came(from("192.0.2.1"), n).0).collect();
        tickets.into_iter().for_each(|ticket| open.done(ticket));
        assert!(open.count == 0 && open.networks.is_empty());
    }
}
