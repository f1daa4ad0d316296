//! GreenBag's medium load balancer: a segment cut so that all links end together (§IV-B, eq. 1 to 4).
//!
//! In: the next segment, and for each link its goodput and what it still has to bring of earlier ones. Out: a part of
//! the segment for each link that gets one.
//!
//! With two links: `Z_a + Z_b = Z + Z_u` and `Z_a / G_a = Z_b / G_b`, so `Z_a = G_a (Z + Z_u) / (G_a + G_b)`; Z_b
//! contains what b still has to bring. For any number of links it is the same level for all of them; a link that is
//! behind it already gets nothing, and the others share anew.

use alloc::vec::Vec;

use crate::fetch::ByteRange;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// A link as far as sharing is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LinkBacklog {
    pub(super) link: LinkId,
    /// G.
    pub(super) goodput: Bitrate,
    /// Its part of Z_u.
    pub(super) backlog: DataSize,
}

/// The parts of `span`, from the front: earlier offsets go to faster links. Parts too small for a request of their own
/// are left to the others. Without any goodput all parts are equal.
///
/// `by` is the link that is about to have nothing to do: it gets a request's worth at least, or a link that was slow once
/// would never be heard of again.
pub(super) fn divide_segment(
    range: ByteRange,
    requester: LinkId,
    links: &[LinkBacklog],
) -> Vec<(LinkId, ByteRange)> {
    let shares = link_shares(range.len(), links);
    let mut by_goodput: Vec<(LinkBacklog, DataSize)> = links.iter().copied().zip(shares).collect();
    let min_part = MIN_PART.min(range.len());
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

/// What each link gets of `size` bytes.
fn link_shares(size: DataSize, links: &[LinkBacklog]) -> Vec<DataSize> {
    let mut in_use: Vec<bool> = links.iter().map(|entry| !entry.goodput.is_zero()).collect();
    if !in_use.contains(&true) {
        return links.iter().map(|_| size / (links.len() as u64).max(1)).collect();
    }
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

/// `rate / sum` of `whole`, rounded down.
fn proportional_part(total: DataSize, rate: Bitrate, sum: Bitrate) -> DataSize {
    let bytes = u128::from(total.bytes()) * u128::from(rate.bits_per_sec()) / u128::from(sum.bits_per_sec()).max(1);
    DataSize::from_bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Smaller parts are not worth a request.
const MIN_PART: DataSize = DataSize::from_kib(8);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn link_backlog(link: u16, mbps: u64, unfinished: u64) -> LinkBacklog {
        let unfinished = DataSize::from_bytes(unfinished);
        LinkBacklog { link: LinkId(link), goodput: Bitrate::from_mbps(mbps), backlog: unfinished }
    }

    fn span(start: u64, len: u64) -> ByteRange {
        ByteRange::at(start, DataSize::from_bytes(len))
    }

    #[test]
    fn both_links_end_together() {
        // Z = 500,000, b still has Z_u = 100,000: Z_a = 4/6 of 600,000, and b's 200,000 contain the 100,000.
        let parts =
            divide_segment(span(1000, 500_000), LinkId(0), &[link_backlog(0, 4, 0), link_backlog(1, 2, 100_000)]);
        assert_eq!(parts, vec![(LinkId(0), span(1000, 400_000)), (LinkId(1), span(401_000, 100_000))]);
    }

    #[test]
    fn the_earlier_part_is_the_faster_links() {
        let parts = divide_segment(span(0, 600_000), LinkId(0), &[link_backlog(0, 2, 0), link_backlog(1, 4, 0)]);
        assert_eq!(parts, vec![(LinkId(1), span(0, 400_000)), (LinkId(0), span(400_000, 200_000))]);
    }

    #[test]
    fn a_link_that_is_behind_gets_nothing() {
        let parts =
            divide_segment(span(0, 300_000), LinkId(0), &[link_backlog(0, 3, 0), link_backlog(1, 3, 900_000)]);
        assert_eq!(parts, vec![(LinkId(0), span(0, 300_000))]);
        // The two others still end together: 100,000 of 700,000 has come already.
        let three = divide_segment(
            span(0, 600_000),
            LinkId(0),
            &[link_backlog(0, 4, 0), link_backlog(1, 3, 100_000), link_backlog(2, 1, 500_000)],
        );
        assert_eq!(three, vec![(LinkId(0), span(0, 400_000)), (LinkId(1), span(400_000, 200_000))]);
    }

    #[test]
    fn whoever_asks_gets_something() {
        let parts = divide_segment(span(0, 500_000), LinkId(0), &[link_backlog(0, 0, 0), link_backlog(1, 5, 0)]);
        assert_eq!(parts, vec![(LinkId(1), span(0, 500_000 - 8192)), (LinkId(0), span(500_000 - 8192, 8192))]);
    }

    #[test]
    fn with_nothing_measured_all_parts_are_equal() {
        let parts = divide_segment(span(0, 100_000), LinkId(0), &[link_backlog(0, 0, 0), link_backlog(1, 0, 0)]);
        assert_eq!(parts, vec![(LinkId(0), span(0, 50_000)), (LinkId(1), span(50_000, 50_000))]);
        assert_eq!(
            divide_segment(span(0, 5000), LinkId(1), &[link_backlog(0, 1, 0), link_backlog(1, 2, 0)]),
            vec![(LinkId(1), span(0, 5000))]
        );
        assert_eq!(divide_segment(span(0, 5000), LinkId(1), &[]), vec![]);
    }

    #[test]
    fn every_byte_is_in_one_part() {
        for size in [1_u64, 9_000, 40_001, 512_000] {
            for (a, b, c) in [(1, 2, 3), (7, 7, 7), (0, 5, 1), (100, 1, 0)] {
                let parts = divide_segment(
                    span(77, size),
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
