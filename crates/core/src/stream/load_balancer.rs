//! GreenBag's load balancer: divides a segment so that all links finish at the same time (§IV-B, eq. 1 to 4).
//!
//! It takes the next segment and, for each link, its goodput and the backlog of earlier segments. With two links,
//! `Z_a + Z_b = Z + Z_u` and `Z_a / G_a = Z_b / G_b`, so `Z_a = G_a (Z + Z_u) / (G_a + G_b)`, where Z_b contains the
//! backlog of b. With more links, all have the same finishing time. A link whose backlog already takes longer gets
//! nothing, and the remaining links divide the segment among themselves.

use alloc::vec::Vec;

use crate::fetch::ByteRange;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// A link as the load balancer sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LinkBacklog {
    pub(super) link: LinkId,
    /// G, the goodput of the present subsegment.
    pub(super) goodput: Bitrate,
    /// This link's part of Z_u.
    pub(super) backlog: DataSize,
}

/// Divides `range` into parts, in file order: earlier offsets go to faster links. Parts below [`MIN_PART`] are left to
/// the other links. If no link has a goodput, all parts are equal.
///
/// `requester` is the link that is about to become idle. It gets at least one minimum part; otherwise a link that was
/// slow once would never be measured again.
pub(super) fn divide_segment(
    range: ByteRange,
    requester: LinkId,
    links: &[LinkBacklog],
) -> Vec<(LinkId, ByteRange)> {
    let shares = link_shares(range.len(), links);
    let mut by_goodput: Vec<(LinkBacklog, DataSize)> = links.iter().copied().zip(shares).collect();
    let min_part = MIN_PART.min(range.len());
    // Give the requester a minimum part, taken from the largest share.
    if let Some(at) = by_goodput.iter().position(|(entry, share)| entry.link == requester && *share < min_part) {
        let largest = by_goodput.iter().map(|(_, share)| *share).max().unwrap_or_default();
        let largest_share = by_goodput.iter_mut().find(|(_, share)| *share == largest);
        largest_share.into_iter().for_each(|(_, share)| *share -= min_part);
        by_goodput.get_mut(at).into_iter().for_each(|(_, share)| *share = min_part);
    }
    by_goodput.sort_by_key(|(entry, _)| core::cmp::Reverse(entry.goodput));
    by_goodput.retain(|(_, share)| *share >= MIN_PART);
    if by_goodput.is_empty() {
        let fastest = links.iter().max_by_key(|entry| (entry.goodput, core::cmp::Reverse(entry.link)));
        return fastest.map(|entry| (entry.link, range)).into_iter().collect();
    }
    let (mut parts, mut start) = (Vec::new(), range.start);
    for (at, (entry, share)) in by_goodput.iter().enumerate() {
        let end =
            if at + 1 == by_goodput.len() { range.end } else { range.end.min(start.saturating_add(share.bytes())) };
        parts.push((entry.link, ByteRange::new(start, end)));
        start = end;
    }
    parts.retain(|(_, part)| !part.is_empty());
    parts
}

/// Bytes that each link gets of a segment of `size` bytes.
fn link_shares(size: DataSize, links: &[LinkBacklog]) -> Vec<DataSize> {
    let mut in_use: Vec<bool> = links.iter().map(|entry| !entry.goodput.is_zero()).collect();
    if !in_use.contains(&true) {
        return links.iter().map(|_| size / (links.len() as u64).max(1)).collect();
    }
    // Exclude one link after the other whose backlog exceeds its proportional part, until the rest is consistent.
    loop {
        let used = || links.iter().zip(&in_use).filter(|(_, used)| **used).map(|(entry, _)| entry);
        let sum: Bitrate = used().map(|entry| entry.goodput).sum();
        let total = size + used().map(|entry| entry.backlog).sum();
        let target = |entry: &LinkBacklog| proportional_part(total, entry.goodput, sum);
        let overloaded =
            links.iter().zip(&in_use).position(|(entry, used)| *used && entry.backlog >= target(entry));
        match overloaded {
            Some(at) if in_use.iter().filter(|used| **used).count() > 1 => in_use[at] = false,
            _ => {
                let share = |(entry, used): (&LinkBacklog, &bool)| {
                    if *used { target(entry) - entry.backlog } else { DataSize::ZERO }
                };
                return links.iter().zip(&in_use).map(share).collect();
            }
        }
    }
}

