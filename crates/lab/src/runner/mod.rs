//! Runs a scenario with every client and every repetition, in virtual or in real time. Each [`DownloadOutcome`] is
//! also reported as soon as it is available; skipped cases and clients are listed with the reason.
//!
//! 1. Within a repetition the clients take turns, and each repetition begins with another client. So a change of
//!    the machine during the measurement affects all clients.
//! 2. Each download has a fresh lab: no cached TCP metrics, no open connection, and the same seed for all clients
//!    of a repetition.
//! 3. A download that fails is an outcome with a problem; a lab that cannot be built is an error.
//! 4. In virtual time only marline can be simulated; other clients are skipped.

pub(crate) mod command;
mod real;
pub(crate) mod sampler;
pub(crate) mod summary;
mod virtual_time;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use marline_core::units::DataSize;
use marline_sim::scenario::{Case, Client, Scenario};

use crate::results::{Backend, DownloadOutcome};
use crate::{LabError, Payload, scenarios};
pub(crate) use real::sha256;

#[derive(Clone, Debug)]
pub(crate) struct RunPlan<'a> {
    /// Cases and clients.
    pub(crate) scenario: &'a Scenario,
    /// Number of repetitions, instead of the scenario's.
    pub(crate) runs: u32,
    /// Virtual or real time.
    pub(crate) backend: Backend,
    /// Directories of traces.
    pub(crate) traces: Vec<PathBuf>,
    /// Whether to sample CPU and memory of the client over time.
    pub(crate) samples_process: bool,
    /// Whether marline shows its progress to the user.
    pub(crate) shows_progress: bool,
}

/// Results of a plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    /// Outcomes, in the order in which they were obtained.
    pub(crate) outcomes: Vec<DownloadOutcome>,
    /// Name of the skipped case or client, and the reason.
    pub(crate) skipped: Vec<(String, String)>,
    /// Whether a case was skipped because its trace is missing.
    pub(crate) is_trace_missing: bool,
    /// Whether the user interrupted the run. The interrupted download is not among the outcomes.
    pub(crate) is_stopped: bool,
}

impl RunPlan<'_> {
    /// Clients that exist on this backend.
    fn clients(&self) -> Vec<&Client> {
        self.scenario.clients.iter().filter(|client| self.backend == Backend::Lab || client.is_marline()).collect()
    }

    /// The cases whose traces could be loaded.
    fn loaded_cases(&self) -> impl Iterator<Item = Case> {
        let cases = self.scenario.cases.iter().cloned();
        cases.filter_map(|mut case| case.load(&self.traces).is_ok().then_some(case))
    }

    /// Number of downloads, without cases whose traces are missing.
    pub(crate) fn download_count(&self) -> usize {
        self.loaded_cases().count() * self.clients().len() * self.runs as usize
    }

    /// Lower bound of the total time in real time: the ideal time of each client's links.
    pub(crate) fn min_time(&self) -> Duration {
        let mut once = Duration::ZERO;
        for case in self.loaded_cases() {
            for client in self.clients() {
                let mut alone = case.clone();
                alone.links.retain(|link| client.only_link().is_none_or(|only| only == link.name));
                alone.events.retain(|event| alone.links.iter().any(|link| link.name == event.link));
                once += alone.ideal_time().unwrap_or_default();
            }
        }
        once * self.runs
    }

    /// Runs the plan. `is_done` tells whether an outcome exists already (case, client, run); `on_outcome` receives each new one.
    pub(crate) fn run(
        &self,
        is_done: impl Fn(&str, &Client, u32) -> bool,
        mut on_outcome: impl FnMut(&DownloadOutcome),
    ) -> Result<Results, LabError> {
        let mut results = Results::default();
        let mut runner = DownloadRunner::new(self)?;
        let clients = self.clients();
        for other in self.scenario.clients.iter().filter(|c| !clients.contains(c)) {
            results.skipped.push((other.to_string(), "cannot be simulated".into()));
        }
        if self.backend == Backend::Lab {
            crate::clients::check_installed(clients.iter().copied())?;
        }
        for case in &self.scenario.cases {
            let mut case = case.clone();
            if let Err(error) = case.load(&self.traces) {
                results.skipped.push((case.name.clone(), scenarios::trace_error_text(&error, &self.traces)));
                results.is_trace_missing = true;
                continue;
            }
            for run in 0..self.runs {
                // All clients of a repetition get the same sampled rates.
                let drawn = case.with_sampled_rates(run);
                for client_index in 0..clients.len() {
                    // Each repetition begins with another client (rule 1).
                    let client = clients[(client_index + run as usize) % clients.len()];
                    if is_done(&case.name, client, run) {
                        continue;
                    }
                    let outcome = runner.outcome(&drawn, client, run)?.with_energy();
                    // A download that the user interrupted is not a result.
                    if self.backend == Backend::Lab && marline_sys::signal::last_caught().is_some() {
                        results.is_stopped = true;
                        return Ok(results);
                    }
                    on_outcome(&outcome);
                    results.outcomes.push(outcome);
                }
            }
        }
        Ok(results)
    }
}

/// State that is kept between downloads.
struct DownloadRunner<'a> {
    plan: &'a RunPlan<'a>,
    program: PathBuf,
    /// Served files, by size.
    payloads: BTreeMap<DataSize, Payload>,
}

impl<'a> DownloadRunner<'a> {
    fn new(plan: &'a RunPlan<'a>) -> Result<Self, LabError> {
        // Virtual time and other clients do not need marline's executable.
        let is_run = plan.backend == Backend::Lab && plan.scenario.clients.iter().any(Client::is_marline);
        let program = if is_run { crate::program::marline()? } else { PathBuf::new() };
        Ok(Self { plan, program, payloads: BTreeMap::new() })
    }

    fn outcome(&mut self, case: &Case, client: &Client, run: u32) -> Result<DownloadOutcome, LabError> {
        match self.plan.backend {
            Backend::Sim => Ok(virtual_time::simulate_download(case, client, run, self.plan.scenario.protocol)),
            Backend::Lab => {
                let payload = match self.payloads.entry(case.size) {
                    std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                    std::collections::btree_map::Entry::Vacant(entry) => {
                        let step = LabError::at_step(format!("a file of {} in memory", case.size));
                        entry.insert(Payload::new(case.size).map_err(step)?)
                    }
                };
                let secure = self.plan.scenario.protocol == marline_sim::scenario::Protocol::Https;
                real::run_download(&real::DownloadSpec {
                    case,
                    client,
                    run,
                    payload,
                    uses_tls: secure,
                    program: &self.program,
                    samples_process: self.plan.samples_process,
                    shows_progress: self.plan.shows_progress,
                })
            }
        }
    }
}

/// Formats a duration for people: `48 seconds`, `20 minutes`, `1.5 hours`.
pub(crate) fn format_duration(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 120.0 => format!("{seconds:.0} seconds"),
        seconds if seconds < 3600.0 => format!("{:.0} minutes", seconds / 60.0),
        seconds => format!("{:.1} hours", seconds / 3600.0),
    }
}

/// Time limit of a download: four times the ideal time over the client's links, and a minute for timeouts.
fn time_limit(case: &Case, client: &Client) -> Duration {
    let links: Vec<_> =
        case.links.iter().filter(|link| client.only_link().is_none_or(|only| only == link.name)).cloned().collect();
    let alone = marline_sim::lower_bound::ideal_time(&links, &case.events, case.size).or_else(|| case.ideal_time());
    alone.unwrap_or_default() * 4 + Duration::from_secs(60)
}

#[cfg(test)]
mod tests;
