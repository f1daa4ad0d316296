//! A client's processor and memory over time, as the thesis's chapter 6 gives them.

use serde::{Deserialize, Serialize};

use super::stats;

/// The client at one moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProcessSample {
    /// Seconds since it was started.
    pub at_s: f64,
    /// Processor time since the sample before, over the time since then, in percent of one core.
    pub cpu_percent: f64,
    /// Resident memory.
    pub rss_bytes: u64,
}

/// What the samples of one run come to (thesis §3.4). Percentages are of one core; memory is in units of 1000 bytes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// The median.
    pub cpu_p50: f64,
    /// The coefficient of variation; none for a single sample.
    pub cpu_cv: Option<f64>,
    /// Percent × seconds.
    pub cpu_integral: f64,
    /// The largest.
    pub cpu_max: f64,
    /// Nine of ten samples lie below.
    pub cpu_p90: f64,
    /// One of twenty samples lies below.
    pub cpu_p05: f64,
    /// The median.
    pub memory_median: f64,
    /// The coefficient of variation; none for a single sample.
    pub memory_cv: Option<f64>,
    /// Kilobytes × seconds.
    pub memory_integral: f64,
}

impl ProcessUsage {
    /// The figures of a run; none without a sample. Integrals reach from the start to the last sample.
    pub fn from_samples(samples: &[ProcessSample]) -> Option<Self> {
        let cpu: Vec<f64> = samples.iter().map(|sample| sample.cpu_percent).collect();
        let memory: Vec<f64> = samples.iter().map(|sample| sample.rss_bytes as f64 / 1000.0).collect();
        let integral = |values: &[f64]| {
            let first = values.first().map(|value| (0.0, *value));
            let points = samples.iter().zip(values).map(|(sample, value)| (sample.at_s, *value));
            stats::integral(&first.into_iter().chain(points).collect::<Vec<_>>())
        };
        Some(Self {
            cpu_p50: stats::median(&cpu)?,
            cpu_cv: stats::coefficient_of_variation(&cpu),
            cpu_integral: integral(&cpu),
            cpu_max: stats::range(&cpu)?.1,
            cpu_p90: stats::quantile(&cpu, 0.9)?,
            cpu_p05: stats::quantile(&cpu, 0.05)?,
            memory_median: stats::median(&memory)?,
            memory_cv: stats::coefficient_of_variation(&memory),
            memory_integral: integral(&memory),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_come_to_the_figures_of_chapter_6() {
        let sample = |at_s, cpu_percent| ProcessSample { at_s, cpu_percent, rss_bytes: 9_000_000 };
        let figures =
            ProcessUsage::from_samples(&[sample(1.0, 20.0), sample(2.0, 40.0), sample(3.0, 30.0)]).unwrap();
        assert_eq!((figures.cpu_p50, figures.cpu_max), (30.0, 40.0));
        assert_eq!(figures.cpu_integral, 20.0 + 30.0 + 35.0);
        assert_eq!((figures.memory_median, figures.memory_integral), (9000.0, 27_000.0));
        assert_eq!(figures.memory_cv, Some(0.0));
        assert_eq!(ProcessUsage::from_samples(&[]), None);
    }
}
