//! Who uses the edge: how many flows there may be, in all and of one address, and who goes when there are too many.
//!
//! In: the address of a flow when it comes, and when it has gone. Out: whether it may come, and which one has to go for it.
//!
//! 1. One address has no more than its bound: one more of it is refused.
//! 2. When all places are taken, who has the most loses his newest: if that is who comes, he is refused. A client that opens a
//!    thousand connections keeps nobody out, and what has run for longest runs on.
//! 3. An address is one of IPv4, or 64 bits of IPv6: a client may make up the rest.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::relay::handshakes::network;

/// Those that are here; `T` is what is needed to end one.
#[derive(Debug)]
pub(super) struct Guests<T> {
    room: usize,
    room_of_one: usize,
    count: usize,
    next: u64,
    of: BTreeMap<IpAddr, Vec<(u64, T)>>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    address: IpAddr,
    number: u64,
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<T> Guests<T> {
    pub(super) fn new(room: usize, room_of_one: usize) -> Self {
        Self { room: room.max(1), room_of_one: room_of_one.max(1), count: 0, next: 0, of: BTreeMap::new() }
    }

    /// One has come: its ticket for [`Guests::left`], and who has to go for it.
    pub(super) fn came(&mut self, from: IpAddr, handle: T) -> Result<(Ticket, Option<T>), Full> {
        let address = network(from);
        let has = self.of.get(&address).map_or(0, Vec::len);
        if has >= self.room_of_one {
            return Err(Full);
        }
        let goes = if self.count >= self.room { Some(self.evict(has)?) } else { None };
        let ticket = Ticket { address, number: self.next };
        (self.next, self.count) = (self.next + 1, self.count + 1);
        self.of.entry(address).or_default().push((ticket.number, handle));
        Ok((ticket, goes))
    }

    /// It has gone. One that had to go is no longer here, which is as well.
    pub(super) fn left(&mut self, ticket: Ticket) {
        let Some(of) = self.of.get_mut(&ticket.address) else { return };
        if let Some(at) = of.iter().position(|(number, _)| *number == ticket.number) {
            of.remove(at);
            self.count -= 1;
        }
        if of.is_empty() {
            self.of.remove(&ticket.address);
        }
    }

    /// The newest of whoever has the most, if that is more than who comes would have.
    fn evict(&mut self, comer_has: usize) -> Result<T, Full> {
        let most = self.of.values_mut().max_by_key(|of| of.len()).filter(|of| of.len() > comer_has + 1);
        let (_, handle) = most.and_then(Vec::pop).ok_or(Full)?;
        self.count -= 1;
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> IpAddr {
        text.parse().unwrap()
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
    fn one_network_of_ipv6_is_one_client_and_nothing_is_left_behind() {
        let mut guests = Guests::new(10, 1);
        let (ticket, _) = guests.came(from("fd00::1"), ()).unwrap();
        assert_eq!(guests.came(from("fd00::2"), ()), Err(Full));
        guests.left(ticket);
        assert!(guests.of.is_empty() && guests.count == 0);
    }
}
