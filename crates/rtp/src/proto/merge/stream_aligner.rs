//! The same content in two streams, found by what it is.
//!
//! In: payloads of both, with their numbers and times. Out: pairs, and how far apart the streams' clocks are.
//!
//! 1. Two sessions with one server begin at random numbers and times (RFC 3550 §5.1), and clocks of senders' reports agree no
//!    better than to some milliseconds. Where the second stream is a layer of the first, payloads are the same to the byte:
//!    that is exact, and says by itself whether it is a layer of it.
//! 2. What occurs twice in one stream (parameter sets, a picture that stands still) tells nothing.
//! 3. Clocks are believed after [`VOTES`] pairs of different times that agree; pairs that disagree weigh against it.

use alloc::collections::{BTreeMap, VecDeque};

/// Shorter payloads are not looked at. chosen: parameter sets and empty pictures are shorter, parts of pictures are not.
const SHORTEST: usize = 64;
/// chosen: chance agrees not even once.
const VOTES: u32 = 3;
/// Payloads that are remembered of each stream. chosen: two seconds of 20 Mbit/s.
const REMEMBERED: usize = 4096;
/// Payloads of both streams without a pair that agrees, after which they are called unrelated. chosen: some ten seconds of a
/// thin stream.
const ENOUGH: u64 = 400;

/// Where a payload stood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) number: u64,
    pub(super) timestamp: u32,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Matching {
    first: Seen,
    second: Seen,
    apart: u32,
    votes: u32,
    voted: Option<u32>,
}

/// Payloads of one stream by their print; those that stood in two places have none.
#[derive(Clone, Debug, Default)]
struct Seen {
    marks: BTreeMap<u64, Option<Mark>>,
    order: VecDeque<u64>,
    count: u64,
}

impl Matching {
    /// One of the first stream; where it stood in the second, if that is known and agrees.
    pub(super) fn first(&mut self, payload: &[u8], mark: Mark) -> Option<Mark> {
        let print = self.first.enter(payload, mark)?;
        let twin = self.second.find(print)?;
        self.vote(mark, twin).then_some(twin)
    }

    /// One of the second stream; where it stood in the first.
    pub(super) fn second(&mut self, payload: &[u8], mark: Mark) -> Option<Mark> {
        let print = self.second.enter(payload, mark)?;
        let twin = self.first.find(print)?;
        self.vote(twin, mark).then_some(twin)
    }

    /// What is to be added to times of the second stream to have the first's; none: not known yet.
    pub(super) fn apart(&self) -> Option<u32> {
        (self.votes >= VOTES).then_some(self.apart)
    }

    /// Whether enough of both was seen to say that they are not of one content.
    pub(super) fn is_hopeless(&self) -> bool {
        self.votes == 0 && self.first.count.min(self.second.count) > ENOUGH
    }

    /// Forgets the first stream: another has taken its place.
    pub(super) fn restart(&mut self) {
        *self = Self { second: core::mem::take(&mut self.second), ..Self::default() };
    }

    fn vote(&mut self, first: Mark, second: Mark) -> bool {
        let apart = first.timestamp.wrapping_sub(second.timestamp);
        // Parts of one picture are one vote.
        if self.voted != Some(second.timestamp) {
            self.voted = Some(second.timestamp);
            if self.votes == 0 {
                self.apart = apart;
            }
            self.votes = if apart == self.apart { (self.votes + 1).min(2 * VOTES) } else { self.votes - 1 };
        }
        self.apart() == Some(apart)
    }
}

impl Seen {
    fn enter(&mut self, payload: &[u8], mark: Mark) -> Option<u64> {
        if payload.len() < SHORTEST {
            return None;
        }
        let print = print(payload);
        self.count += 1;
        match self.marks.get_mut(&print) {
            Some(Some(other)) if *other == mark => {}
            Some(place) => *place = None,
            None => {
                self.marks.insert(print, Some(mark));
                self.order.push_back(print);
            }
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.marks.remove(&oldest);
        }
        self.find(print).map(|_| print)
    }

    fn find(&self, print: u64) -> Option<Mark> {
        self.marks.get(&print).copied().flatten()
    }
}

/// FNV-1a (draft-eastlake-fnv) with 64 bits: both streams are one server's, who has nothing to gain from a collision.
fn print(payload: &[u8]) -> u64 {
    payload
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |print, byte| (print ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u64, timestamp: u32) -> Mark {
        Mark { number, timestamp }
    }

    #[test]
    fn pairs_that_agree_tell_how_far_clocks_are_apart() {
        let mut matching = Matching::default();
        for n in 0..3_u8 {
            let (first, second) = (mark(n.into(), 1000 * u32::from(n)), mark(50, 90 + 1000 * u32::from(n)));
            assert_eq!(matching.apart(), None);
            assert_eq!(matching.first(&[n; 64], first), None);
            assert_eq!(matching.second(&[n; 64], second), (n == 2).then_some(first));
        }
        assert_eq!(matching.apart(), Some(90_u32.wrapping_neg()));
        assert_eq!(matching.second(&[9; 64], mark(60, 7)), None);
        assert_eq!(matching.first(&[9; 64], mark(9, 0)), None, "it disagrees");
    }

    #[test]
    fn what_occurs_twice_or_is_short_tells_nothing() {
        let mut matching = Matching::default();
        for n in 0..9 {
            matching.first(&[7; 100], mark(n, 100 * n as u32));
            matching.first(&[n as u8; 63], mark(n, 100 * n as u32));
            assert_eq!(matching.second(&[7; 100], mark(n, 100 * n as u32)), None);
            assert_eq!(matching.second(&[n as u8; 63], mark(n, 100 * n as u32)), None);
        }
        assert_eq!(matching.apart(), None);
    }

    #[test]
    fn other_content_is_unrelated_in_the_end() {
        let mut matching = Matching::default();
        for n in 0..500_u32 {
            let bytes = n.to_be_bytes().repeat(20);
            matching.first(&bytes, mark(n.into(), n));
            assert_eq!(matching.is_hopeless(), n > 400);
            matching.second(&bytes[1..], mark(n.into(), n));
        }
    }
}
