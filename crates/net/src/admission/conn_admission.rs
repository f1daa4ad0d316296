//! Limits the connections of a listener, in total and per client address, and chooses which one to evict.
//!
//! 1. An address has at most `max_per_address` connections: further ones are refused.
//! 2. At `max_total` connections, the network with the most connections loses one: the newest connection of the
//!    busiest address in it. If the eviction would only change which network has the most, the busiest address in the
//!    newcomer's own network loses its newest connection instead. The newcomer is refused if no address in its
//!    network has at least two connections more than the newcomer's address. A client that opens a thousand
//!    connections keeps no other client out, and the longest-running connections continue.
//! 3. A network is one IPv4 address or an IPv6 /64. All clients of a LAN share a /64, and a client can invent any
//!    number of addresses in it. Their connections count together, so invented addresses do not help it to evict
//!    connections of other networks.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::handshakes::client_network;

/// The admitted connections; `T` is the handle that the caller needs to close one.
#[derive(Debug)]
pub struct ConnAdmission<T> {
    max_total: usize,
    max_per_address: usize,
    is_loopback_exempt: bool,
    count: usize,
    next_number: u64,
    /// The connections of each address, the oldest first: number and handle.
    by_address: BTreeMap<IpAddr, Vec<(u64, T)>>,
    /// Number of connections of each network.
    per_network: BTreeMap<IpAddr, usize>,
}

/// Identifies one admitted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionTicket {
    address: IpAddr,
    number: u64,
}

/// The connection must be refused: a limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionDenied;

impl<T> ConnAdmission<T> {
    /// At most `max_total` connections, and `max_per_address` for each address; both are at least one.
    pub fn new(max_total: usize, max_per_address: usize) -> Self {
        let (by_address, per_network) = (BTreeMap::new(), BTreeMap::new());
        let (max_total, max_per_address) = (max_total.max(1), max_per_address.max(1));
        Self {
            max_total,
            max_per_address,
            is_loopback_exempt: false,
            count: 0,
            next_number: 0,
            by_address,
            per_network,
        }
    }

    /// Exempts loopback addresses from the limit per address, because all programs of this host share them.
    #[must_use]
    pub fn exempting_loopback(self) -> Self {
        Self { is_loopback_exempt: true, ..self }
    }

    /// Admits a connection: returns its ticket for [`ConnAdmission::release`], and the handle of an evicted
    /// connection.
    ///
    /// # Errors
    /// The address has reached its limit, or no other connection may be evicted for it (rule 2).
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

    /// Removes a connection that has ended. If it was evicted before, nothing happens.
    pub fn release(&mut self, ticket: AdmissionTicket) {
        let Some(entries) = self.by_address.get_mut(&ticket.address) else { return };
        if let Some(at) = entries.iter().position(|(number, _)| *number == ticket.number) {
            entries.remove(at);
            self.decrement(ticket.address);
        }
    }

