//! Who uses the edge: how many flows there may be, in all and of one address, and who goes when there are too many.
//!
//! In: the address of a flow when it comes, and when it has gone. Out: whether it may come, and which one has to go for it.
//!
//! 1. One address has no more than its bound: one more of it is refused.
//! 2. When all places are taken, the network that has the most loses one: the newest of that address in it that has the most. Where
//!    that would only change who has the most, the address of one's own network that has the most loses its newest; and who has
//!    the most himself is refused. A client that opens a thousand connections keeps nobody out, and what has run for longest runs on.
//! 3. A network is an address of IPv4, or 64 bits of IPv6: all clients of a LAN have these in common, and one may make up as many
//!    addresses as he likes. He takes places from no other network by that.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::handshakes::network;

/// Those that are here; `T` is what is needed to end one.
#[derive(Debug)]
pub struct Guests<T> {
    room: usize,
    room_of_one: usize,
    exempts_loopback: bool,
    count: usize,
    next: u64,
    of: BTreeMap<IpAddr, Vec<(u64, T)>>,
    /// How many there are of each network.
    networks: BTreeMap<IpAddr, usize>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    address: IpAddr,
    number: u64,
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<T> Guests<T> {
    /// At most `room` connections in all and `room_of_one` of one address, at least one each.
    pub fn new(room: usize, room_of_one: usize) -> Self {
        let (of, networks) = (BTreeMap::new(), BTreeMap::new());
        let (room, room_of_one) = (room.max(1), room_of_one.max(1));
        Self { room, room_of_one, exempts_loopback: false, count: 0, next: 0, of, networks }
    }

    /// The bound of one address does not hold for the loopback: all programs of this host share it.
    #[must_use]
    pub fn exempting_loopback(self) -> Self {
        Self { exempts_loopback: true, ..self }
    }

    /// One has come: its ticket for [`Guests::left`], and who has to go for it.
    ///
    /// # Errors
    /// The address has as many as it may have, or nobody has more than its network.
    pub fn came(&mut self, from: IpAddr, handle: T) -> Result<(Ticket, Option<T>), Full> {
        let address = from.to_canonical();
        let is_exempt = self.exempts_loopback && address.is_loopback();
        if !is_exempt && self.has(address) >= self.room_of_one {
            return Err(Full);
        }
        let goes = if self.count >= self.room { Some(self.evict(address)?) } else { None };
        let ticket = Ticket { address, number: self.next };
        (self.next, self.count) = (self.next + 1, self.count + 1);
        self.of.entry(address).or_default().push((ticket.number, handle));
        *self.networks.entry(network(address)).or_default() += 1;
        Ok((ticket, goes))
    }

    /// It has gone. One that had to go is no longer here, which is as well.
    pub fn left(&mut self, ticket: Ticket) {
        let Some(of) = self.of.get_mut(&ticket.address) else { return };
        if let Some(at) = of.iter().position(|(number, _)| *number == ticket.number) {
            of.remove(at);
            self.one_less(ticket.address);
        }
    }

    /// Rule 2.
    fn evict(&mut self, comer: IpAddr) -> Result<T, Full> {
        let own = network(comer);
        let most = self.networks.iter().max_by_key(|(_, count)| **count).map(|(network, count)| (*network, *count));
        let other = most.filter(|(network, count)| *network != own && *count > self.together(own) + 1);
        let loser = match other {
            Some((network, _)) => self.most_in(network),
            None => self.most_in(own).filter(|address| self.has(*address) > self.has(comer) + 1),
        };
        let loser = loser.ok_or(Full)?;
        let (_, handle) = self.of.get_mut(&loser).and_then(Vec::pop).ok_or(Full)?;
        self.one_less(loser);
        Ok(handle)
    }

    /// The address of a network that has the most.
    fn most_in(&self, of: IpAddr) -> Option<IpAddr> {
        let all = self.of.iter().filter(|(address, _)| network(**address) == of);
        all.max_by_key(|(_, flows)| flows.len()).map(|(address, _)| *address)
    }

    fn has(&self, address: IpAddr) -> usize {
        self.of.get(&address).map_or(0, Vec::len)
    }

    fn together(&self, network: IpAddr) -> usize {
        self.networks.get(&network).copied().unwrap_or_default()
    }

    fn one_less(&mut self, address: IpAddr) {
        self.count -= 1;
        if self.has(address) == 0 {
            self.of.remove(&address);
        }
        let network = network(address);
        let left = self.together(network).saturating_sub(1);
        if left == 0 {
            self.networks.remove(&network)
        } else {
            self.networks.insert(network, left)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_programs_of_this_host_are_bounded_with_all_others_and_not_as_one_address() {
        let mut guests = Guests::new(4, 2).exempting_loopback();
        for n in 0..4 {
            guests.came(from("127.0.0.1"), n).unwrap();
        }
        assert_eq!(guests.came(from("127.0.0.1"), 4), Err(Full));
        assert_eq!(guests.came(from("10.0.0.1"), 5).unwrap().1, Some(3), "others find room beside them");
        guests.came(from("10.0.0.1"), 6).unwrap();
        assert_eq!(guests.came(from("10.0.0.1"), 7), Err(Full));
    }

    #[test]
    fn one_address_has_no_more_than_its_bound() {
        let mut guests = Guests::new(10, 2);
        let (first, _) = guests.came(from("10.0.0.1"), 0).unwrap();
        guests.came(from("10.0.0.1"), 1).unwrap();
        assert_eq!(guests.came(from("10.0.0.1"), 2), Err(Full));
        guests.came(from("10.0.0.2"), 3).unwrap();
        guests.left(first);
        guests.left(first);
        assert!(guests.came(from("10.0.0.1"), 4).is_ok());
    }

    #[test]
    fn who_has_most_loses_his_newest() {
        let mut guests = Guests::new(4, 4);
        for n in 0..4 {
            guests.came(from("10.0.0.1"), n).unwrap();
        }
        assert_eq!(guests.came(from("10.0.0.2"), 10).unwrap().1, Some(3));
        assert_eq!(guests.came(from("10.0.0.1"), 11), Err(Full), "he has the most himself");
        assert_eq!(guests.came(from("10.0.0.3"), 12).unwrap().1, Some(2));
        // Two, one and one: nobody has more than one who comes would have.
        assert_eq!(guests.came(from("10.0.0.2"), 13), Err(Full));
        assert_eq!(guests.came(from("10.0.0.4"), 14).unwrap().1, Some(1));
        assert_eq!(guests.came(from("10.0.0.5"), 15), Err(Full));
    }

    #[test]
    fn one_client_of_ipv6_keeps_nobody_of_his_lan_out() {
        let mut guests = Guests::new(4, 3);
        for n in 0..3 {
            guests.came(from("fd00::1"), n).unwrap();
        }
        assert_eq!(guests.came(from("fd00::1"), 3), Err(Full));
        assert_eq!(guests.came(from("fd00::2"), 4).unwrap().1, None);
        assert_eq!(guests.came(from("fd00::3"), 5).unwrap().1, Some(2));
        // Together they have the most, and of them the first.
        assert_eq!(guests.came(from("10.0.0.1"), 6).unwrap().1, Some(1));
        assert_eq!(guests.came(from("fd00::4"), 7), Err(Full));
    }

    #[test]
    fn made_up_addresses_of_one_network_take_nothing_from_others() {
        let mut guests = Guests::new(4, 4);
        guests.came(from("10.0.0.1"), 0).unwrap();
        for n in 1..20 {
            let came = guests.came(from(&format!("fd00::{n:x}")), n);
            assert!(if n < 4 { came.is_ok_and(|(_, goes)| goes.is_none()) } else { came == Err(Full) }, "{n}");
        }
        assert!(guests.came(from("10.0.0.2"), 20).unwrap().1.is_some_and(|goes| goes > 0));
        assert_eq!(guests.came(from("10.0.0.1"), 21), Err(Full));
    }

    #[test]
    fn who_has_left_leaves_nothing_behind() {
        let mut guests = Guests::new(10, 2);
        let came =
            ["fd00::1", "fd00::2", "::ffff:10.0.0.1", "10.0.0.1"].map(|address| guests.came(from(address), ()));
        assert_eq!(guests.came(from("10.0.0.1"), ()), Err(Full));
        came.into_iter().for_each(|came| guests.left(came.unwrap().0));
        assert!(guests.of.is_empty() && guests.networks.is_empty() && guests.count == 0);
    }
}
