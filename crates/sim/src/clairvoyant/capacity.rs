//! Capacity of one link over time, known in advance.
//!
//! A [`CapacityCurve`] is built from rates that each hold for one step, or from the payload curve of a simulated
//! link. It returns how many bits the link has carried by any moment.

use marline_core::units::{Bitrate, DataSize, Duration};

use crate::lower_bound::PayloadCurve;

/// Payload rate per step of time; the last rate holds forever.
#[derive(Clone, Debug)]
pub struct CapacityCurve {
    /// In order of time, without gaps.
    steps: Vec<RateStep>,
}

#[derive(Clone, Copy, Debug)]
/// A period of constant rate: its start in seconds, the bits carried before it, and its rate in bit/s.
pub(super) struct RateStep {
    pub(super) start: f64,
    pub(super) carried_before: f64,
    pub(super) rate: f64,
}

impl CapacityCurve {
    /// A curve whose rate never changes.
    pub fn constant(rate: Bitrate) -> Self {
        Self::from_steps(Duration::from_secs(1), [rate])
    }

    /// Applies each rate for one `step` and the last one forever. Without rates, nothing is ever carried.
    pub fn from_steps(step: Duration, rates: impl IntoIterator<Item = Bitrate>) -> Self {
        let mut steps: Vec<RateStep> = Vec::new();
        let mut carried_before = 0.0;
        for (at, rate) in rates.into_iter().enumerate() {
            let rate = rate.bits_per_sec() as f64;
            steps.push(RateStep { start: at as f64 * step.as_secs_f64(), carried_before, rate });
            carried_before += rate * step.as_secs_f64();
        }
        Self { steps }
    }

    /// Samples a link's payload curve in steps up to `horizon`; beyond it, the rate of the last step holds.
    pub fn from_payload_curve(curve: &PayloadCurve, step: Duration, horizon: Duration) -> Self {
        let count = horizon.as_nanos().div_ceil(step.as_nanos().max(1)).max(1);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let carried_in_step = |at: u32| -> DataSize { curve.carried(step * (at + 1)) - curve.carried(step * at) };
        Self::from_steps(step, (0..count).map(|at| carried_in_step(at) / step))
    }

    /// Bits carried from the beginning until `at` seconds.
    pub(crate) fn carried_bits(&self, at: f64) -> f64 {
        let index = self.steps.partition_point(|step| step.start <= at).checked_sub(1);
        index
            .and_then(|last| self.steps.get(last))
            .map_or(0.0, |step| step.carried_before + step.rate * (at - step.start))
    }

    /// Times at which the rate changes, in seconds.
    pub(super) fn change_times(&self) -> impl Iterator<Item = f64> {
        self.steps.iter().map(|step| step.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::LinkSpec;

    #[test]
    fn a_sampled_link_carries_what_its_curve_does() {
        let link: LinkSpec = "w,rate=12Mbit/s,steps=3s:6Mbit/s".parse().unwrap();
        let curve = PayloadCurve::new(&link, &[]);
        let supply = CapacityCurve::from_payload_curve(&curve, Duration::from_millis(500), Duration::from_secs(10));
        for at in [0.3, 2.75, 3.0, 4.1, 9.0, 12.0] {
            let exact = curve.carried(Duration::from_secs_f64(at)).bytes() as f64 * 8.0;
            assert!((supply.carried_bits(at) - exact).abs() < 400.0, "{at}: {} {exact}", supply.carried_bits(at));
        }
    }

    #[test]
    fn without_rates_nothing_is_carried() {
        assert_eq!(CapacityCurve::from_steps(Duration::from_secs(1), []).carried_bits(9.0), 0.0);
        let one = CapacityCurve::from_steps(Duration::from_secs(2), [Bitrate::from_mbps(1), Bitrate::ZERO]);
        assert_eq!((one.carried_bits(1.0), one.carried_bits(50.0)), (1e6, 2e6));
    }
}
