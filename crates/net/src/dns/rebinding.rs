//! Protects against DNS rebinding: a name that has resolved to a public address does not resolve to local networks
//! later.
//!
//! The first answer for a name fixes how local its host is. Later answers, over any link, may not be more local.
//! Otherwise a server could make this program send requests to the loopback or to a router by changing its own name.
//! Once an answer over any link contains a public address, the name is public. If an answer contains both, its local
//! addresses are ignored.
//!
//! The name server of a company or a household may return private addresses for names that are public elsewhere
//! ("split horizon"). Such a name is public here if any link says so, because an intended local address cannot be
//! distinguished from an attack. Answers from `/etc/hosts` are not checked. The records are dropped when a link
//! appears or disappears ([`RebindingGuard::clear`]), so a machine that moves to another network resolves its names
//! afresh.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::egress::AddressZone;

/// The zones to which names have resolved.
#[derive(Debug, Default)]
pub(super) struct RebindingGuard {
    entries: BTreeMap<String, NameRecord>,
}

#[derive(Debug)]
struct NameRecord {
    /// The time of the last answer for this name.
    last_seen: Instant,
    /// The zones of the first answer; empty: the name is public.
    local_zones: Vec<AddressZone>,
}

impl RebindingGuard {
    /// Returns those addresses to which the name may resolve, in their order. `zone` returns the zone of an address.
    pub(super) fn filter(
        &mut self,
        now: Instant,
        name: &str,
        addresses: Vec<IpAddr>,
        zone: impl Fn(IpAddr) -> AddressZone,
    ) -> Vec<IpAddr> {
        let zoned: Vec<(IpAddr, AddressZone)> =
            addresses.into_iter().map(|address| (address, zone(address))).collect();
        let is_public = zoned.iter().any(|(_, zone)| *zone == AddressZone::Internet);
        self.evict(now, name);
        let zones = || zoned.iter().map(|(_, zone)| *zone).collect();
        // The first answer fixes the zones to which the name may resolve.
        let record = self
            .entries
            .entry(name.to_owned())
            .or_insert_with(|| NameRecord { last_seen: now, local_zones: zones() });
        record.last_seen = now;
        // From now on only public addresses are permitted, including for this answer.
        if is_public {
            record.local_zones.clear();
        }
        let is_permitted = |zone: AddressZone| match zone {
            AddressZone::Internet => true,
            // A private address is not more local than any other local address.
            AddressZone::Private => !record.local_zones.is_empty(),
            AddressZone::LinkLocal | AddressZone::Metadata | AddressZone::Host => {
                record.local_zones.contains(&zone)
            }
        };
        zoned.into_iter().filter(|(_, zone)| is_permitted(*zone)).map(|(address, _)| address).collect()
    }

    /// Drops all records: the links have changed, so names may resolve to other hosts.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    fn evict(&mut self, now: Instant, name: &str) {
        self.entries.retain(|_, record| now.duration_since(record.last_seen) < ENTRY_TTL);
        if self.entries.len() >= MAX_NAMES && !self.entries.contains_key(name) {
            let oldest =
                self.entries.iter().min_by_key(|(_, record)| record.last_seen).map(|(name, _)| name.clone());
            oldest.map(|oldest| self.entries.remove(&oldest));
        }
    }
}

/// Our choice: longer than a page or a film stays open without a new query for its name.
const ENTRY_TTL: Duration = Duration::from_secs(6 * 3600);
/// Our choice: the names that a household's browsers request in a day.
const MAX_NAMES: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses that remain of each answer, in turn.
    fn filtered(answers: &[&[&str]]) -> Vec<Vec<String>> {
        let mut guard = RebindingGuard::default();
        let now = Instant::now();
        let filter_answer = |addresses: &&[&str]| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            let zone = |address| AddressZone::classify(address, |_| false);
            guard.filter(now, "h.test", addresses, zone).iter().map(ToString::to_string).collect()
        };
        answers.iter().map(filter_answer).collect()
    }

    #[test]
    fn a_public_name_does_not_become_local() {
        for local in LOCAL_ADDRESSES {
            assert_eq!(filtered(&[&["198.51.100.7"], &[local]])[1], Vec::<String>::new(), "{local}");
            let mixed = filtered(&[&["198.51.100.7"], &[local, "203.0.113.1"]]);
            assert_eq!(mixed[1], ["203.0.113.1"], "{local}");
        }
    }

    #[test]
    fn local_addresses_beside_public_ones_are_ignored() {
        for local in LOCAL_ADDRESSES {
            for public in ["198.51.100.7", "2001:db9::5"] {
                let both = filtered(&[&[local, public], &[local], &[public], &[local]]);
                assert_eq!(both, [vec![public], vec![], vec![public], vec![]], "{local}");
                let answers = filtered(&[&[local], &[public, local], &[local]]);
                assert_eq!(answers, [vec![local], vec![public], vec![]], "{local}");
            }
        }
    }

    #[test]
    fn a_local_name_may_become_public_and_not_local_again() {
        assert_eq!(
            filtered(&[&["127.0.0.1"], &["127.0.0.1"], &["198.51.100.7"], &["127.0.0.1"]])
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>(),
            [1, 1, 1, 0]
        );
        assert_eq!(filtered(&[&["10.0.0.1"], &["10.0.0.2"]])[1], ["10.0.0.2"]);
        assert!(filtered(&[&["10.0.0.1"], &["127.0.0.1"]])[1].is_empty(), "not more local than at first");
        // The name server of one link blocks the name, and that of another knows it.
        assert_eq!(filtered(&[&["0.0.0.0"], &["10.0.0.2"]])[1], ["10.0.0.2"]);
    }

    const LOCAL_ADDRESSES: [&str; 8] =
        ["127.0.0.1", "0.0.0.0", "::1", "169.254.169.254", "fe80::1", "192.168.1.1", "10.9.9.9", "fd00::1"];

    #[test]
    fn the_number_of_records_is_bounded() {
        let (mut guard, now) = (RebindingGuard::default(), Instant::now());
        for n in 0..MAX_NAMES as u64 + 10 {
            let at = now + Duration::from_millis(n);
            guard.filter(at, &format!("n{n}.test"), vec![IpAddr::from([192, 0, 2, 1])], |_| AddressZone::Internet);
        }
        assert_eq!(guard.entries.len(), MAX_NAMES);
        guard.filter(now + ENTRY_TTL * 2, "x", Vec::new(), |_| AddressZone::Internet);
        assert_eq!(guard.entries.len(), 1);
    }
}
