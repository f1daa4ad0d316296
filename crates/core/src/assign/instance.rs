//! Problem instance: relays with their capacities, and edges with their direct rates and candidates.
//!
//! It holds the free capacity of each relay, R(s), and for each edge its direct rate, B_o(c), and its candidates
//! with their rates, B_o(c, s) (BASS, table I). An instance is always consistent and contains only candidates that
//! a solution may use.
//!
//! 1. A candidate is kept if its rate exceeds the edge's direct rate but not the relay's capacity. Other candidates
//!    gain nothing or never fit.
//! 2. All relays together have at most [`Instance::MAX_CAPACITY`]. All loads fit into it, so that no sum of loads
//!    or gains overflows, and each sum is exact in floating point too.
//! 3. Edges and relays are numbered in the order in which they were added. The candidates of an edge keep their
//!    order.
//! 4. The candidates of all edges are stored consecutively, 12 bytes each; an edge adds 12 bytes. A million edges
//!    with five candidates each need 72 MB.
//!
//! A matrix was rejected: an edge measures three to eight of a thousand relays.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::units::Bitrate;

/// A relay that an edge has measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Number of the relay.
    pub relay: usize,
    /// Rate that the edge reaches through it: B_o(c, s).
    pub rate: Bitrate,
}

impl Candidate {
    /// The rate through a relay is limited by the uplink to it and by its onward rate: min(B(c, s), B_o(s)) (BASS,
    /// Algorithm 1, line 6).
    pub fn through(relay: usize, uplink: Bitrate, onward: Bitrate) -> Self {
        Self { relay, rate: uplink.min(onward) }
    }
}

/// Relays, edges and candidates of an assignment problem.
#[derive(Clone, Debug)]
pub struct Instance {
    capacity: Vec<Bitrate>,
    direct: Vec<Bitrate>,
    /// Index of the first candidate of each edge, followed by the total number of candidates.
    offsets: Vec<u32>,
    relays: Vec<u32>,
    rates: Vec<Bitrate>,
    /// The last edge that named each relay; detects duplicate relays in one edge.
    last_named_by: Vec<u32>,
}

/// Why a relay or an edge was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InstanceError {
    /// The sum of capacities exceeds the range in which sums are exact.
    #[error("the relays' capacities exceed {} in total", Instance::MAX_CAPACITY)]
    TooMuchCapacity,
    /// The numbers exceed the index type.
    #[error("more than {} relays, edges or candidates", Instance::MAX_COUNT)]
    TooMany,
    /// A candidate names a relay that does not exist.
    #[error("edge {edge} names relay {relay}, but there are only {relays} relays")]
    UnknownRelay {
        /// Number of the edge.
        edge: usize,
        /// Number that the candidate names.
        relay: usize,
        /// Number of relays.
        relays: usize,
    },
    /// An edge names the same relay twice.
    #[error("edge {edge} names relay {relay} twice")]
    DuplicateRelay {
        /// Number of the edge.
        edge: usize,
        /// Number of the relay.
        relay: usize,
    },
}

impl Instance {
    /// Highest sum of all capacities: 2^53 bit/s, nine petabits per second.
    pub const MAX_CAPACITY: Bitrate = Bitrate::from_bits_per_sec(1 << 53);
    /// Highest number of relays, edges and candidates each.
    pub const MAX_COUNT: usize = NONE as usize;

    /// An instance with relays of these capacities and without edges.
    ///
    /// # Errors
    /// If the sum exceeds [`Self::MAX_CAPACITY`], or there are too many relays.
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

    /// Adds an edge with this direct rate, and returns its number.
    ///
    /// # Errors
    /// If it names a relay twice or an unknown relay, or if a maximum is reached. The instance is then unchanged.
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

    /// Number of relays.
    pub fn relay_count(&self) -> usize {
        self.capacity.len()
    }

    /// Number of edges.
    pub fn edge_count(&self) -> usize {
        self.direct.len()
    }

    /// Number of candidates of all edges that a solution may use.
    pub fn candidate_count(&self) -> usize {
        self.relays.len()
    }

    /// Free capacity of a relay: R(s).
    pub fn capacity(&self, relay: usize) -> Bitrate {
        self.capacity[relay]
    }

    /// Rate of an edge without a relay: B_o(c).
    pub fn direct_rate(&self, edge: usize) -> Bitrate {
        self.direct[edge]
    }

    /// Candidates of an edge that a solution may use.
    pub fn candidates_of(&self, edge: usize) -> impl ExactSizeIterator<Item = Candidate> {
        self.candidate_range(edge)
            .map(|candidate| Candidate { relay: self.relay_of(candidate), rate: self.rates[candidate] })
    }

    /// Numbers of an edge's candidates.
    pub(super) fn candidate_range(&self, edge: usize) -> Range<usize> {
        self.offsets[edge] as usize..self.offsets[edge + 1] as usize
    }

    /// Relays and rates of some candidates.
    pub(super) fn relays_and_rates(&self, candidates: Range<usize>) -> (&[u32], &[Bitrate]) {
        (&self.relays[candidates.clone()], &self.rates[candidates])
    }

    pub(super) fn relay_of(&self, candidate: usize) -> usize {
        self.relays[candidate] as usize
    }

    pub(super) fn rate_of(&self, candidate: usize) -> Bitrate {
        self.rates[candidate]
    }

    /// Rate of a candidate in floating point, exact (rule 2).
    pub(super) fn bits_of(&self, candidate: usize) -> f64 {
        to_f64(self.rates[candidate])
    }

    /// Direct rate in floating point. It may be rounded for an edge without candidates.
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
        // The number of a rejected edge is used for the next one, so the marks must be removed.
        if duplicate.is_some() {
            candidates.iter().for_each(|candidate| self.last_named_by[candidate.relay] = NONE);
        }
        duplicate.map_or(Ok(()), |relay| Err(InstanceError::DuplicateRelay { edge, relay }))
    }
}

/// Stands for no candidate, no relay or no edge.
pub(super) const NONE: u32 = u32::MAX;

/// Converts a rate to floating point, exact up to 2^53. The conversion from a signed number is one instruction.
pub(super) fn to_f64(rate: Bitrate) -> f64 {
    rate.bits_per_sec() as i64 as f64
}
