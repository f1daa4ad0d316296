//! Protection against DNS rebinding: a name that has led to the Internet does not lead to this machine later.
//!
//! A name's first answer says where its host is. Later answers, over whichever link, lead no further into local networks
//! than that: otherwise a server could make this program send requests to the loopback by changing its own name. An
//! answer with public addresses narrows what was known before.
//! Within one answer, addresses of this machine or of one link beside public ones count for nothing.
//!
//! Private addresses are compared for each link alone: a company's or a household's name server gives private
//! addresses for names that are public elsewhere ("split horizon"). Answers of `/etc/hosts` are not looked at.
//! What is remembered ends when a link comes or goes ([`Names::forget`]).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::reach::Zone;

/// Where names have led.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: BTreeMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    seen: Instant,
    /// The zones of the first answer.
    first: Vec<Zone>,
    /// The same of each link's, by the link's number.
    links: BTreeMap<u32, Vec<Zone>>,
}

impl Names {
    /// Those of the addresses that the name may mean, in their order. `zone` tells an address's zone.
    pub(super) fn steady(
        &mut self,
        now: Instant,
        (name, link): (&str, u32),
        addresses: Vec<IpAddr>,
        zone: impl Fn(IpAddr) -> Zone,
    ) -> Vec<IpAddr> {
        let zoned: Vec<(IpAddr, Zone)> = addresses.into_iter().map(|address| (address, zone(address))).collect();
        let is_public = zoned.iter().any(|(_, zone)| *zone == Zone::Internet);
        let zones: Vec<Zone> =
            zoned.iter().map(|(_, zone)| *zone).filter(|zone| !is_public || *zone <= Zone::Private).collect();
        self.make_room(now, name);
        let known = self.known.entry(name.to_owned()).or_insert_with(|| Known {
            seen: now,
            first: zones.clone(),
            links: BTreeMap::new(),
        });
        known.seen = now;
        if is_public {
            known.first.retain(|zone| *zone <= Zone::Private);
        }
        let of_link = known.links.entry(link).or_insert_with(|| zones.clone());
        let may = |zone: Zone| match zone {
            Zone::Internet => true,
            Zone::Private => of_link.contains(&zone),
            Zone::LinkLocal | Zone::Metadata | Zone::Host => zones.contains(&zone) && known.first.contains(&zone),
        };
        zoned.into_iter().filter(|(_, zone)| may(*zone)).map(|(address, _)| address).collect()
    }

    /// Links have changed: names may mean other places.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    fn make_room(&mut self, now: Instant, name: &str) {
        self.known.retain(|_, known| now.duration_since(known.seen) < LASTS);
        if self.known.len() >= MOST && !self.known.contains_key(name) {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.seen).map(|(name, _)| name.clone());
            oldest.map(|oldest| self.known.remove(&oldest));
        }
    }
}

/// chosen: longer than a page or a film is left open without asking for its name again.
const LASTS: Duration = Duration::from_secs(6 * 3600);
/// chosen: as many as a household's browsers ask for in a day.
const MOST: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of each answer in turn: of a name over a link.
    fn left(answers: &[(u32, &[&str])]) -> Vec<Vec<String>> {
        let mut names = Names::default();
        let now = Instant::now();
        let one = |(link, addresses): &(u32, &[&str])| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            let zone = |address| Zone::with(address, |_| false);
            names.steady(now, ("h.test", *link), addresses, zone).iter().map(ToString::to_string).collect()
        };
        answers.iter().map(one).collect()
    }

    #[test]
    fn a_public_name_does_not_become_local() {
        for local in ["127.0.0.1", "0.0.0.0", "::1", "169.254.169.254", "fe80::1", "192.168.1.1"] {
            assert_eq!(left(&[(1, &["198.51.100.7"]), (1, &[local])])[1], Vec::<String>::new(), "{local}");
            let both = left(&[(1, &["198.51.100.7"]), (1, &[local, "203.0.113.1"])]);
            assert_eq!(both[1], ["203.0.113.1"], "{local}");
        }
        assert!(left(&[(1, &["198.51.100.7"]), (2, &["127.0.0.1"])])[1].is_empty());
    }

    #[test]
    fn of_one_answer_local_addresses_beside_public_ones_do_not_count() {
        assert_eq!(
            left(&[(1, &["127.0.0.1", "198.51.100.7"]), (1, &["127.0.0.1"])]),
            [vec!["198.51.100.7"], vec![]]
        );
        // A household's server often has both.
        assert_eq!(left(&[(1, &["192.168.1.5", "2001:db8::5"])])[0].len(), 2);
    }

    #[test]
    fn a_local_name_may_move_to_the_internet_and_not_back() {
        assert_eq!(
            left(&[(1, &["127.0.0.1"]), (2, &["127.0.0.1"]), (1, &["198.51.100.7"]), (1, &["127.0.0.1"])])
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>(),
            [1, 1, 1, 0]
        );
        assert_eq!(left(&[(1, &["10.0.0.1"]), (1, &["10.0.0.2"])])[1], ["10.0.0.2"]);
    }

    #[test]
    fn each_link_has_its_own_private_networks() {
        let split = left(&[(1, &["198.51.100.7"]), (2, &["10.0.0.1"]), (2, &["10.0.0.1"]), (1, &["10.0.0.1"])]);
        assert_eq!(split.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1, 0]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut names, now) = (Names::default(), Instant::now());
        for n in 0..MOST as u64 + 10 {
            let at = now + Duration::from_millis(n);
            names.steady(at, (&format!("n{n}.test"), 0), vec![IpAddr::from([192, 0, 2, 1])], |_| Zone::Internet);
        }
        assert_eq!(names.known.len(), MOST);
        names.steady(now + LASTS * 2, ("x", 0), Vec::new(), |_| Zone::Internet);
        assert_eq!(names.known.len(), 1);
    }
}
