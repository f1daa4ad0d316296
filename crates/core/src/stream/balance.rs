//! GreenBag's medium load balancer: a segment cut so that all links end together (§IV-B, eq. 1 to 4).
//!
//! In: the next segment, and for each link its goodput and what it still has to bring of earlier ones. Out: a part of
//! the segment for each link that gets one.
//!
//! With two links: `Z_a + Z_b = Z + Z_u` and `Z_a / G_a = Z_b / G_b`, so `Z_a = G_a (Z + Z_u) / (G_a + G_b)`; Z_b
//! contains what b still has to bring. For any number of links it is the same level for all of them; a link that is
//! behind it already gets nothing, and the others share anew.

use alloc::vec::Vec;

use crate::fetch::Span;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// A link as far as sharing is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hand {
    pub(super) link: LinkId,
    /// G.
    pub(super) goodput: Bitrate,
    /// Its part of Z_u.
    pub(super) unfinished: DataSize,
}

/// The parts of `span`, from the front: earlier offsets go to faster links. Parts too small for a request of their own
/// are left to the others. Without any goodput all parts are equal.
///
/// `by` is the link that is about to have nothing to do: it gets a request's worth at least, or a link that was slow once
/// would never be heard of again.
pub(super) fn divide(span: Span, by: LinkId, hands: &[Hand]) -> Vec<(LinkId, Span)> {
    let shares = shares(span.len(), hands);
    let mut order: Vec<(Hand, DataSize)> = hands.iter().copied().zip(shares).collect();
    let least = LEAST_PART.min(span.len());
    if let Some(at) = order.iter().position(|(hand, share)| hand.link == by && *share < least) {
        let most = order.iter().map(|(_, share)| *share).max().unwrap_or_default();
        let richest = order.iter_mut().find(|(_, share)| *share == most);
        richest.into_iter().for_each(|(_, share)| *share -= least);
        order.get_mut(at).into_iter().for_each(|(_, share)| *share = least);
    }
    order.sort_by_key(|(hand, _)| core::cmp::Reverse(hand.goodput));
    order.retain(|(_, share)| *share >= LEAST_PART);
    if order.is_empty() {
        let fastest = hands.iter().max_by_key(|hand| (hand.goodput, core::cmp::Reverse(hand.link)));
        return fastest.map(|hand| (hand.link, span)).into_iter().collect();
    }
    let (mut parts, mut start) = (Vec::new(), span.start);
    for (at, (hand, share)) in order.iter().enumerate() {
        let end = if at + 1 == order.len() { span.end } else { span.end.min(start.saturating_add(share.bytes())) };
        parts.push((hand.link, Span::new(start, end)));
        start = end;
    }
    parts.retain(|(_, part)| !part.is_empty());
    parts
}

/// What each link gets of `size` bytes.
fn shares(size: DataSize, hands: &[Hand]) -> Vec<DataSize> {
    let mut in_use: Vec<bool> = hands.iter().map(|hand| !hand.goodput.is_zero()).collect();
    if !in_use.contains(&true) {
        return hands.iter().map(|_| size / (hands.len() as u64).max(1)).collect();
    }
    loop {
        let used = || hands.iter().zip(&in_use).filter(|(_, used)| **used).map(|(hand, _)| hand);
        let sum: Bitrate = used().map(|hand| hand.goodput).sum();
        let all = size + used().map(|hand| hand.unfinished).sum();
        let target = |hand: &Hand| part(all, hand.goodput, sum);
        let behind = hands.iter().zip(&in_use).position(|(hand, used)| *used && hand.unfinished >= target(hand));
        match behind {
            Some(at) if in_use.iter().filter(|used| **used).count() > 1 => in_use[at] = false,
            _ => {
                let share = |(hand, used): (&Hand, &bool)| {
                    if *used { target(hand) - hand.unfinished } else { DataSize::ZERO }
                };
                return hands.iter().zip(&in_use).map(share).collect();
            }
        }
    }
}

/// `rate / sum` of `whole`, rounded down.
fn part(whole: DataSize, rate: Bitrate, sum: Bitrate) -> DataSize {
    let bytes = u128::from(whole.bytes()) * u128::from(rate.bits_per_sec()) / u128::from(sum.bits_per_sec()).max(1);
    DataSize::from_bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Smaller parts are not worth a request.
const LEAST_PART: DataSize = DataSize::from_kib(8);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn hand(link: u16, mbps: u64, unfinished: u64) -> Hand {
        let unfinished = DataSize::from_bytes(unfinished);
        Hand { link: LinkId(link), goodput: Bitrate::from_mbps(mbps), unfinished }
    }

    fn span(start: u64, len: u64) -> Span {
        Span::at(start, DataSize::from_bytes(len))
    }

    #[test]
    fn both_links_end_together() {
        // Z = 500,000, b still has Z_u = 100,000: Z_a = 4/6 of 600,000, and b's 200,000 contain the 100,000.
        let parts = divide(span(1000, 500_000), LinkId(0), &[hand(0, 4, 0), hand(1, 2, 100_000)]);
        assert_eq!(parts, vec![(LinkId(0), span(1000, 400_000)), (LinkId(1), span(401_000, 100_000))]);
    }

    #[test]
    fn the_earlier_part_is_the_faster_links() {
        let parts = divide(span(0, 600_000), LinkId(0), &[hand(0, 2, 0), hand(1, 4, 0)]);
        assert_eq!(parts, vec![(LinkId(1), span(0, 400_000)), (LinkId(0), span(400_000, 200_000))]);
    }

    #[test]
    fn a_link_that_is_behind_gets_nothing() {
        let parts = divide(span(0, 300_000), LinkId(0), &[hand(0, 3, 0), hand(1, 3, 900_000)]);
        assert_eq!(parts, vec![(LinkId(0), span(0, 300_000))]);
        // The two others still end together: 100,000 of 700,000 has come already.
        let three = divide(span(0, 600_000), LinkId(0), &[hand(0, 4, 0), hand(1, 3, 100_000), hand(2, 1, 500_000)]);
        assert_eq!(three, vec![(LinkId(0), span(0, 400_000)), (LinkId(1), span(400_000, 200_000))]);
    }

    #[test]
    fn whoever_asks_gets_something() {
        let parts = divide(span(0, 500_000), LinkId(0), &[hand(0, 0, 0), hand(1, 5, 0)]);
        assert_eq!(parts, vec![(LinkId(1), span(0, 500_000 - 8192)), (LinkId(0), span(500_000 - 8192, 8192))]);
    }

    #[test]
    fn with_nothing_measured_all_parts_are_equal() {
        let parts = divide(span(0, 100_000), LinkId(0), &[hand(0, 0, 0), hand(1, 0, 0)]);
        assert_eq!(parts, vec![(LinkId(0), span(0, 50_000)), (LinkId(1), span(50_000, 50_000))]);
        assert_eq!(
            divide(span(0, 5000), LinkId(1), &[hand(0, 1, 0), hand(1, 2, 0)]),
            vec![(LinkId(1), span(0, 5000))]
        );
        assert_eq!(divide(span(0, 5000), LinkId(1), &[]), vec![]);
    }

    #[test]
    fn every_byte_is_in_one_part() {
        for size in [1_u64, 9_000, 40_001, 512_000] {
            for (a, b, c) in [(1, 2, 3), (7, 7, 7), (0, 5, 1), (100, 1, 0)] {
                let parts =
                    divide(span(77, size), LinkId(2), &[hand(0, a, 5000), hand(1, b, 90_000), hand(2, c, 0)]);
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
