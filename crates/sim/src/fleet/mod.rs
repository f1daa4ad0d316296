//! Fleets that were never measured: cities, relays near them, boxes and what they would measure.
//!
//! In: how many relays and boxes, how many relays each box measures, the load, a seed. Out: an
//! [`Instance`](marline_core::assign::Instance) of BASS's problem, and new boxes for its churn ([`churn`]).
//!
//! 1. Cities lie on a plane of 4000 km; the n-th largest has a share of 1/n of the people. Relays stand near cities, the larger
//!    first; boxes live near cities by their share.
//! 2. A box's own rate is log-normal, six of ten below 1 Mbit/s (BASS §I). Through relays it reaches 1.2 to 16 times as much, 5.2
//!    in the mean (BASS §V-C: 1.14 to 14.6, 5.11), less with the distance (BASS figure 8), and never more than the relay has to
//!    the box's own origin, one of twenty.
//! 3. A box measures the nearest relays; how many is drawn evenly from a range.
//! 4. The load is what all boxes would send to their best relays over what all relays have. It is set by what relays have.
//!
//! Only figures of BASS's text went into this: nothing that was measured in a network.

pub mod churn;
mod topology;

pub use churn::Churn;
pub use topology::{EdgeSpec, Fleet, FleetSpec, instance};