/// `total × rate / sum`, rounded down.
fn proportional_part(total: DataSize, rate: Bitrate, sum: Bitrate) -> DataSize {
    let bytes = u128::from(total.bytes()) * u128::from(rate.bits_per_sec()) / u128::from(sum.bits_per_sec()).max(1);
    DataSize::from_bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Smaller parts are not worth a request of their own.
const MIN_PART: DataSize = DataSize::from_kib(8);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// A link with a goodput of `mbps` Mbit/s and `backlog` bytes still to arrive.
    fn link_backlog(link: u16, mbps: u64, backlog: u64) -> LinkBacklog {
        let unfinished = DataSize::from_bytes(backlog);
        LinkBacklog { link: LinkId(link), goodput: Bitrate::from_mbps(mbps), backlog: unfinished }
    }

    fn range(start: u64, len: u64) -> ByteRange {
        ByteRange::at(start, DataSize::from_bytes(len))
    }

    #[test]
    fn both_links_finish_together() {
        // Z = 500,000 and b has a backlog Z_u = 100,000: Z_a is 4/6 of 600,000, and b's 200,000 contain the 100,000.
        let parts =
            divide_segment(range(1000, 500_000), LinkId(0), &[link_backlog(0, 4, 0), link_backlog(1, 2, 100_000)]);
        assert_eq!(parts, vec![(LinkId(0), range(1000, 400_000)), (LinkId(1), range(401_000, 100_000))]);
    }

    #[test]
    fn the_earlier_part_goes_to_the_faster_link() {
        let parts = divide_segment(range(0, 600_000), LinkId(0), &[link_backlog(0, 2, 0), link_backlog(1, 4, 0)]);
        assert_eq!(parts, vec![(LinkId(1), range(0, 400_000)), (LinkId(0), range(400_000, 200_000))]);
    }

    #[test]
    fn a_link_that_is_behind_gets_nothing() {
        let parts =
            divide_segment(range(0, 300_000), LinkId(0), &[link_backlog(0, 3, 0), link_backlog(1, 3, 900_000)]);
        assert_eq!(parts, vec![(LinkId(0), range(0, 300_000))]);
        // The other two still finish together: 100,000 of 700,000 bytes are already requested.
        let three = divide_segment(
            range(0, 600_000),
            LinkId(0),
            &[link_backlog(0, 4, 0), link_backlog(1, 3, 100_000), link_backlog(2, 1, 500_000)],
        );
        assert_eq!(three, vec![(LinkId(0), range(0, 400_000)), (LinkId(1), range(400_000, 200_000))]);
    }

    #[test]
    fn the_requesting_link_gets_a_minimum_part() {
        let parts = divide_segment(range(0, 500_000), LinkId(0), &[link_backlog(0, 0, 0), link_backlog(1, 5, 0)]);
        assert_eq!(parts, vec![(LinkId(1), range(0, 500_000 - 8192)), (LinkId(0), range(500_000 - 8192, 8192))]);
    }

    #[test]
    fn without_measurements_all_parts_are_equal() {
        let parts = divide_segment(range(0, 100_000), LinkId(0), &[link_backlog(0, 0, 0), link_backlog(1, 0, 0)]);
        assert_eq!(parts, vec![(LinkId(0), range(0, 50_000)), (LinkId(1), range(50_000, 50_000))]);
        assert_eq!(
            divide_segment(range(0, 5000), LinkId(1), &[link_backlog(0, 1, 0), link_backlog(1, 2, 0)]),
            vec![(LinkId(1), range(0, 5000))]
        );
        assert_eq!(divide_segment(range(0, 5000), LinkId(1), &[]), vec![]);
    }

    #[test]
    fn every_byte_is_in_one_part() {
        for size in [1_u64, 9_000, 40_001, 512_000] {
            for (a, b, c) in [(1, 2, 3), (7, 7, 7), (0, 5, 1), (100, 1, 0)] {
                let parts = divide_segment(
                    range(77, size),
                    LinkId(2),
                    &[link_backlog(0, a, 5000), link_backlog(1, b, 90_000), link_backlog(2, c, 0)],
                );
                let mut at = 77;
                for (_, part) in parts {
                    assert_eq!(part.start, at);
                    at = part.end;
                }
                assert_eq!(at, 77 + size);
            }
        }
    }
}
