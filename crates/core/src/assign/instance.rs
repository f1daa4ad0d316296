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
    capacity: Vec<Bitrate>,
    direct: Vec<Bitrate>,
    /// Where the candidates of each box begin, and where those of the last one end.
    offsets: Vec<u32>,
    relays: Vec<u32>,
    rates: Vec<Bitrate>,
    /// The box that named a relay last.
    last_named_by: Vec<u32>,
}

/// Why something is no part of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InstanceError {
    /// Sums would no longer be exact.
    #[error("the relays have more than {} in all", Instance::MAX_CAPACITY)]
    TooMuchCapacity,
    /// Numbers would no longer fit.
    #[error("more than {} relays, boxes or candidates", Instance::MAX_COUNT)]
    TooMany,
    /// A candidate that is no relay.
    #[error("edge {edge} names relay {relay}, and there are {relays}")]
    UnknownRelay {
        /// The box's number.
        edge: usize,
        /// What it named.
        relay: usize,
        /// How many there are.
        relays: usize,
    },
    /// One relay with two rates.
    #[error("edge {edge} names relay {relay} twice")]
    DuplicateRelay {
        /// The box's number.
        edge: usize,
        /// The relay's.
        relay: usize,
    },
}

impl Instance {
    /// What all relays may have together: 2^53 bit/s, nine petabits per second.
    pub const MAX_CAPACITY: Bitrate = Bitrate::from_bits_per_sec(1 << 53);
    /// How many relays, boxes and candidates there may be.
    pub const MAX_COUNT: usize = NONE as usize;

    /// No boxes yet, and relays with so much left.
    ///
    /// # Errors
    /// When that is more than [`Self::MOST_ROOM`] in all.
    pub fn new(capacity: &[Bitrate]) -> Result<Self, InstanceError> {
        if capacity.iter().copied().sum::<Bitrate>() > Self::MAX_CAPACITY {
            return Err(InstanceError::TooMuchCapacity);
        }
        if capacity.len() > Self::MAX_COUNT {
            return Err(InstanceError::TooMany);
        }
        let named = vec![NONE; capacity.len()];
        Ok(Self {
            capacity: capacity.to_vec(),
            direct: vec![],
            offsets: vec![0],
            relays: vec![],
            rates: vec![],
            last_named_by: named,
        })
    }

    /// Adds a box with this rate of its own, and gives its number.
    ///
    /// # Errors
    /// When it names a relay twice, or one that is not there, or there is no number left. The instance then is as before.
    pub fn add(&mut self, direct: Bitrate, candidates: &[Candidate]) -> Result<usize, InstanceError> {
        let edge = self.direct.len();
        if edge >= Self::MAX_COUNT || candidates.len() > Self::MAX_COUNT - self.relays.len() {
            return Err(InstanceError::TooMany);
        }
        self.check(edge, candidates)?;
        for candidate in candidates {
            if candidate.rate > direct && candidate.rate <= self.capacity[candidate.relay] {
                self.relays.push(candidate.relay as u32);
                self.rates.push(candidate.rate);
            }
        }
        self.direct.push(direct);
        self.offsets.push(self.relays.len() as u32);
        Ok(edge)
    }

    /// How many relays there are.
    pub fn relay_count(&self) -> usize {
        self.capacity.len()
    }

    /// How many boxes there are.
    pub fn edge_count(&self) -> usize {
        self.direct.len()
    }

    /// How many candidates may be chosen, of all boxes.
    pub fn candidate_count(&self) -> usize {
        self.relays.len()
    }

    /// What a relay has left: R(s).
    pub fn capacity(&self, relay: usize) -> Bitrate {
        self.capacity[relay]
    }

    /// What a box has alone: B_o(c).
    pub fn direct_rate(&self, edge: usize) -> Bitrate {
        self.direct[edge]
    }

    /// The candidates of a box that may be chosen.
    pub fn candidates_of(&self, edge: usize) -> impl ExactSizeIterator<Item = Candidate> {
        self.candidate_range(edge)
            .map(|candidate| Candidate { relay: self.relay_of(candidate), rate: self.rates[candidate] })
    }

    /// The numbers of a box's candidates among all.
    pub(super) fn candidate_range(&self, edge: usize) -> Range<usize> {
        self.offsets[edge] as usize..self.offsets[edge + 1] as usize
    }

    /// The relays and rates of some candidates.
    pub(super) fn relays_and_rates(&self, candidates: Range<usize>) -> (&[u32], &[Bitrate]) {
        (&self.relays[candidates.clone()], &self.rates[candidates])
    }

    pub(super) fn relay_of(&self, candidate: usize) -> usize {
        self.relays[candidate] as usize
    }

    pub(super) fn rate_of(&self, candidate: usize) -> Bitrate {
        self.rates[candidate]
    }

    /// In floating point, exact (rule 2).
    pub(super) fn bits_of(&self, candidate: usize) -> f64 {
        to_f64(self.rates[candidate])
    }

    /// As [`Self::bits_of`]; of a box without candidates it may be rounded.
    pub(super) fn direct_bits(&self, edge: usize) -> f64 {
        to_f64(self.direct[edge])
    }

    pub(super) fn capacity_bits(&self, relay: usize) -> f64 {
        to_f64(self.capacity[relay])
    }

    fn check(&mut self, edge: usize, candidates: &[Candidate]) -> Result<(), InstanceError> {
        let relays = self.capacity.len();
        if let Some(unknown) = candidates.iter().find(|candidate| candidate.relay >= relays) {
            return Err(InstanceError::UnknownRelay { edge, relay: unknown.relay, relays });
        }
        let mut duplicate = None;
        for candidate in candidates {
            let before = core::mem::replace(&mut self.last_named_by[candidate.relay], edge as u32);
            if before == edge as u32 {
                duplicate.get_or_insert(candidate.relay);
            }
        }
        // A box that is refused leaves no trace: its number is given to another one.
        if duplicate.is_some() {
            candidates.iter().for_each(|candidate| self.last_named_by[candidate.relay] = NONE);
        }
        duplicate.map_or(Ok(()), |relay| Err(InstanceError::DuplicateRelay { edge, relay }))
    }
}

/// No candidate, no relay, no box.
pub(super) const NONE: u32 = u32::MAX;

/// A rate in floating point, without a loss up to 2^53. By way of a signed number, which costs one instruction.
pub(super) fn to_f64(rate: Bitrate) -> f64 {
    rate.bits_per_sec() as i64 as f64
}
