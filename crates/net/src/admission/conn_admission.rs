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

use super::handshakes::client_network;

/// Those that are here; `T` is what is needed to end one.
#[derive(Debug)]
pub struct ConnAdmission<T> {
    max_total: usize,
    max_per_address: usize,
    is_loopback_exempt: bool,
    count: usize,
    next_number: u64,
    by_address: BTreeMap<IpAddr, Vec<(u64, T)>>,
    /// How many there are of each network.
    per_network: BTreeMap<IpAddr, usize>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionTicket {
    address: IpAddr,
    number: u64,
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionDenied;

impl<T> ConnAdmission<T> {
    /// At most `room` connections in all and `room_of_one` of one address, at least one each.
    pub fn new(max_total: usize, max_per_address: usize) -> Self {
        let (by_address, networks) = (BTreeMap::new(), BTreeMap::new());
        let (max_total, max_per_address) = (max_total.max(1), max_per_address.max(1));
        Self {
            max_total,
            max_per_address,
            is_loopback_exempt: false,
            count: 0,
            next_number: 0,
            by_address,
            per_network: networks,
        }
    }

    /// The bound of one address does not hold for the loopback: all programs of this host share it.
    #[must_use]
    pub fn exempting_loopback(self) -> Self {
        Self { is_loopback_exempt: true, ..self }
    }

    /// One has come: its ticket for [`Guests::left`], and who has to go for it.
    ///
    /// # Errors
    /// The address has as many as it may have, or nobody has more than its network.
    pub fn admit(&mut self, from: IpAddr, handle: T) -> Result<(AdmissionTicket, Option<T>), AdmissionDenied> {
        let address = from.to_canonical();
        let is_exempt = self.is_loopback_exempt && address.is_loopback();
        if !is_exempt && self.count_of(address) >= self.max_per_address {
            return Err(AdmissionDenied);
        }
        let evicted = if self.count >= self.max_total { Some(self.evict(address)?) } else { None };
        let ticket = AdmissionTicket { address, number: self.next_number };
        (self.next_number, self.count) = (self.next_number + 1, self.count + 1);
        self.by_address.entry(address).or_default().push((ticket.number, handle));
        *self.per_network.entry(client_network(address)).or_default() += 1;
        Ok((ticket, evicted))
    }

    /// It has gone. One that had to go is no longer here, which is as well.
    pub fn release(&mut self, ticket: AdmissionTicket) {
        let Some(entries) = self.by_address.get_mut(&ticket.address) else { return };
        if let Some(at) = entries.iter().position(|(number, _)| *number == ticket.number) {
            entries.remove(at);
            self.decrement(ticket.address);
        }
    }

    /// Rule 2.
    fn evict(&mut self, newcomer: IpAddr) -> Result<T, AdmissionDenied> {
        let own_network = client_network(newcomer);
        let busiest =
            self.per_network.iter().max_by_key(|(_, count)| **count).map(|(network, count)| (*network, *count));
        let other = busiest
            .filter(|(network, count)| *network != own_network && *count > self.network_count(own_network) + 1);
        let victim = match other {
            Some((network, _)) => self.busiest_address_in(network),
            None => self
                .busiest_address_in(own_network)
                .filter(|address| self.count_of(*address) > self.count_of(newcomer) + 1),
        };
        let victim = victim.ok_or(AdmissionDenied)?;
        let (_, handle) = self.by_address.get_mut(&victim).and_then(Vec::pop).ok_or(AdmissionDenied)?;
        self.decrement(victim);
        Ok(handle)
    }

    /// The address of a network that has the most.
    fn busiest_address_in(&self, wanted_network: IpAddr) -> Option<IpAddr> {
        let of_network = self.by_address.iter().filter(|(address, _)| client_network(**address) == wanted_network);
        of_network.max_by_key(|(_, flows)| flows.len()).map(|(address, _)| *address)
    }

    fn count_of(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).map_or(0, Vec::len)
    }

    fn network_count(&self, network: IpAddr) -> usize {
        self.per_network.get(&network).copied().unwrap_or_default()
    }

    fn decrement(&mut self, address: IpAddr) {
        self.count -= 1;
        if self.count_of(address) == 0 {
            self.by_address.remove(&address);
        }
        let network = client_network(address);
        let remaining = self.network_count(network).saturating_sub(1);
        if remaining == 0 {
            self.per_network.remove(&network)
        } else {
            self.per_network.insert(network, remaining)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_programs_of_this_host_are_bounded_with_all_others_and_not_as_one_address() {
        let mut guests = ConnAdmission::new(4, 2).exempting_loopback();
        for n in 0..4 {
            guests.admit(parse_ip("127.0.0.1"), n).unwrap();
        }
        assert_eq!(guests.admit(parse_ip("127.0.0.1"), 4), Err(AdmissionDenied));
        assert_eq!(guests.admit(parse_ip("10.0.0.1"), 5).unwrap().1, Some(3), "others find room beside them");
        guests.admit(parse_ip("10.0.0.1"), 6).unwrap();
        assert_eq!(guests.admit(parse_ip("10.0.0.1"), 7), Err(AdmissionDenied));
    }

    #[test]
    fn one_address_has_no_more_than_its_bound() {
        let mut guests = ConnAdmission::new(10, 2);
        let (first, _) = guests.admit(parse_ip("10.0.0.1"), 0).unwrap();
        guests.admit(parse_ip("10.0.0.1"), 1).unwrap();
        assert_eq!(guests.admit(parse_ip("10.0.0.1"), 2), Err(AdmissionDenied));
        guests.admit(parse_ip("10.0.0.2"), 3).unwrap();
        guests.release(first);
        guests.release(first);
        assert!(guests.admit(parse_ip("10.0.0.1"), 4).is_ok());
    }

    #[test]
    fn who_has_most_loses_his_newest() {
        let mut guests = ConnAdmission::new(4, 4);
        for n in 0..4 {
            guests.admit(parse_ip("10.0.0.1"), n).unwrap();
        }
        assert_eq!(guests.admit(parse_ip("10.0.0.2"), 10).unwrap().1, Some(3));
        assert_eq!(guests.admit(parse_ip("10.0.0.1"), 11), Err(AdmissionDenied), "he has the most himself");
        assert_eq!(guests.admit(parse_ip("10.0.0.3"), 12).unwrap().1, Some(2));
        // Two, one and one: nobody has more than one who comes would have.
        assert_eq!(guests.admit(parse_ip("10.0.0.2"), 13), Err(AdmissionDenied));
        assert_eq!(guests.admit(parse_ip("10.0.0.4"), 14).unwrap().1, Some(1));
        assert_eq!(guests.admit(parse_ip("10.0.0.5"), 15), Err(AdmissionDenied));
    }

    #[test]
    fn one_client_of_ipv6_keeps_nobody_of_his_lan_out() {
        let mut guests = ConnAdmission::new(4, 3);
        for n in 0..3 {
            guests.admit(parse_ip("fd00::1"), n).unwrap();
        }
        assert_eq!(guests.admit(parse_ip("fd00::1"), 3), Err(AdmissionDenied));
        assert_eq!(guests.admit(parse_ip("fd00::2"), 4).unwrap().1, None);
        assert_eq!(guests.admit(parse_ip("fd00::3"), 5).unwrap().1, Some(2));
        // Together they have the most, and of them the first.
        assert_eq!(guests.admit(parse_ip("10.0.0.1"), 6).unwrap().1, Some(1));
        assert_eq!(guests.admit(parse_ip("fd00::4"), 7), Err(AdmissionDenied));
    }

    #[test]
    fn made_up_addresses_of_one_network_take_nothing_from_others() {
        let mut guests = ConnAdmission::new(4, 4);
        guests.admit(parse_ip("10.0.0.1"), 0).unwrap();
        for n in 1..20 {
            let came = guests.admit(parse_ip(&format!("fd00::{n:x}")), n);
            assert!(
                if n < 4 { came.is_ok_and(|(_, goes)| goes.is_none()) } else { came == Err(AdmissionDenied) },
                "{n}"
            );
        }
        assert!(guests.admit(parse_ip("10.0.0.2"), 20).unwrap().1.is_some_and(|goes| goes > 0));
        assert_eq!(guests.admit(parse_ip("10.0.0.1"), 21), Err(AdmissionDenied));
    }

    #[test]
    fn who_has_left_leaves_nothing_behind() {
        let mut guests = ConnAdmission::new(10, 2);
        let came = ["fd00::1", "fd00::2", "::ffff:10.0.0.1", "10.0.0.1"]
            .map(|address| guests.admit(parse_ip(address), ()));
        assert_eq!(guests.admit(parse_ip("10.0.0.1"), ()), Err(AdmissionDenied));
        came.into_iter().for_each(|came| guests.release(came.unwrap().0));
        assert!(guests.by_address.is_empty() && guests.per_network.is_empty() && guests.count == 0);
    }
}
