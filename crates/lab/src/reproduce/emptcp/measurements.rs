//! Runs all cases in real time: several labs in parallel, each result stored as soon as it is available.
//!
//! 1. The order is that of [`ARTEFACT_ORDER`], repetition by repetition. The clients of one case run side by side,
//!    so that a disturbance of the machine affects all of them.
//! 2. A case that fails is stored with its problem. A lab that cannot be built ends the run.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::config::EmptcpClient;
use super::figures::FigureCase;
use super::real::{CaseRunner, RunResult, is_stopped_by_user};
use crate::LabError;
use crate::bench::is_interrupted;
use crate::reproduce::measurement::{self, MeasuredValues, MeasurementId};
use crate::reproduce::result_set::ResultSet;
use crate::worker_pool::JOB_COST;

/// Identity of one repetition of one client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct DownloadId {
    artefact: String,
    case: String,
    #[serde(alias = "who")]
    client: String,
    /// Congestion control of the server.
    congestion: String,
    /// Repetition, from 0; determines the seeds of everything random.
    run: usize,
}

/// One repetition with its result.
pub(super) type DownloadMeasurement = measurement::Measurement<DownloadId, RunResult>;

impl DownloadId {
    fn new(figure: &FigureCase, client: EmptcpClient, run: usize, congestion: &str) -> Self {
        Self {
            artefact: figure.artefact.into(),
            case: figure.case.clone(),
            client: client.name().into(),
            congestion: congestion.into(),
            run,
        }
    }
}

impl MeasurementId for DownloadId {}

impl fmt::Display for DownloadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { artefact, case, client: client_name, run, .. } = self;
        write!(f, "{artefact} {case} {client_name} run {run}")
    }
}

impl MeasuredValues for RunResult {
    fn unreliable_reason(&self) -> Option<String> {
        measurement::unreliable_reason_of(self.p99_lateness_s, self.dropped_before_emulator)
    }

    fn to_line(&self) -> String {
        let mbytes_of = |at: usize| self.links.get(at).map_or(0.0, |link| link.ip_bytes as f64 / 1e6);
        let reported = self.daemon_energy_j.zip(self.packet_energy_at_report_j);
        let reported =
            reported.map(|(reported, packets)| format!("; the daemon reported {reported:.1} of {packets:.1} J"));
        format!(
            "{:.2} s, {:.1} MB ({:.1} over Wi-Fi, {:.1} over LTE), {:.2} J{}",
            self.seconds,
            self.bytes as f64 / 1e6,
            mbytes_of(0),
            mbytes_of(1),
            self.energy_j,
            reported.unwrap_or_default(),
        )
    }
}

/// The artefacts in the order in which they are run: short and informative ones first.
const ARTEFACT_ORDER: [&str; 11] =
    ["short", "F17", "F15", "F16", "F5", "X-unequal", "X-suspend", "F13", "F8", "F10", "F6"];

/// Measures what is not stored yet, with this many jobs in parallel.
pub(super) fn measure_all(
    figures: &[FigureCase],
    results: &ResultSet<DownloadId, RunResult>,
    runner: &CaseRunner,
    jobs: usize,
) -> Result<(), LabError> {
    let congestion = runner.congestion.name();
    let all = figures.iter().enumerate().flat_map(|(at, figure)| {
        let runs = 0..figure.runs.len();
        runs.flat_map(move |run| figure.clients.iter().map(move |client| (at, *client, run)))
    });
    let rank = |at: usize| ARTEFACT_ORDER.iter().position(|artefact| *artefact == figures[at].artefact);
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(at, client, run)| (rank(*at), *run, *at, *client));
    let all: Vec<_> = all.into_iter().map(|one| vec![one]).collect();
    let name = |(at, client, run): &(usize, EmptcpClient, usize)| {
        DownloadId::new(&figures[*at], *client, *run, congestion)
    };
    let one = |(at, client, run): &(usize, EmptcpClient, usize)| {
        let figure = &figures[*at];
        let label = format!("{} {} {} {run}", figure.artefact, figure.case, client.name());
        match runner.run_case(&figure.runs[*run], *client, *run as u64 + 1, &label)? {
            Err(why) if is_interrupted() || is_stopped_by_user(&why) => Ok(None),
            result => Ok(Some(result)),
        }
    };
    results.measure(&all, jobs, name, |_| JOB_COST, one)
}

/// The values of one repetition; the last measurement counts.
pub(super) fn values_of_run<'a>(
    cells: &'a [DownloadMeasurement],
    figure: &FigureCase,
    client: EmptcpClient,
    run: usize,
    congestion: &str,
) -> Result<&'a RunResult, String> {
    measurement::latest_values(cells, &DownloadId::new(figure, client, run, congestion))
}

#[cfg(test)]
mod tests {
    use super::super::figures::{ARTEFACTS, SUSPEND};
    use super::*;

    #[test]
    fn every_artefact_is_in_the_order() {
        let all = ARTEFACTS.into_iter().chain([SUSPEND, super::super::figures::QUICK]);
        assert!(all.clone().all(|artefact| ARTEFACT_ORDER.contains(&artefact)));
        assert_eq!(all.count(), ARTEFACT_ORDER.len());
    }

    #[test]
    fn the_committed_measurements_can_be_read() {
        measurement::tests::check_committed_measurements::<DownloadId, RunResult>("emptcp");
    }

    #[test]
    fn another_sender_is_another_measurement() {
        let figure = &super::super::figures::quick_cases()[0];
        let name = DownloadId::new(figure, EmptcpClient::Marline, 0, "cubic");
        let cells = [DownloadMeasurement::new(name, Err("no lab".into()))];
        assert_eq!(values_of_run(&cells, figure, EmptcpClient::Marline, 0, "cubic").unwrap_err(), "no lab");
        assert_eq!(values_of_run(&cells, figure, EmptcpClient::Marline, 0, "bbr").unwrap_err(), "was not run");
    }
}
