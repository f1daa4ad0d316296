//! Clairvoyant optima: the best results possible if the rates of all links are known in advance.
//!
//! For a [`PlaybackCase`] (capacity of each link over time, the video, the player's start threshold) this module
//! computes the minimum playback time P* ([`PlaybackCase::min_playback_time`]) and the minimum energy E*(P) for a
//! given playback time ([`PlaybackCase::min_energy`]). No policy can do better. [`transfer`] has the minimum energy
//! of a plain download within a time limit. [`mdp`] is a published scheduler that knows only the probabilities of
//! rates.
//!
//! 1. A schedule yields a curve A(t) of bytes delivered in order. With d = P − duration, playback within P needs
//!    A(d) ≥ min(B, L) and A(t) ≥ V(t − d) for every t. V is the video's decoding curve, B the start threshold and
//!    L the length of the video. A proxy that delivers nothing before d makes this sufficient: the player then
//!    starts at d and never stalls.
//! 2. So P* = d* + duration with d* = max(t_B, max over s of arr(V(s)) − s). Here arr(k) is the time when all links
//!    together have carried k, and t_B is arr(min(B, L)). Greedy delivery can be worse: after a stall the player
//!    waits for B again.
//! 3. Energy is α per bit, plus β for the time a link needs for it at its current rate (GreenBag eq. 5), plus a
//!    tail after each burst for at most one link. [`energy`] finds E* by dynamic programming.
//! 4. Nothing else is modelled: no RTT, no slow start, no requests, as in [`crate::lower_bound`].
//!
//! A linear program does not work, because the cost of one tail per burst is not convex.

mod capacity;
pub mod energy;
pub mod mdp;
mod playback_time;
#[cfg(test)]
mod tests;
pub mod transfer;

use marline_core::playback::MediaProfile;
use marline_core::units::DataSize;

pub use capacity::CapacityCurve;
pub use energy::{Grid, OptimalEnergy};
pub use transfer::Transfer;

/// A video to be played over links whose future rates are known.
#[derive(Clone, Debug)]
pub struct PlaybackCase {
    /// Capacity of each link over time, without protocol overhead.
    pub links: Vec<CapacityCurve>,
    /// The video's rate over time.
    pub video: MediaProfile,
    /// B: the player starts when it has buffered this much.
    pub start_threshold: DataSize,
}

impl PlaybackCase {
    /// Bits that must have arrived before the player starts: min(B, L).
    fn start_bits(&self) -> f64 {
        bits(self.start_threshold.min(self.video.size()))
    }

    /// Bits that all links together have carried after `at` seconds.
    fn carried(&self, at: f64) -> f64 {
        self.links.iter().map(|link| link.carried_bits(at)).sum()
    }
}

fn bits(size: DataSize) -> f64 {
    size.bytes() as f64 * 8.0
}
