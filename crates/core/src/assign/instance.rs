//! The boxes, the relays and what could be gained: the problem as plain values.
//!
//! In: what each relay has left, R(s); of each box its own rate, B_o(c), and its candidates with their rates, B_o(c, s)
//! (BASS, table I). Out: an instance that cannot be wrong, with only those candidates in it that anybody may choose.
//!
//! 1. A candidate stays if it brings more than the box has alone and no more than the relay has left: any other one is
//!    in no best plan.
//! 2. All relays together have at most [`Instance::MOST_ROOM`]. Whatever is served fits into them, so that no sum of loads or
//!    gains overflows, and each is exact in floating point too.
//! 3. Boxes and relays are numbered in the order in which they were added. Candidates of a box keep their order.
//! 4. Candidates of all boxes stand one after the other, 12 bytes each; a box adds 12. A million boxes of five need 72 MB.
//!
//! A matrix was not used: a box measures three to eight relays of a thousand.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::units::Bitrate;

/// A relay that a box has measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its number.
    pub relay: usize,
    /// What the box reaches through it: B_o(c, s).
    pub rate: Bitrate,
}

impl Candidate {
    /// What a relay passes on of what a box can send to it: min(B(c, s), B_o(s)) (BASS, Algorithm 1, line 6).
    pub fn through(relay: usize, uplink: Bitrate, onward: Bitrate) -> Self {
        Self { relay, rate: uplink.min(onward) }
    }
}

/// Relays, boxes and candidates.
#[derive(Clone, Debug)]
pub struct Instance {
    room: Vec<Bitrate>,
    own: Vec<Bitrate>,
    /// Where the candidates of each box begin, and where those of the last one end.
    first: Vec<u32>,
    relay: Vec<u32>,
    rate: Vec<Bitrate>,
    /// The box that named a relay last.
    named: Vec<u32>,
}

/// Why something is no part of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InstanceError {
    /// Sums would no longer be exact.
    #[error("the relays have more than {} in all", Instance::MOST_ROOM)]
    TooMuchRoom,
    /// Numbers would no longer fit.
    #[error("more than {} relays, boxes or candidates", Instance::MOST)]
    TooMany,
    /// A candidate that is no relay.
    #[error("box {at} names relay {relay}, and there are {relays}")]
    UnknownRelay {
        /// The box's number.
        at: usize,
        /// What it named.
        relay: usize,
        /// How many there are.
        relays: usize,
    },
    /// One relay with two rates.
    #[error("box {at} names relay {relay} twice")]
    Twice {
        /// The box's number.
        at: usize,
        /// The relay's.
        relay: usize,
    },
}

impl Instance {
    /// What all relays may have together: 2^53 bit/s, nine petabits per second.
    pub const MOST_ROOM: Bitrate = Bitrate::from_bits_per_sec(1 << 53);
    /// How many relays, boxes and candidates there may be.
    pub const MOST: usize = NONE as usize;

    /// No boxes yet, and relays with so much left.
    ///
    /// # Errors
    /// When that is more than [`Self::MOST_ROOM`] in all.
    pub fn new(room: &[Bitrate]) -> Result<Self, InstanceError> {
        if room.iter().copied().sum::<Bitrate>() > Self::MOST_ROOM {
            return Err(InstanceError::TooMuchRoom);
        }
        if room.len() > Self::MOST {
            return Err(InstanceError::TooMany);
        }
        let named = vec![NONE; room.len()];
        Ok(Self { room: room.to_vec(), own: vec![], first: vec![0], relay: vec![], rate: vec![], named })
    }

    /// Adds a box with this rate of its own, and gives its number.
    ///
    /// # Errors
    /// When it names a relay twice, or one that is not there, or there is no number left. The instance then is as before.
    pub fn add(&mut self, own: Bitrate, candidates: &[Candidate]) -> Result<usize, InstanceError> {
        let at = self.own.len();
        if at >= Self::MOST || candidates.len() > Self::MOST - self.relay.len() {
            return Err(InstanceError::TooMany);
        }
        self.check(at, candidates)?;
        for candidate in candidates {
            if candidate.rate > own && candidate.rate <= self.room[candidate.relay] {
                self.relay.push(candidate.relay as u32);
                self.rate.push(candidate.rate);
            }
        }
        self.own.push(own);
        self.first.push(self.relay.len() as u32);
        Ok(at)
    }

    /// How many relays there are.
    pub fn relays(&self) -> usize {
        self.room.len()
    }

    /// How many boxes there are.
    pub fn boxes(&self) -> usize {
        self.own.len()
    }

    /// How many candidates may be chosen, of all boxes.
    pub fn candidates(&self) -> usize {
        self.relay.len()
    }

    /// What a relay has left: R(s).
    pub fn room(&self, relay: usize) -> Bitrate {
        self.room[relay]
    }

    /// What a box has alone: B_o(c).
    pub fn own(&self, at: usize) -> Bitrate {
        self.own[at]
    }

    /// The candidates of a box that may be chosen.
    pub fn of(&self, at: usize) -> impl ExactSizeIterator<Item = Candidate> {
        self.edges(at).map(|edge| Candidate { relay: self.relay_of(edge), rate: self.rate[edge] })
    }

    /// The numbers of a box's candidates among all.
    pub(super) fn edges(&self, at: usize) -> Range<usize> {
        self.first[at] as usize..self.first[at + 1] as usize
    }

    /// The relays and rates of some candidates.
    pub(super) fn lists(&self, edges: Range<usize>) -> (&[u32], &[Bitrate]) {
        (&self.relay[edges.clone()], &self.rate[edges])
    }

    pub(super) fn relay_of(&self, edge: usize) -> usize {
        self.relay[edge] as usize
    }

    pub(super) fn rate_of(&self, edge: usize) -> Bitrate {
        self.rate[edge]
    }

    /// In floating point, exact (rule 2).
    pub(super) fn bits_of(&self, edge: usize) -> f64 {
        exact(self.rate[edge])
    }

    /// As [`Self::bits_of`]; of a box without candidates it may be rounded.
    pub(super) fn own_bits(&self, at: usize) -> f64 {
        exact(self.own[at])
    }

    pub(super) fn room_bits(&self, relay: usize) -> f64 {
        exact(self.room[relay])
    }

    fn check(&mut self, at: usize, candidates: &[Candidate]) -> Result<(), InstanceError> {
        let relays = self.room.len();
        if let Some(unknown) = candidates.iter().find(|candidate| candidate.relay >= relays) {
            return Err(InstanceError::UnknownRelay { at, relay: unknown.relay, relays });
        }
        let mut twice = None;
        for candidate in candidates {
            let before = core::mem::replace(&mut self.named[candidate.relay], at as u32);
            if before == at as u32 {
                twice.get_or_insert(candidate.relay);
            }
        }
        // A box that is refused leaves no trace: its number is given to another one.
        if twice.is_some() {
            candidates.iter().for_each(|candidate| self.named[candidate.relay] = NONE);
        }
        twice.map_or(Ok(()), |relay| Err(InstanceError::Twice { at, relay }))
    }
}

/// No candidate, no relay, no box.
pub(super) const NONE: u32 = u32::MAX;

/// A rate in floating point, without a loss up to 2^53. By way of a signed number, which costs one instruction.
pub(super) fn exact(rate: Bitrate) -> f64 {
    rate.bits_per_sec() as i64 as f64
}
