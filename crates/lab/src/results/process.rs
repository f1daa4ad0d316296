//! CPU and memory of a client over time, with the statistics of chapter 6 of the thesis.

use serde::{Deserialize, Serialize};

use super::stats;

/// CPU and memory of the client at one time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProcessSample {
    /// Seconds since the client was started.
    pub at_s: f64,
    /// CPU time since the previous sample divided by the time since then, in percent of one core.
    pub cpu_percent: f64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
}

/// Statistics of one run (thesis section 3.4). CPU is in percent of one core, memory in units of 1000 bytes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Median of the CPU use.
    pub cpu_p50: f64,
    /// Coefficient of variation of the CPU use in percent; `None` for a single sample.
    pub cpu_cv: Option<f64>,
    /// Integral of the CPU use, percent × seconds.
    pub cpu_integral: f64,
    /// Maximum of the CPU use.
    pub cpu_max: f64,
    /// 90th percentile of the CPU use.
    pub cpu_p90: f64,
    /// 5th percentile of the CPU use.
    pub cpu_p05: f64,
    /// Median of the memory.
    pub memory_median: f64,
    /// Coefficient of variation of the memory in percent; `None` for a single sample.
    pub memory_cv: Option<f64>,
    /// Integral of the memory, kilobytes × seconds.
    pub memory_integral: f64,
}

impl ProcessUsage {
    /// Statistics of the samples; `None` without a sample. Integrals extend from the start to the last sample.
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
    fn samples_give_the_statistics_of_chapter_6() {
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
