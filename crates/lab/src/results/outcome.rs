//! Result of one download.

use marline_core::link::LinkKind;
use serde::{Deserialize, Serialize};

use super::{ProcessUsage, stats};

/// Length of a slot of the timelines, in seconds.
pub const SLOT_S: f64 = 0.1;

/// How a result was obtained.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// In virtual time: marline's state machine with a model of TCP.
    Sim,
    /// In real time: programs and kernel TCP over emulated links.
    Lab,
}

impl Backend {
    /// Name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Lab => "lab",
        }
    }
}

/// One download by one client. Times are seconds since the start of the command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DownloadOutcome {
    /// Name of the case.
    pub case: String,
    /// The client, as scenarios name it.
    pub client: String,
    /// Repetition, from 0.
    pub run: u32,
    /// Whether it was simulated or measured.
    #[serde(alias = "by")]
    pub backend: Backend,
    /// Size of the requested file.
    #[serde(alias = "bytes")]
    pub requested_bytes: u64,
    /// Why the download failed: incomplete, wrong SHA-256, failed program, timeout.
    #[serde(default)]
    pub problem: Option<String>,
    /// Time from the start of the command to its end.
    pub seconds: f64,
    /// Lower bound of the time for any client.
    #[serde(default)]
    pub ideal_s: Option<f64>,
    /// One entry per link, in the scenario's order.
    pub links: Vec<LinkOutcome>,
    /// Time between the last useful bytes of the first and the last link to finish; null with fewer than two links
    /// in use.
    #[serde(default)]
    pub link_delta_s: Option<f64>,
    /// Body bytes received and not needed. For other programs than marline it is estimated from the packets.
    #[serde(default)]
    pub wasted_bytes: Option<u64>,
    /// CPU time of the client, user and system.
    #[serde(default)]
    pub cpu_s: Option<f64>,
    /// Share of the time in which some process of the machine waited for a CPU.
    #[serde(default)]
    pub cpu_pressure: Option<f64>,
    /// Peak memory (RSS) of the client.
    #[serde(default)]
    pub peak_rss_bytes: Option<u64>,
    /// Energy of the radios of `energy_model`, tails included: as the client reports it, otherwise computed from
    /// its packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Device model of `energy_j`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_model: Option<String>,
    /// CPU and memory of the client over time, if sampled.
    #[serde(default)]
    pub process: Option<ProcessUsage>,
    /// Why the figures are unreliable (late emulator, busy machine); `None` if they are reliable.
    #[serde(default)]
    #[serde(alias = "suspect")]
    pub unreliable_reason: Option<String>,
}

/// Result of one link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LinkOutcome {
    /// Name of the link.
    pub name: String,
    /// Access technology.
    pub kind: LinkKind,
    /// Bytes of IP packets towards the client.
    #[serde(alias = "bytes")]
    pub ip_bytes: u64,
    /// Times of the first and the last useful data.
    #[serde(default)]
    pub span_s: Option<(f64, f64)>,
    /// Median rate over the slots in which the link was in use, in Mbit/s of IP packets. The tables of the thesis
    /// report throughput in this form (section 3.4).
    #[serde(default)]
    pub median_mbps: Option<f64>,
    /// Energy of this link's radio in joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Bytes of IP packets in each slot of [`SLOT_S`]; not stored in committed files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<u64>,
}

impl DownloadOutcome {
    /// Whether the file arrived complete and correct.
    pub fn is_complete(&self) -> bool {
        self.problem.is_none()
    }

    /// Time divided by the ideal time.
    pub fn ratio(&self) -> Option<f64> {
        self.ideal_s.filter(|ideal| *ideal > 0.0).map(|ideal| self.seconds / ideal)
    }

    /// Size of the file divided by the time, in Mbit/s.
    pub fn goodput_mbps(&self) -> f64 {
        self.requested_bytes as f64 * 8.0 / 1e6 / self.seconds.max(1e-9)
    }
}

impl LinkOutcome {
    /// Rate of IP packets in each slot, in Mbit/s.
    pub fn rates_mbps(&self) -> Vec<f64> {
        self.timeline.iter().map(|bytes| *bytes as f64 * 8.0 / 1e6 / SLOT_S).collect()
    }

    /// Fills in the median rate.
    #[must_use]
    pub fn with_median(mut self) -> Self {
        self.median_mbps = self.median_rate();
        self
    }

    fn median_rate(&self) -> Option<f64> {
        let (first, last) = self.span_s?;
        let slot_of = |at: f64| (at / SLOT_S) as usize;
        let rates = self.rates_mbps();
        // The first and the last slot are only partly used.
        let inner_slots = rates.get(slot_of(first) + 1..slot_of(last).min(rates.len()));
        stats::median(inner_slots.filter(|within| !within.is_empty()).unwrap_or(&rates))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plausible outcome: two links of 80 and 61 Mbit/s for this many seconds.
    pub(crate) fn example_outcome(client: &str, run: u32, seconds: f64) -> DownloadOutcome {
        let slots = (seconds / SLOT_S).ceil() as usize;
        let link = |name: &str, kind, bytes: u64| LinkOutcome {
            name: name.into(),
            kind,
            ip_bytes: bytes * slots as u64,
            span_s: Some((0.05, seconds)),
            median_mbps: None,
            energy_j: None,
            timeline: (0..slots as u64).map(|n| if n < 3 { bytes * (n + 1) / 4 } else { bytes }).collect(),
        };
        let link = |name: &str, kind, bytes: u64| link(name, kind, bytes).with_median();
        DownloadOutcome {
            case: "a".into(),
            client: client.into(),
            run,
            backend: Backend::Lab,
            requested_bytes: 100_000_000,
            problem: None,
            seconds,
            ideal_s: Some(5.88),
            links: vec![link("wifi", LinkKind::Wifi, 1_000_000), link("lte", LinkKind::Lte, 762_500)],
            link_delta_s: Some(0.02),
            wasted_bytes: Some(1000),
            cpu_s: Some(0.5),
            cpu_pressure: Some(0.1),
            peak_rss_bytes: Some(9_000_000),
            energy_j: None,
            energy_model: None,
            process: None,
            unreliable_reason: None,
        }
    }

    #[test]
    fn the_median_rate_excludes_the_first_and_last_slot() {
        let outcome = example_outcome("marline", 0, 6.0);
        assert_eq!(outcome.links[0].median_mbps, Some(80.0));
        let idle = LinkOutcome { span_s: None, ..outcome.links[0].clone() };
        assert_eq!(idle.clone().with_median().median_mbps, None);
        let short = LinkOutcome { span_s: Some((0.0, 0.05)), timeline: vec![12_500], ..idle };
        assert_eq!(short.with_median().median_mbps, Some(1.0));
    }

    #[test]
    fn ratios_and_goodput() {
        let outcome = example_outcome("marline", 0, 6.0);
        assert!((outcome.ratio().unwrap() - 1.0204).abs() < 1e-4);
        assert!((outcome.goodput_mbps() - 133.33).abs() < 0.01);
        assert_eq!(DownloadOutcome { ideal_s: None, ..outcome }.ratio(), None);
    }

    #[test]
    fn an_outcome_survives_serialization() {
        let outcome = example_outcome("aria2-s2", 1, 6.2);
        let text = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<DownloadOutcome>(&text).unwrap(), outcome);
    }
}
