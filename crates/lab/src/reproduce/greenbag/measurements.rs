//! Runs all cases in real time: many labs in parallel, each result stored as soon as it is available.
//!
//! 1. A case takes minutes of real time and hardly any CPU (6 Mbit/s), so many run side by side, each in namespaces
//!    of its own. Faster videos count as several. Each measurement shows whether it was disturbed: how late its
//!    emulator was, and how long its proxy waited for a CPU.
//! 2. The order is that of [`ARTEFACT_ORDER`], the most important figures first, so that an interrupted session has
//!    them. The policies of one case run side by side, so that a disturbance of the machine affects all of them.
//! 3. A case that fails is stored with its problem. A lab that cannot be built ends the run.

use std::fmt;

use marline_core::units::Bitrate;
use serde::{Deserialize, Serialize};

use super::config::{GreenBagPolicy, PlaybackMetrics};
use super::figures::FigureCase;
use super::real::{PlaybackRunner, PlaybackValues};
use super::runner::all_runs;
use crate::LabError;
use crate::bench::is_interrupted;
use crate::player::STOPPED_BY_USER;
use crate::reproduce::measurement::{self, MeasuredValues as _, MeasurementId};
use crate::reproduce::result_set::ResultSet;
use crate::worker_pool::JOB_COST;

/// Identity of one playback of a case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct PlaybackId {
    artefact: String,
    case: String,
    policy: String,
    /// Repetition, from 0; determines the seeds of everything random.
    run: usize,
}

/// One playback with its result.
pub(super) type PlaybackMeasurement = measurement::Measurement<PlaybackId, PlaybackValues>;

impl PlaybackId {
    fn new(figure: &FigureCase, policy: GreenBagPolicy, run: usize) -> Self {
        let policy = policy.name().into();
        Self { artefact: figure.artefact.into(), case: figure.case.clone(), policy, run }
    }
}

impl MeasurementId for PlaybackId {}

impl fmt::Display for PlaybackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { artefact, case, policy, run } = self;
        write!(f, "{artefact} {case} {policy} run {run}")
    }
}

/// The artefacts in the order in which they are run.
const ARTEFACT_ORDER: [&str; 10] =
    ["F13", "F14", "X-over", "X-fluct", "X-traces", "F12", "F11", "F10", "F9a", "F9b"];

/// Rate of most videos.
const DEFAULT_RATE: Bitrate = Bitrate::from_mbps(6);

/// Cost of a video with this rate in the worker pool.
fn job_cost(rate: Bitrate) -> u64 {
    rate.max(DEFAULT_RATE).bits_per_sec() * JOB_COST / DEFAULT_RATE.bits_per_sec()
}

/// Measures what is not stored yet, with this many jobs in parallel.
pub(super) fn measure_all(
    figures: &[FigureCase],
    results: &ResultSet<PlaybackId, PlaybackValues>,
    runner: &PlaybackRunner,
    jobs: usize,
) -> Result<(), LabError> {
    let mut all = all_runs(figures);
    let rank = |at: usize| ARTEFACT_ORDER.iter().position(|artefact| *artefact == figures[at].artefact);
    all.sort_by_key(|(at, policy, run)| (rank(*at), *run, *at, *policy));
    let all: Vec<_> = all.into_iter().map(|one| vec![one]).collect();
    type Item = (usize, usize, usize);
    let name = |(at, policy, run): &Item| PlaybackId::new(&figures[*at], figures[*at].policies[*policy], *run);
    let cost = |(at, _, run): &Item| job_cost(figures[*at].runs[*run].video().mean_rate());
    let one = |(at, policy, run): &Item| {
        let (figure, policy) = (&figures[*at], figures[*at].policies[*policy]);
        let label = format!("{} {} {} {run}", figure.artefact, figure.case, policy.name());
        match runner.run_case(&figure.runs[*run], policy, *run as u64 + 1, &label)? {
            Err(why) if is_interrupted() || why == STOPPED_BY_USER => Ok(None),
            result => Ok(Some(result)),
        }
    };
    results.measure(&all, jobs, name, cost, one)
}