    /// Evicts one connection in favor of `newcomer` (rule 2).
    fn evict(&mut self, newcomer: IpAddr) -> Result<T, AdmissionDenied> {
        let own_network = client_network(newcomer);
        let busiest =
            self.per_network.iter().max_by_key(|(_, count)| **count).map(|(network, count)| (*network, *count));
        // The "+ 1" counts the newcomer: evicting from a network that would then have fewer than the newcomer's only
        // swaps the two.
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

    /// The address with the most connections in a network.
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

    // The handle of each connection is a number; `admit` returns that of the evicted connection in second place.

    #[test]
    fn the_loopback_is_bounded_by_the_total_and_not_per_address() {
        let mut admission = ConnAdmission::new(4, 2).exempting_loopback();
        for n in 0..4 {
            admission.admit(parse_ip("127.0.0.1"), n).unwrap();
        }
        assert_eq!(admission.admit(parse_ip("127.0.0.1"), 4), Err(AdmissionDenied));
        assert_eq!(admission.admit(parse_ip("10.0.0.1"), 5).unwrap().1, Some(3), "other addresses are admitted");
        admission.admit(parse_ip("10.0.0.1"), 6).unwrap();
        assert_eq!(admission.admit(parse_ip("10.0.0.1"), 7), Err(AdmissionDenied));
    }

    #[test]
    fn an_address_has_at_most_its_limit() {
        let mut admission = ConnAdmission::new(10, 2);
        let (first, _) = admission.admit(parse_ip("10.0.0.1"), 0).unwrap();
        admission.admit(parse_ip("10.0.0.1"), 1).unwrap();
        assert_eq!(admission.admit(parse_ip("10.0.0.1"), 2), Err(AdmissionDenied));
        admission.admit(parse_ip("10.0.0.2"), 3).unwrap();
        admission.release(first);
        admission.release(first);
        assert!(admission.admit(parse_ip("10.0.0.1"), 4).is_ok());
    }

    #[test]
    fn the_address_with_the_most_connections_loses_its_newest() {
        let mut admission = ConnAdmission::new(4, 4);
        for n in 0..4 {
            admission.admit(parse_ip("10.0.0.1"), n).unwrap();
        }
        assert_eq!(admission.admit(parse_ip("10.0.0.2"), 10).unwrap().1, Some(3));
        assert_eq!(
            admission.admit(parse_ip("10.0.0.1"), 11),
            Err(AdmissionDenied),
            "the newcomer has the most itself"
        );
        assert_eq!(admission.admit(parse_ip("10.0.0.3"), 12).unwrap().1, Some(2));
        // Two, one and one: no address has more than the newcomer would have.
        assert_eq!(admission.admit(parse_ip("10.0.0.2"), 13), Err(AdmissionDenied));
        assert_eq!(admission.admit(parse_ip("10.0.0.4"), 14).unwrap().1, Some(1));
        assert_eq!(admission.admit(parse_ip("10.0.0.5"), 15), Err(AdmissionDenied));
    }

    #[test]
    fn an_ipv6_client_does_not_keep_others_of_its_lan_out() {
        let mut admission = ConnAdmission::new(4, 3);
        for n in 0..3 {
            admission.admit(parse_ip("fd00::1"), n).unwrap();
        }
        assert_eq!(admission.admit(parse_ip("fd00::1"), 3), Err(AdmissionDenied));
        assert_eq!(admission.admit(parse_ip("fd00::2"), 4).unwrap().1, None);
        assert_eq!(admission.admit(parse_ip("fd00::3"), 5).unwrap().1, Some(2));
        // Together they have the most, and the first address has the most of them.
        assert_eq!(admission.admit(parse_ip("10.0.0.1"), 6).unwrap().1, Some(1));
        assert_eq!(admission.admit(parse_ip("fd00::4"), 7), Err(AdmissionDenied));
    }

    #[test]
    fn invented_addresses_of_one_network_evict_no_other_network() {
        let mut admission = ConnAdmission::new(4, 4);
        admission.admit(parse_ip("10.0.0.1"), 0).unwrap();
        for n in 1..20 {
            let admitted = admission.admit(parse_ip(&format!("fd00::{n:x}")), n);
            assert!(
                if n < 4 {
                    admitted.is_ok_and(|(_, goes)| goes.is_none())
                } else {
                    admitted == Err(AdmissionDenied)
                },
                "{n}"
            );
        }
        assert!(admission.admit(parse_ip("10.0.0.2"), 20).unwrap().1.is_some_and(|goes| goes > 0));
        assert_eq!(admission.admit(parse_ip("10.0.0.1"), 21), Err(AdmissionDenied));
    }

    #[test]
    fn released_connections_leave_no_entries() {
        let mut admission = ConnAdmission::new(10, 2);
        let admitted = ["fd00::1", "fd00::2", "::ffff:10.0.0.1", "10.0.0.1"]
            .map(|address| admission.admit(parse_ip(address), ()));
        assert_eq!(admission.admit(parse_ip("10.0.0.1"), ()), Err(AdmissionDenied));
        admitted.into_iter().for_each(|admitted| admission.release(admitted.unwrap().0));
        assert!(admission.by_address.is_empty() && admission.per_network.is_empty() && admission.count == 0);
    }
}
