//! Axis with round tick values.

/// An axis from zero to `end`, with steps of 1, 2 or 5 times a power of ten.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Axis {
    /// End of the axis, at or above the largest value.
    pub(super) end: f64,
    /// Distance between two ticks.
    pub(super) step: f64,
}

impl Axis {
    /// An axis for values up to `max_value`, with at most `ticks` steps.
    pub(super) fn new(max_value: f64, ticks: u32) -> Self {
        let max_value = if max_value.is_finite() && max_value > 0.0 { max_value } else { 1.0 };
        let rough = max_value / f64::from(ticks);
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|n| n * power).find(|step| *step >= rough * 0.999_999);
        let step = step.unwrap_or(10.0 * power);
        Self { end: (max_value / step * 0.999_999).ceil() * step, step }
    }

    /// Tick positions and their labels.
    pub(super) fn ticks(self) -> Vec<(f64, String)> {
        let digits = if self.step < 0.999_999 { (-self.step.log10()).ceil() as usize } else { 0 };
        let count = (self.end / self.step).round() as u32;
        (0..=count).map(|n| f64::from(n) * self.step).map(|at| (at, format!("{at:.digits$}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        for (most, end, step) in
            [(79.3, 80.0, 20.0), (6.2, 7.0, 1.0), (0.63, 0.7, 0.1), (1.0, 1.0, 0.2), (278.0, 300.0, 50.0)]
        {
            let axis = Axis::new(most, 7);
            assert!((axis.end - end).abs() < 1e-9 && (axis.step - step).abs() < 1e-9, "{most}: {axis:?}");
        }
        assert_eq!(Axis::new(0.0, 5).end, 1.0);
        assert_eq!(Axis::new(f64::NAN, 5).end, 1.0);
        let labels: Vec<String> = Axis::new(0.5, 5).ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5"]);
    }
}