/// The result of one playback, with the clairvoyant's.
pub(super) fn result_with_optimum(
    cells: &[PlaybackMeasurement],
    figure: &FigureCase,
    policy: GreenBagPolicy,
    run: usize,
) -> Result<PlaybackMetrics, String> {
    let PlaybackValues { playback_s, buffering_s: interruption_s, stalls, energy_j, .. } =
        measurement::latest_values(cells, &PlaybackId::new(figure, policy, run))?;
    figure.runs[run].with_optimum(*playback_s, *interruption_s, *stalls, *energy_j, figure.wants_energy)
}

/// Number of unreliable playbacks of a policy in a case.
pub(super) fn unreliable_count(
    cells: &[PlaybackMeasurement],
    figure: &FigureCase,
    policy: GreenBagPolicy,
) -> usize {
    let last = |run: usize| measurement::latest(cells, &PlaybackId::new(figure, policy, run));
    let is_suspect = |cell: &PlaybackMeasurement| {
        cell.values.as_ref().is_some_and(|measured| measured.unreliable_reason().is_some())
    };
    (0..figure.runs.len()).filter(|run| last(*run).is_some_and(is_suspect)).count()
}

/// Keeps only complete repetitions of cases that were measured.
pub(super) fn measured_figures(figures: Vec<FigureCase>, cells: &[PlaybackMeasurement]) -> Vec<FigureCase> {
    let cut = |mut figure: FigureCase| {
        let all = |run: usize| {
            figure
                .policies
                .iter()
                .all(|policy| measurement::latest(cells, &PlaybackId::new(&figure, *policy, run)).is_some())
        };
        let runs = (0..figure.runs.len()).take_while(|run| all(*run)).count();
        figure.runs.truncate(runs);
        (runs > 0).then_some(figure)
    };
    figures.into_iter().filter_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::super::figures::{Effort, figures};
    use super::*;

    fn cell(figure: &FigureCase, policy: GreenBagPolicy, run: usize) -> PlaybackMeasurement {
        PlaybackMeasurement::new(PlaybackId::new(figure, policy, run), Err("no lab".into()))
    }

    #[test]
    fn a_fast_video_costs_as_much_as_several() {
        assert_eq!([1, 6, 18].map(|mbps| job_cost(Bitrate::from_mbps(mbps))), [JOB_COST, JOB_COST, 3 * JOB_COST]);
    }

    #[test]
    fn the_committed_measurements_can_be_read() {
        measurement::tests::check_committed_measurements::<PlaybackId, PlaybackValues>("greenbag");
    }

    #[test]
    fn only_complete_repetitions_are_shown() {
        let all = figures("X-fluct", Effort { runs: Some(3), ..Effort::FULL });
        let mut cells = Vec::new();
        for run in 0..2 {
            cells.extend(all[1].policies.iter().map(|policy| cell(&all[1], *policy, run)));
        }
        cells.extend(all[1].policies.iter().skip(1).map(|policy| cell(&all[1], *policy, 2)));
        let shown = measured_figures(all, &cells);
        assert_eq!((shown.len(), shown[0].runs.len(), shown[0].case.as_str()), (1, 2, "80%"));
        assert_eq!(result_with_optimum(&cells, &shown[0], GreenBagPolicy::Marline, 1), Err("no lab".into()));
        assert!(cells[0].to_line().contains("FAILED: no lab"), "{}", cells[0].to_line());
    }

    #[test]
    fn every_artefact_is_in_the_order() {
        let mut known: Vec<&str> = super::super::figures::ARTEFACTS.into();
        known.push(super::super::figures::TRACES);
        known.sort_unstable();
        let mut command: Vec<&str> = ARTEFACT_ORDER.into();
        command.sort_unstable();
        assert_eq!(known, command);
    }
}
