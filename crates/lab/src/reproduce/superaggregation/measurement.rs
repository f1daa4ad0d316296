//! One run of one variant at one point of a figure, and its result.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::{FigurePoint, Variant, Workload};
use crate::accel::tcp_info_sampler::Sample;
use crate::accel::{Contender, Medium, Trial, TrialEnv, TrialResult, udp};
use crate::reproduce::measurement::{self, MeasuredValues, MeasurementId};
use crate::server::Payload;
use crate::{Congestion, EmulationReport, LabError};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct MeasurementPoint {
    pub(super) artefact: String,
    pub(super) case: String,
    #[serde(alias = "way")]
    pub(super) variant: String,
    pub(super) sender: String,
    pub(super) run: u32,
    /// Duration of the measurement in seconds.
    pub(super) length_s: u64,
}

impl MeasurementPoint {
    pub(super) fn new(case: &FigurePoint, variant: &Variant, sender: Congestion, run: u32) -> Self {
        Self {
            artefact: case.artefact.into(),
            case: case.name.clone(),
            variant: variant.name.into(),
            sender: sender.name().into(),
            run,
            length_s: case.length.as_secs(),
        }
    }
}

impl MeasurementId for MeasurementPoint {}

impl fmt::Display for MeasurementPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { artefact, case, variant: variant_name, sender, run, .. } = self;
        write!(f, "{artefact} {case}, {sender}, {variant_name}, run {run}")
    }
}

/// A measurement point with its result or its problem.
pub(super) type PointMeasurement = measurement::Measurement<MeasurementPoint, RunResult>;

/// Figures of one run, as they are stored in `evidence/super/lab.jsonl`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct RunResult {
    /// Why the figures are unreliable; `None` if they are reliable.
    #[serde(default)]
    #[serde(alias = "suspect")]
    pub(super) unreliable_reason: Option<String>,
    /// Goodput of all downloads together, from `FigurePoint::counted_from` on.
    pub(super) mbps: f64,
    /// The same for each part of the run (`FigurePoint::part_bounds`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "parts")]
    pub(super) part_mbps: Vec<f64>,
    /// From the end of the last blackout to the first byte, in seconds.
    #[serde(default)]
    pub(super) resumed_s: Option<f64>,
    /// Percent of the primary link's airtime that ACKs took, if it is an 802.11 cell.
    #[serde(default)]
    #[serde(alias = "acks_air")]
    pub(super) ack_airtime_percent: Option<f64>,
    #[serde(default)]
    #[serde(alias = "tcp")]
    pub(super) tcp_info: Option<TcpSummary>,
    /// Mechanisms of the accelerator that were active at some time.
    #[serde(default, deserialize_with = "present_names", skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "in_force")]
    pub(super) active: Vec<String>,
    /// Why the accelerator left a flow alone or did not use a mechanism, if it reports that.
    #[serde(default)]
    #[serde(alias = "left_alone")]
    pub(super) inactive_reason: Option<String>,
    /// Samples of the sender's TCP_INFO, for figures over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "trace")]
    pub(super) tcp_samples: Vec<Sample>,
    /// Mbit/s by tenths of a second, for figures over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "series")]
    pub(super) mbps_timeline: Vec<f64>,
}

/// Reads names of mechanisms; those of older evidence become the present ones.
fn present_names<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let present = |name: String| match name.as_str() {
        "offload" => "ack-offload".to_owned(),
        "offload-as-published" => "ack-offload-as-published".to_owned(),
        "undo" => "eifel-undo".to_owned(),
        "reserve" => "withheld-ack".to_owned(),
        "revert" => "outage-revert".to_owned(),
        "hide" => "early-ack".to_owned(),
        "freeze" => "zero-window-freeze".to_owned(),
        "freeze-flight" => "freeze-in-flight".to_owned(),
        _ => name,
    };
    Ok(Vec::deserialize(deserializer)?.into_iter().map(present).collect())
}

impl MeasuredValues for RunResult {
    fn unreliable_reason(&self) -> Option<String> {
        self.unreliable_reason.clone()
    }

    fn to_line(&self) -> String {
        format!("{:.2} Mbit/s", self.mbps)
    }
}

/// TCP_INFO of the sender over the run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct TcpSummary {
    /// The smallest slow-start threshold, in segments; none: there was no reduction.
    #[serde(alias = "least_ssthresh")]
    pub(super) min_ssthresh: Option<u32>,
    /// Median congestion window, in segments.
    #[serde(alias = "cwnd")]
    pub(super) median_cwnd: u32,
    #[serde(alias = "most_backoff")]
    pub(super) max_backoff: u32,
    /// In milliseconds.
    #[serde(alias = "most_rto")]
    pub(super) max_rto_ms: f64,
    pub(super) retransmitted: u64,
}

impl TcpSummary {
    fn from_samples(samples: &[Sample]) -> Option<Self> {
        let mut windows: Vec<u32> = samples.iter().map(|sample| sample.cwnd).collect();
        windows.sort_unstable();
        Some(Self {
            min_ssthresh: samples.iter().filter_map(|sample| sample.ssthresh).min(),
            median_cwnd: *windows.get(windows.len() / 2)?,
            max_backoff: samples.iter().map(|sample| sample.backoff).max()?,
            max_rto_ms: samples.iter().map(|sample| sample.rto).fold(0.0, f64::max),
            retransmitted: samples.last()?.retransmitted,
        })
    }
}

