//! One run of one way at one point, and what came of it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::setting::{Case, Way, Work};
use crate::accel::tcp_info_sampler::Sample;
use crate::accel::{Contender, Medium, Trial, TrialEnv, TrialResult, udp};
use crate::reproduce::cell::{self, Figures, Name};
use crate::server::Payload;
use crate::{Congestion, Emulation, LabError};

/// Which measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Point {
    pub(super) artefact: String,
    pub(super) case: String,
    pub(super) way: String,
    pub(super) sender: String,
    pub(super) run: u32,
    /// How long it was, in seconds.
    pub(super) length_s: u64,
}

impl Point {
    pub(super) fn of(case: &Case, way: &Way, sender: Congestion, run: u32) -> Self {
        Self {
            artefact: case.artefact.into(),
            case: case.name.clone(),
            way: way.name.into(),
            sender: sender.name().into(),
            run,
            length_s: case.length.as_secs(),
        }
    }
}

impl Name for Point {}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { artefact, case, way, sender, run, .. } = self;
        write!(f, "{artefact} {case}, {sender}, {way}, run {run}")
    }
}

/// What came of it.
pub(super) type Cell = cell::Cell<Point, Measured>;

/// See the [module](self).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Why the figures should not be trusted.
    #[serde(default)]
    pub(super) suspect: Option<String>,
    /// Goodput of all downloads together.
    pub(super) mbps: f64,
    /// The same between the times at which something changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<f64>,
    /// From the end of the last blackout to the first byte, in seconds.
    #[serde(default)]
    pub(super) resumed_s: Option<f64>,
    /// Percent of the first link's air that ACKs took, where it is shared.
    #[serde(default)]
    pub(super) acks_air: Option<f64>,
    #[serde(default)]
    pub(super) tcp: Option<Tcp>,
    /// What the accelerator did at one time at least.
    #[serde(
        default,
        alias = "in_force",
        deserialize_with = "present_names",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub(super) active: Vec<String>,
    /// Why it left the flow alone, if it says so.
    #[serde(default, alias = "left_alone")]
    pub(super) inactive_reason: Option<String>,
    /// What the sender said from time to time, for figures over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) trace: Vec<Sample>,
    /// Mbit/s by tenths of a second, for figures over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) series: Vec<f64>,
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

impl Figures for Measured {
    fn suspect(&self) -> Option<String> {
        self.suspect.clone()
    }

    fn line(&self) -> String {
        format!("{:.2} Mbit/s", self.mbps)
    }
}

/// TCP_INFO of the sender over the run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Tcp {
    /// The smallest slow-start threshold, in segments; none: there was no reduction.
    pub(super) least_ssthresh: Option<u32>,
    /// The middle congestion window.
    pub(super) cwnd: u32,
    pub(super) most_backoff: u32,
    /// In milliseconds.
    pub(super) most_rto: f64,
    pub(super) retransmitted: u64,
}

impl Tcp {
    fn of(samples: &[Sample]) -> Option<Self> {
        let mut windows: Vec<u32> = samples.iter().map(|sample| sample.cwnd).collect();
        windows.sort_unstable();
        Some(Self {
            least_ssthresh: samples.iter().filter_map(|sample| sample.ssthresh).min(),
            cwnd: *windows.get(windows.len() / 2)?,
            most_backoff: samples.iter().map(|sample| sample.backoff).max()?,
            most_rto: samples.iter().map(|sample| sample.rto).fold(0.0, f64::max),
            retransmitted: samples.last()?.retransmitted,
        })
    }
}

