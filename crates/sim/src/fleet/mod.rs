//! Synthetic fleets: cities, relays near them, and edges with the rates that they would measure.
//!
//! From the numbers of relays, edges and candidates per edge, the load and a seed, this module generates an
//! [`Instance`](marline_core::assign::Instance) of BASS's assignment problem, and further edges for its churn
//! ([`churn`]).
//!
//! 1. Cities lie on a plane with sides of 4000 km; the population of the n-th largest is proportional to 1/n. Every
//!    city has a relay, and the other relays and all edges are distributed by population.
//! 2. An edge's direct rate is log-normal, in six of ten cases below 1 Mbit/s (BASS §I). Through relays it reaches
//!    1.2 to 16 times as much, 5.2 on average (BASS §V-C: 1.14 to 14.6, 5.11). The rate falls with the distance
//!    (BASS figure 8) and never exceeds the relay's rate to the edge's origin server, one of twenty.
//! 3. An edge measures its nearest relays; their number is drawn uniformly from a range.
//! 4. The load is the demand of all edges at their best relays, divided by the total capacity of the relays. It
//!    determines this capacity.
//!
//! The model uses only figures from the text of BASS, no measurements of a network.

pub mod churn;
pub mod histories;
mod topology;

pub use churn::Churn;
pub use topology::{EdgeSpec, Fleet, FleetSpec, instance};