/// Measures one run. The inner error is a failure of a download or of the accelerator, the outer one of the lab.
pub(super) fn measure_point(
    case: &FigurePoint,
    variant: &Variant,
    sender: Congestion,
    run: u32,
    (payload, workshop): (&Payload, &TrialEnv),
) -> Result<Result<RunResult, String>, LabError> {
    let testbed = case.world(variant, sender, run);
    match &variant.work {
        Workload::UdpFlood(offered) => {
            let (lab, _) = workshop.build(&testbed, payload, &Contender::Plain)?;
            lab.start_links()?;
            let length = case.length.saturating_sub(case.counted_from);
            let mbps = udp::goodput(&lab, *offered, length).map_err(LabError::at_step("UDP"))?;
            Ok(Ok(RunResult {
                mbps: rounded(mbps),
                unreliable_reason: lab.emulation_report()?.unreliable_reason(),
                ..RunResult::default()
            }))
        }
        Workload::Download(streams, contender) => {
            let (length, sample_interval) = (case.length, Some(case.sample_interval));
            let taken =
                Trial { world: &testbed, contender, streams, length, sample_interval, payload, workshop }.run()?;
            Ok(match taken.problem {
                Some(reason) => Err(reason),
                None => Ok(RunResult::from_run(case, run, taken)),
            })
        }
    }
}

impl RunResult {
    fn from_run(case: &FigurePoint, run: u32, taken: TrialResult) -> Self {
        let all = |from, to| (0..taken.flows.len()).map(|flow| taken.mbps(flow, from, to)).sum::<f64>();
        let back = case.outages(run).last().map(|outage| outage.from + outage.length);
        let mut measured = Self {
            unreliable_reason: taken.emulation.unreliable_reason(),
            mbps: rounded(all(case.counted_from, case.length)),
            part_mbps: case.part_bounds.windows(2).map(|pair| rounded(all(pair[0], pair[1]))).collect(),
            resumed_s: back.or(case.last_blackout_end()).and_then(|back| time_to_resume(&taken, back)),
            ack_airtime_percent: matches!(case.testbed.medium, Medium::Medium(_))
                .then(|| ack_airtime_percent(&taken.emulation))
                .flatten(),
            tcp_info: TcpSummary::from_samples(&taken.samples),
            inactive_reason: taken.inactive_reason(),
            active: Vec::new(),
            tcp_samples: Vec::new(),
            mbps_timeline: Vec::new(),
        };
        if !case.part_bounds.is_empty() {
            let tenth = Duration::from_millis(100);
            let slots = u32::try_from(case.length.as_millis() / 100).unwrap_or(0);
            measured.mbps_timeline =
                (0..slots).map(|slot| rounded(all(tenth * slot, tenth * (slot + 1)))).collect();
            measured.tcp_samples = taken.samples;
        }
        Self { active: taken.active, ..measured }
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Percent of the primary link's airtime that packets of the client took; none: it carried nothing.
fn ack_airtime_percent(emulation: &EmulationReport) -> Option<f64> {
    let link = emulation.links.first()?;
    let (up, both) = (link.uplink.airtime, link.uplink.airtime + link.downlink.airtime);
    (!both.is_zero()).then(|| rounded(up.as_secs_f64() / both.as_secs_f64() * 100.0))
}

/// From a time to the first byte after it, in seconds.
fn time_to_resume(taken: &TrialResult, back: Duration) -> Option<f64> {
    use crate::accel::download::SLOT;
    let from = (back.as_nanos() / SLOT.as_nanos()) as usize;
    let slots = &taken.flows.first()?.slots;
    let first = slots.iter().skip(from).position(|bytes| *bytes > 0)?;
    Some(first as f64 * SLOT.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::config::cases;
    use super::*;

    #[test]
    fn the_state_of_the_sender_is_reported_in_five_numbers() {
        let sample = |cwnd, ssthresh, backoff, rto, retransmitted| Sample {
            cwnd,
            ssthresh,
            backoff,
            rto,
            retransmitted,
            ..Sample::default()
        };
        let samples =
            [sample(200, None, 0, 250.0, 0), sample(1, Some(2), 3, 2600.0, 90), sample(9, Some(179), 0, 260.0, 99)];
        let expected = TcpSummary {
            min_ssthresh: Some(2),
            median_cwnd: 9,
            max_backoff: 3,
            max_rto_ms: 2600.0,
            retransmitted: 99,
        };
        assert_eq!(TcpSummary::from_samples(&samples), Some(expected));
        assert_eq!(TcpSummary::from_samples(&[]), None);
    }

    #[test]
    fn a_kept_cell_is_known_again() {
        let case = &cases("F6")[0];
        let point = MeasurementPoint::new(case, &case.variants[1], Congestion::Reno, 2);
        let cell = PointMeasurement::new(point.clone(), Ok(RunResult { mbps: 16.4, ..RunResult::default() }));
        let text = serde_json::to_string(&cell).unwrap();
        let reread: PointMeasurement = serde_json::from_str(&text).unwrap();
        assert!(reread == cell && reread.id == point && text.contains("\"mbps\":16.4"));
        assert!(point != MeasurementPoint::new(case, &case.variants[0], Congestion::Reno, 2));
        assert!(point != MeasurementPoint::new(case, &case.variants[1], Congestion::Cubic, 2));
        assert_eq!(cell.to_line(), "F6 2s, 50ms, reno, paper, run 2: 16.40 Mbit/s");
    }
}
