//! What a clairvoyant could do: the least playback time of a video, and the least energy within a playback time; and
//! the least energy of a plain [`transfer`] within a time. And one published scheduler that knows only chances ([`mdp`]).
//!
//! In: a [`Case`]: what each link carries at each moment, the video, the player's low threshold. Out: P*
//! ([`Case::least_playback`]) and E*(P) ([`Case::least_energy`]), which no policy beats.
//!
//! 1. Any schedule gives an in-order curve A(t). With d = P − duration, playback by P needs A(d) ≥ min(B, L) and
//!    A(t) ≥ V(t − d) for every t, where V is the video's decoding curve; and a proxy that hands nothing over before d
//!    makes that enough: the player then starts at d and never stalls.
//! 2. So P* = d* + duration with d* = max(t_B, max over s of arr(V(s)) − s), where arr(k) is when all links together
//!    have carried k. Greedy delivery is not always as good: after a stall the player waits for B again.
//! 3. Energy is α for each bit and β for the time a link needs for it at its rate of that moment (GreenBag eq. 5), and
//!    for at most one link a tail after each burst. E* is found by dynamic programming; see [`energy`].
//! 4. Nothing else counts: no round trips, no slow start, no requests, as in [`crate::lower_bound`].
//!
//! A linear program was not used: tails are paid per burst, which is not convex.

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

/// A video to be played over links whose every rate is known.
#[derive(Clone, Debug)]
pub struct PlaybackCase {
    /// What each link carries.
    pub links: Vec<CapacityCurve>,
    /// The video.
    pub video: MediaProfile,
    /// The player's B.
    pub start_threshold: DataSize,
}

impl PlaybackCase {
    /// Bits that must have come before the player starts: min(B, L).
    fn start_bits(&self) -> f64 {
        bits(self.start_threshold.min(self.video.size()))
    }

    /// Bits that all links together carry by `at`, in seconds.
    fn carried(&self, at: f64) -> f64 {
        self.links.iter().map(|link| link.carried_bits(at)).sum()
    }
}

fn bits(size: DataSize) -> f64 {
    size.bytes() as f64 * 8.0
}
