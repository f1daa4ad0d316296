//! What came of one run of one point, and how it is kept: one line of `evidence/super/lab.jsonl`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::setting::{Case, Way, Work};
use crate::accel::sender::Sample;
use crate::accel::{Taken, Trial, Who, Workshop, udp};
use crate::reproduce::store::Kept;
use crate::server::Payload;
use crate::{Congestion, Emulation, LabError};

/// See the [module](self).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) artefact: String,
    pub(super) case: String,
    pub(super) way: String,
    pub(super) sender: String,
    pub(super) run: u32,
    /// How long it was, in seconds.
    pub(super) length_s: u64,
    /// Why it is no good.
    #[serde(default)]
    pub(super) problem: Option<String>,
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
    #[serde(default)]
    pub(super) tcp: Option<Tcp>,
    /// What the accelerator did at one time at least.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) in_force: Vec<String>,
    /// Why it left the flow alone, if it says so.
    #[serde(default)]
    pub(super) left_alone: Option<String>,
    /// What the sender said from time to time, for figures over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) trace: Vec<Sample>,
    /// Mbit/s by tenths of a second, for figures over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) series: Vec<f64>,
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

impl Kept for Cell {
    const KEY: &'static str = "cell";

    fn is_done(&self) -> bool {
        self.problem.is_none()
    }

    fn lean(&self) -> Self {
        self.clone()
    }
}

impl Cell {
    /// One that is still empty.
    pub(super) fn new(case: &Case, way: &Way, sender: Congestion, run: u32) -> Self {
        Self {
            artefact: case.artefact.into(),
            case: case.name.clone(),
            way: way.name.into(),
            sender: sender.name().into(),
            run,
            length_s: case.length.as_secs(),
            problem: None,
            suspect: None,
            mbps: 0.0,
            parts: Vec::new(),
            resumed_s: None,
            tcp: None,
            in_force: Vec::new(),
            left_alone: None,
            trace: Vec::new(),
            series: Vec::new(),
        }
    }

    /// Whether it is this one.
    pub(super) fn is(&self, case: &Case, way: &Way, sender: Congestion, run: u32) -> bool {
        let empty = Self::new(case, way, sender, run);
        (&self.artefact, &self.case, &self.way) == (&empty.artefact, &empty.case, &empty.way)
            && (&self.sender, self.run, self.length_s) == (&empty.sender, empty.run, empty.length_s)
    }

    /// Measures it.
    pub(super) fn measure(
        case: &Case,
        way: &Way,
        sender: Congestion,
        run: u32,
        (payload, workshop): (&Payload, &Workshop),
    ) -> Self {
        let mut cell = Self::new(case, way, sender, run);
        let world = case.world(way, sender, run);
        let done = match &way.work {
            Work::Flood(offered) => workshop.build(&world, payload, &Who::Plain).and_then(|(lab, _)| {
                lab.begin()?;
                cell.mbps = udp::goodput(&lab, *offered, case.length.saturating_sub(case.from))
                    .map_err(LabError::at("UDP"))?;
                cell.suspect(&lab.emulation()?);
                Ok(())
            }),
            Work::Download(streams, who) => {
                let (length, look) = (case.length, Some(case.look));
                let trial = Trial { world: &world, who, streams, length, look, payload, workshop };
                trial.run().map(|taken| cell.take(case, run, taken))
            }
        };
        cell.problem = cell.problem.or_else(|| done.err().map(|error| error.to_string()));
        cell
    }

    fn suspect(&mut self, emulation: &Emulation) {
        self.suspect = emulation.suspect();
    }

    fn take(&mut self, case: &Case, run: u32, taken: Taken) {
        let all = |from, to| (0..taken.flows.len()).map(|flow| taken.mbps(flow, from, to)).sum::<f64>();
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        self.mbps = rounded(all(case.from, case.length));
        self.parts = case.parts.windows(2).map(|pair| rounded(all(pair[0], pair[1]))).collect();
        self.suspect(&taken.emulation);
        self.tcp = Tcp::of(&taken.samples);
        self.left_alone = taken.left_alone();
        let back = case.blackouts(run).last().map(|dark| dark.from + dark.length);
        self.resumed_s = back.or(case.resumes()).and_then(|back| resumed(&taken, back));
        if !case.parts.is_empty() {
            let tenth = Duration::from_millis(100);
            let slots = u32::try_from(case.length.as_millis() / 100).unwrap_or(0);
            self.series = (0..slots).map(|slot| rounded(all(tenth * slot, tenth * (slot + 1)))).collect();
            self.trace = taken.samples;
        }
        self.in_force = taken.in_force;
        self.problem = taken.problem;
    }

    /// Whether there is a figure that can be trusted.
    pub(super) fn is_good(&self) -> bool {
        self.problem.is_none()
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        let what = format!("{} {}, {}, {}, run {}", self.artefact, self.case, self.sender, self.way, self.run);
        match &self.problem {
            Some(why) => format!("{what}: FAILED: {why}"),
            None => {
                let suspect = self.suspect.as_ref().map(|why| format!("; suspect: {why}")).unwrap_or_default();
                format!("{what}: {:.2} Mbit/s{suspect}", self.mbps)
            }
        }
    }
}

/// From a time to the first byte after it, in seconds.
fn resumed(taken: &Taken, back: Duration) -> Option<f64> {
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
        let cell = Cell { mbps: 16.4, ..Cell::new(case, &case.ways[1], Congestion::Reno, 2) };
        let text = serde_json::to_string(&cell).unwrap();
        let again: Cell = serde_json::from_str(&text).unwrap();
        assert!(again == cell && again.is(case, &case.ways[1], Congestion::Reno, 2));
        assert!(!again.is(case, &case.ways[0], Congestion::Reno, 2));
        assert!(!again.is(case, &case.ways[1], Congestion::Cubic, 2));
        assert!(cell.line().contains("F6 2s, 50ms, reno, paper, run 2: 16.40 Mbit/s"), "{}", cell.line());
    }
}
