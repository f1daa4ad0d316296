//! Decisions of the local proxy: which link a connection uses, what the player has and needs, and when it may start.
//!
//! The proxy's driver owns connections, windows and clocks. It passes offsets, rates and times to the values of this
//! module and acts on what they return:
//!
//! - [`LinkSelector`] ranks the links for a connection that is not media.
//! - [`PlayerEstimator`] derives the position and the buffer of a player from what it reads.
//! - [`StartupGate`] delays the start of playback once if the links are slower than the video.
//! - [`SegmentRates`] learns link rates across segments, each of which is too short for an estimate of its own.
//!
//! They are plain values and no state machines ([`crate::machine::Machine`]), because they have no timers: the driver calls
//! them when a request or a sample arrives.

mod link_selector;
mod player_estimator;
mod segment_rates;
mod startup_gate;

pub use link_selector::{Candidate, ClientHost, LinkSelector, SpreadMode, UnknownSpreadMode};
pub use player_estimator::{PlayerEstimator, PlayerStatus};
pub use segment_rates::SegmentRates;
pub use startup_gate::{HeldVideo, StartDecision, StartMode, StartupGate, UnknownStartMode};
