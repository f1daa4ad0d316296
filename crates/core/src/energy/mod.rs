//! Radio energy: device models, the state machine of a radio, and a meter that converts traffic and time into
//! joules.
//!
//! The input is the number of bytes that each link carried in each direction, with times. The result is the energy
//! per link and state, up to now or including the tails that follow, and the energy that further bytes would cost.
//!
//! 1. A radio is idle, in promotion, active, or in a stage of its tail ([`RadioState`]). The first traffic leads
//!    from idle through promotion to active. The tail starts with the last traffic; traffic during the tail makes
//!    the radio active again without a promotion.
//! 2. Traffic at most [`RadioModel::gap`] apart belongs to one transfer, and the radio is active all the time
//!    between. If the distance is longer, all of it is tail (and then idle). The active time of a transfer
//!    therefore extends from its first to its last traffic, as in GreenBag (§IV-B, eq. 5), without a gap at its
//!    end.
//! 3. Active power is affine in the rate: `base + per_bit × rate`. Over a transfer that is `base × active time +
//!    per_bit × bits`, whatever the course of the rate. The meter keeps only these sums (times and bytes, as
//!    integers). Its result therefore does not depend on how the bytes were split into reports, and is equal on
//!    every computer. Above the rates that were measured, a model may continue with a steeper line
//!    ([`SecondSlope`]). There the mean rate of each transfer counts, which again needs only sums.
//! 4. Undecided time is not counted: until the next traffic or the end of the gap, the time since the last traffic
//!    may be active or tail. The energy so far therefore never decreases.
//! 5. Devices whose radios share a part of their base power (eMPTCP's Galaxy S3) draw it once while several radios
//!    are active ([`ConcurrentDraw`]). In all other devices the powers add up.
//!
//! Integrating power over small time steps was rejected: the result would depend on the step, and a step short
//! enough for a promotion would need more computation than the transfer itself.
//!
//! `model` describes radios and devices, `model_file` parses them. `radio` is the state machine of one radio, `meter`
//! combines the radios of a device, and `breakdown` converts times and bytes to joules. `eib` finds the links that need
//! the least energy (eMPTCP).

mod breakdown;
mod eib;
mod meter;
mod model;
mod model_file;
mod radio;
#[cfg(test)]
pub(crate) mod tests;

pub use breakdown::{EnergyBreakdown, RadioEnergy, StateTotals};
pub use eib::{BestLinks, EibRow, EnergyInfoBase};
pub use meter::{LinkLoad, Meter};
pub use model::{
    ConcurrentDraw, Direction, Model, ModelError, PowerCurve, PowerStage, RadioModel, SecondSlope, Tail,
};
pub use model_file::{BUILT_IN, ModelOrigin, ModelSpec, ModelSpecError};
pub use radio::{Radio, RadioState};
