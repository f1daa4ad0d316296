//! Which link does what, where there are three or more (Super-aggregation §8).
//!
//! In: what is known of each link. Out: the primary one, and for each part those that do it, the first one first.
//!
//! 1. The primary link is the one that brings most. Of several that bring about as much (within a fifth) it is the one
//!    that is there most of the time.
//! 2. Bytes are mirrored over the helper that brings most; the sender is frozen over the one with the shortest way, which
//!    needs no capacity; ACKs go over the one that is left.
//! 3. Who has capacity to spare shares another's part: every helper stands in each list, behind the one whose part it
//!    is, those with more capacity first.
//! 4. What is left after that is for `get`, `proxy` and `paths`: adding links up is theirs.
//!
//! With one helper all parts are its own. Costs of links are not weighed here: who does not want a link to be used does
//! not name it.

use alloc::vec::Vec;

use crate::link::LinkId;
use crate::units::{Bitrate, Duration, Ratio};

/// What is known of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits {
    /// Which.
    pub link: LinkId,
    /// What it brings.
    pub down: Bitrate,
    /// What it carries away.
    pub up: Bitrate,
    /// Its round trip.
    pub rtt: Duration,
    /// For how much of the time it is there.
    pub there: Ratio,
}

/// Who does what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roles {
    /// The link whose flows are helped.
    pub primary: LinkId,
    /// Over which ACKs go.
    pub acks: Vec<LinkId>,
    /// Over which bytes are fetched.
    pub mirror: Vec<LinkId>,
    /// Over which the sender is frozen.
    pub freeze: Vec<LinkId>,
}

impl Roles {
    /// Of these links; none if there are none.
    pub fn of(links: &[Traits]) -> Option<Self> {
        let most = links.iter().map(|link| link.down).max()?;
        let alike = links.iter().filter(|link| link.down >= most.share(ALIKE));
        let primary = alike.max_by(|a, b| a.there.cmp(&b.there).then(a.down.cmp(&b.down)))?.link;
        Some(Self::beside(primary, links))
    }

    /// The same where the primary link was chosen by somebody.
    pub fn beside(primary: LinkId, links: &[Traits]) -> Self {
        let mut helpers: Vec<Traits> = links.iter().copied().filter(|link| link.link != primary).collect();
        helpers.sort_by_key(|link| core::cmp::Reverse((link.down, link.up)));
        let mirror = helpers.first().map(|link| link.link);
        let near = helpers.iter().filter(|link| Some(link.link) != mirror).min_by_key(|link| link.rtt);
        let freeze = near.map(|link| link.link).or(mirror);
        let left = helpers.iter().find(|link| Some(link.link) != mirror && Some(link.link) != freeze);
        let acks = left.map(|link| link.link).or(freeze);
        let behind = |first: Option<LinkId>| {
            let others = helpers.iter().map(|link| link.link).filter(move |link| Some(*link) != first);
            first.into_iter().chain(others).collect()
        };
        Self { primary, acks: behind(acks), mirror: behind(mirror), freeze: behind(freeze) }
    }
}

/// chosen: closer than that, rates change places from minute to minute.
const ALIKE: Ratio = Ratio::from_percent(80);

#[cfg(test)]
mod tests {
    use super::*;

    const WIFI: LinkId = LinkId(0);
    const WIMAX: LinkId = LinkId(1);
    const UMTS: LinkId = LinkId(2);
    const BLUETOOTH: LinkId = LinkId(3);

    fn link(link: LinkId, down: u64, up: u64, rtt: u64) -> Traits {
        let rate = Bitrate::from_bits_per_sec;
        Traits {
            link,
            down: rate(down),
            up: rate(up),
            rtt: Duration::from_millis(rtt),
            there: Ratio::from_percent(99),
        }
    }

    fn four() -> [Traits; 4] {
        [
            link(BLUETOOTH, 700_000, 700_000, 20),
            link(WIMAX, 6_000_000, 1_000_000, 80),
            link(UMTS, 900_000, 400_000, 150),
            link(WIFI, 100_000_000, 100_000_000, 5),
        ]
    }

    #[test]
    fn the_papers_device_with_four_links() {
        let roles = Roles::of(&four()).unwrap();
        assert_eq!(roles.primary, WIFI);
        assert_eq!(roles.mirror, [WIMAX, UMTS, BLUETOOTH]);
        assert_eq!(roles.freeze, [BLUETOOTH, WIMAX, UMTS]);
        assert_eq!(roles.acks, [UMTS, WIMAX, BLUETOOTH], "WiMAX shares the load of 3G");
    }

    #[test]
    fn with_one_helper_all_is_its_part() {
        let [_, _, umts, wifi] = four();
        let roles = Roles::of(&[umts, wifi]).unwrap();
        assert_eq!((roles.acks, roles.mirror, roles.freeze), ([UMTS].into(), [UMTS].into(), [UMTS].into()));
        let alone = Roles::of(&[wifi]).unwrap();
        assert!(alone.acks.is_empty() && alone.primary == WIFI);
        assert_eq!(Roles::of(&[]), None);
    }

    #[test]
    fn of_equal_links_the_one_that_is_there_more_is_the_primary_one() {
        let often = Traits { there: Ratio::from_percent(90), ..link(WIFI, 20_000_000, 20_000_000, 5) };
        let always = link(WIMAX, 17_000_000, 17_000_000, 5);
        assert_eq!(Roles::of(&[often, always]).unwrap().primary, WIMAX);
        let slower = Traits { down: Bitrate::from_mbps(15), ..always };
        assert_eq!(Roles::of(&[often, slower]).unwrap().primary, WIFI);
    }
}
