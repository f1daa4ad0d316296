//! The statistics that tables need.
//!
//! 1. Every function returns `None` for an empty list.
//! 2. Quantiles are interpolated linearly between neighbors (the default of scipy and spreadsheets).
//! 3. The standard deviation is that of a sample (n − 1); a single value has none.

/// The median.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The value below which this share of the values lies (0 to 1).
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = share.clamp(0.0, 1.0) * (sorted.len().checked_sub(1)? as f64);
    let low = *sorted.get(position.floor() as usize)?;
    let high = *sorted.get(position.ceil() as usize)?;
    Some(low + (high - low) * position.fract())
}

/// The arithmetic mean.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The sample standard deviation.
pub fn std_dev(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// The coefficient of variation in percent: standard deviation divided by mean.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|mean| *mean != 0.0)?;
    std_dev(values).map(|sigma| sigma / mean * 100.0)
}

/// Minimum and maximum.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let min = values.iter().copied().min_by(f64::total_cmp)?;
    let max = values.iter().copied().max_by(f64::total_cmp)?;
    Some((min, max))
}

/// Area under the points `(x, y)`, sorted by x, by the trapezoidal rule.
pub fn integral(points: &[(f64, f64)]) -> f64 {
    points.windows(2).map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_lists() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let values: Vec<f64> = (1..=21).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.05), Some(2.0));
        assert_eq!(quantile(&values, 0.9), Some(19.0));
        assert_eq!((quantile(&values, 0.0), quantile(&values, 2.0)), (Some(1.0), Some(21.0)));
    }

    #[test]
    fn deviations_are_those_of_a_sample() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert!((std_dev(&values).unwrap() - 2.138_09).abs() < 1e-5);
        assert!((coefficient_of_variation(&values).unwrap() - 42.761_8).abs() < 1e-3);
        assert_eq!((std_dev(&[1.0]), std_dev(&[]), coefficient_of_variation(&[0.0, 0.0])), (None, None, None));
    }

    #[test]
    fn areas_and_ranges() {
        assert_eq!(integral(&[(0.0, 0.0), (2.0, 2.0), (3.0, 2.0)]), 4.0);
        assert_eq!(integral(&[(1.0, 5.0)]), 0.0);
        assert_eq!(range(&[2.0, -1.0, 5.0]), Some((-1.0, 5.0)));
        assert_eq!(range(&[]), None);
    }
}
