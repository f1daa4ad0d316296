//! What radios draw: device models, the states of a radio, and a meter that turns bytes and time into joules.
//!
//! In: which link carried how many bytes in which direction, and when. Out: joules per link and per state, so far or
//! with the tails to come, and what further bytes would cost now.
//!
//! 1. A radio is idle, in promotion, active, or in one of its tail stages ([`State`]). The first sign of traffic leads
//!    from idle through promotion to active; the tail's clock starts with the last one, and traffic in the tail leads
//!    back to active without a promotion.
//! 2. Two signs of traffic at most [`RadioModel::gap`] apart belong to one transfer: all the time between them is
//!    active. Further apart, all of it is tail (and then idle). So the active time of a transfer reaches from its first
//!    sign to its last one, as GreenBag (§IV-B, eq. 5) counts it, and not a gap longer.
//! 3. Active power is affine in the rate: `base + per_bit × rate`. Over a transfer that is `base × active time + per_bit
//!    × bits`, whatever the rate did in between. The meter keeps only these sums (times and bytes, as integers), so its
//!    answer does not depend on how the bytes were cut into pieces, and is equal on every machine.
//!    A model may go on with a steeper line above the rates that it was measured at ([`Beyond`]); there the mean rate of
//!    each transfer counts, which again is a matter of sums.
//! 4. What is not decided is not counted: until the next sign comes or the gap is over, nobody knows whether the time
//!    since the last sign was active or tail. Energy so far therefore never falls.
//! 5. Devices whose radios share a part of their base power (eMPTCP's Galaxy S3) pay it once while several are active
//!    ([`Together`]); in all others the powers add up.
//!
//! Integrating power over small steps of time was not used: the answer would depend on the step, and a step small enough
//! for a promotion would cost more than the transfer's own decisions.

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
