//! Which link does what, where there are three or more (Super-aggregation §8).
//!
//! In: what is known of each link beside the primary one, which the user names. Out: for each part those that do it, the first one
//! first.
//!
//! 1. Bytes are mirrored over the helper that brings most; the sender is frozen over the one with the shortest way, which
//!    needs no capacity; ACKs go over the one that is left.
//! 2. Who has capacity to spare shares another's part: every helper stands in each list, behind the one whose part it
//!    is, those with more capacity first.
//! 3. What is left after that is for `get`, `proxy` and `paths`: adding links up is theirs.
//!
//! With one helper all parts are its own. Costs of links are not weighed here: who does not want a link to be used does
//! not name it.

use alloc::vec::Vec;

use crate::link::LinkId;
use crate::units::{Bitrate, Duration};

/// What is known of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) struct LinkCharacteristics {
    /// Which.
    pub(in crate::accel) link: LinkId,
    /// What it brings.
    pub(in crate::accel) down: Bitrate,
    /// What it carries away.
    pub(in crate::accel) up: Bitrate,
    /// Its round trip.
    pub(in crate::accel) rtt: Duration,
}

/// Who does what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::accel) struct Roles {
    /// Over which ACKs go.
    pub(in crate::accel) acks: Vec<LinkId>,
    /// Over which bytes are fetched.
    pub(in crate::accel) fetch: Vec<LinkId>,
    /// Over which the sender is frozen.
    pub(in crate::accel) freeze: Vec<LinkId>,
}

impl Roles {
    /// Of these links, beside the primary one.
    pub(in crate::accel) fn of(links: &[LinkCharacteristics]) -> Self {
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
    fn the_papers_device_with_four_links() {
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
    fn with_one_helper_all_is_its_part() {
        let roles = Roles::of(&[link(UMTS, 900_000, 400_000, 150)]);
        assert_eq!((roles.acks, roles.fetch, roles.freeze), ([UMTS].into(), [UMTS].into(), [UMTS].into()));
        assert!(Roles::of(&[]).acks.is_empty());
    }
}