/// Measures it. The outer error is of the lab, the inner one of what was downloaded.
pub(super) fn measure(
    case: &Case,
    way: &Way,
    sender: Congestion,
    run: u32,
    (payload, workshop): (&Payload, &TrialEnv),
) -> Result<Result<Measured, String>, LabError> {
    let world = case.world(way, sender, run);
    match &way.work {
        Work::Flood(offered) => {
            let (lab, _) = workshop.build(&world, payload, &Contender::Plain)?;
            lab.begin()?;
            let length = case.length.saturating_sub(case.from);
            let mbps = udp::goodput(&lab, *offered, length).map_err(LabError::at("UDP"))?;
            Ok(Ok(Measured { mbps: rounded(mbps), suspect: lab.emulation()?.suspect(), ..Measured::default() }))
        }
        Work::Download(streams, who) => {
            let (length, look) = (case.length, Some(case.look));
            let taken = Trial { world: &world, who, streams, length, look, payload, workshop }.run()?;
            Ok(match taken.problem {
                Some(why) => Err(why),
                None => Ok(Measured::of(case, run, taken)),
            })
        }
    }
}

impl Measured {
    fn of(case: &Case, run: u32, taken: TrialResult) -> Self {
        let all = |from, to| (0..taken.flows.len()).map(|flow| taken.mbps(flow, from, to)).sum::<f64>();
        let back = case.outages(run).last().map(|dark| dark.from + dark.length);
        let mut measured = Self {
            suspect: taken.emulation.suspect(),
            mbps: rounded(all(case.from, case.length)),
            parts: case.parts.windows(2).map(|pair| rounded(all(pair[0], pair[1]))).collect(),
            resumed_s: back.or(case.resumes()).and_then(|back| resumed(&taken, back)),
            acks_air: matches!(case.world.medium, Medium::Medium(_)).then(|| acks_air(&taken.emulation)).flatten(),
            tcp: Tcp::of(&taken.samples),
            inactive_reason: taken.inactive_reason(),
            active: Vec::new(),
            trace: Vec::new(),
            series: Vec::new(),
        };
        if !case.parts.is_empty() {
            let tenth = Duration::from_millis(100);
            let slots = u32::try_from(case.length.as_millis() / 100).unwrap_or(0);
            measured.series = (0..slots).map(|slot| rounded(all(tenth * slot, tenth * (slot + 1)))).collect();
            measured.trace = taken.samples;
        }
        Self { active: taken.active, ..measured }
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Percent of the first link's time that what goes up took; none: it carried nothing.
fn acks_air(emulation: &Emulation) -> Option<f64> {
    let link = emulation.links.first()?;
    let (up, both) = (link.up.airtime, link.up.airtime + link.down.airtime);
    (!both.is_zero()).then(|| rounded(up.as_secs_f64() / both.as_secs_f64() * 100.0))
}

/// From a time to the first byte after it, in seconds.
fn resumed(taken: &TrialResult, back: Duration) -> Option<f64> {
    use crate::accel::download::SLOT;
    let from = (back.as_nanos() / SLOT.as_nanos()) as usize;
    let slots = &taken.flows.first()?.slots;
    let first = slots.iter().skip(from).position(|bytes| *bytes > 0)?;
    Some(first as f64 * SLOT.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::setting::cases;
    use super::*;

    #[test]
    fn the_sender_is_told_in_five_numbers() {
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
        let expected =
            Tcp { least_ssthresh: Some(2), cwnd: 9, most_backoff: 3, most_rto: 2600.0, retransmitted: 99 };
        assert_eq!(Tcp::of(&samples), Some(expected));
        assert_eq!(Tcp::of(&[]), None);
    }

    #[test]
    fn a_kept_cell_is_known_again() {
        let case = &cases("F6")[0];
        let point = Point::of(case, &case.ways[1], Congestion::Reno, 2);
        let cell = Cell::new(point.clone(), Ok(Measured { mbps: 16.4, ..Measured::default() }));
        let text = serde_json::to_string(&cell).unwrap();
        let again: Cell = serde_json::from_str(&text).unwrap();
        assert!(again == cell && again.name == point && text.contains("\"mbps\":16.4"));
        assert!(point != Point::of(case, &case.ways[0], Congestion::Reno, 2));
        assert!(point != Point::of(case, &case.ways[1], Congestion::Cubic, 2));
        assert_eq!(cell.line(), "F6 2s, 50ms, reno, paper, run 2: 16.40 Mbit/s");
    }
}
