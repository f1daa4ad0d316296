//! Assigns tasks to three or more links (Super-aggregation §8).
//!
//! 1. Bytes are fetched over the secondary link with the highest rate; senders are frozen over the one with the
//!    shortest round trip, which needs no capacity; ACKs leave over the remaining one.
//! 2. Links with spare capacity share the load of others: each list contains every secondary link, behind the one whose
//!    task it is, those with more capacity first.
//! 3. Capacity that remains is for `get`, `proxy` and `paths`: aggregation is their task.
//!
//! With one secondary link, all tasks are its own. The cost of links is not weighed here: a link that should not be
//! used is not named.

use alloc::vec::Vec;

use crate::link::LinkId;
use crate::units::{Bitrate, Duration};

/// What is known of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinkCharacteristics {
    pub(crate) link: LinkId,
    /// The rate that it delivers.
    pub(crate) down: Bitrate,
    /// The rate at which it can be sent over.
    pub(crate) up: Bitrate,
    /// Its round trip.
    pub(crate) rtt: Duration,
}

/// The links for each task, the first choice first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Roles {
    pub(crate) acks: Vec<LinkId>,
    /// For fetched bytes.
    pub(crate) fetch: Vec<LinkId>,
    /// For zero windows.
    pub(crate) freeze: Vec<LinkId>,
}

impl Roles {
    /// The tasks of these secondary links.
    pub(crate) fn of(links: &[LinkCharacteristics]) -> Self {
        let mut candidates = links.to_vec();
        candidates.sort_by_key(|link| core::cmp::Reverse((link.down, link.up)));
        let fetch = candidates.first().map(|link| link.link);
        let nearest = candidates.iter().filter(|link| Some(link.link) != fetch).min_by_key(|link| link.rtt);
        let freeze = nearest.map(|link| link.link).or(fetch);
        let remaining = candidates.iter().find(|link| Some(link.link) != fetch && Some(link.link) != freeze);
        let acks = remaining.map(|link| link.link).or(freeze);
        let order = |first: Option<LinkId>| {
            let others = candidates.iter().map(|link| link.link).filter(move |link| Some(*link) != first);
            first.into_iter().chain(others).collect()
        };
        Self { acks: order(acks), fetch: order(fetch), freeze: order(freeze) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIMAX: LinkId = LinkId(1);
    const UMTS: LinkId = LinkId(2);
    const BLUETOOTH: LinkId = LinkId(3);

    fn link(link: LinkId, down: u64, up: u64, rtt: u64) -> LinkCharacteristics {
        let rate = Bitrate::from_bits_per_sec;
        LinkCharacteristics { link, down: rate(down), up: rate(up), rtt: Duration::from_millis(rtt) }
    }

    #[test]
    fn the_device_of_the_paper_with_four_links() {
        let links = [
            link(BLUETOOTH, 700_000, 700_000, 20),
            link(WIMAX, 6_000_000, 1_000_000, 80),
            link(UMTS, 900_000, 400_000, 150),
        ];
        let roles = Roles::of(&links);
        assert_eq!(roles.fetch, [WIMAX, UMTS, BLUETOOTH]);
        assert_eq!(roles.freeze, [BLUETOOTH, WIMAX, UMTS]);
        assert_eq!(roles.acks, [UMTS, WIMAX, BLUETOOTH], "WiMAX shares the load of 3G");
    }

    #[test]
    fn a_single_secondary_link_has_all_tasks() {
        let roles = Roles::of(&[link(UMTS, 900_000, 400_000, 150)]);
        assert_eq!((roles.acks, roles.fetch, roles.freeze), ([UMTS].into(), [UMTS].into(), [UMTS].into()));
        assert!(Roles::of(&[]).acks.is_empty());
    }
}
