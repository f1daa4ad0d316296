//! Runs all cases in virtual time on all CPU cores, or collects their results from real time. The results are in
//! the order of the figures.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::config::EmptcpClient;
use super::figures::FigureCase;
use super::simulate::CaseResult;
use crate::results::stats;

/// A case and its results.
#[derive(Clone, Debug)]
pub(super) struct CaseResults {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    /// Results of each client's repetitions; failed ones with the reason.
    pub(super) runs: Vec<(EmptcpClient, Vec<Result<CaseResult, String>>)>,
}

impl CaseResults {
    /// All results of a client, if every repetition succeeded.
    pub(super) fn all_results(&self, client: EmptcpClient) -> Option<Vec<&CaseResult>> {
        let (_, runs) = self.runs.iter().find(|(other, _)| *other == client)?;
        runs.iter().map(|run| run.as_ref().ok()).collect()
    }

    /// Mean of a value over the repetitions.
    pub(super) fn mean(&self, client: EmptcpClient, figure: impl Fn(&CaseResult) -> f64) -> Option<f64> {
        stats::mean(&self.all_results(client)?.into_iter().map(figure).collect::<Vec<_>>())
    }

    /// Descriptions of all failures.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.runs.iter().flat_map(move |(client, runs)| {
            let failed = runs.iter().enumerate().filter_map(|(run, played)| Some((run, played.as_ref().err()?)));
            failed.map(move |(run, reason)| {
                format!("{} {} {} run {run}: FAILED: {reason}", self.artefact, self.case, client.name())
            })
        })
    }
}

/// Calls `run_one` for each figure, client and repetition, in parallel. `on_case_done` is called when all runs of a
/// case are complete.
pub(super) fn run_all(
    figures: &[FigureCase],
    run_one: impl Fn(&FigureCase, EmptcpClient, usize) -> Result<CaseResult, String> + Sync,
    on_case_done: impl Fn(&FigureCase) + Sync,
) -> Vec<CaseResults> {
    let items_of = |(at, figure): (usize, &FigureCase)| {
        let runs = figure.runs.len();
        (0..figure.clients.len())
            .flat_map(move |client| (0..runs).map(move |run| (at, client, run)))
            .collect::<Vec<_>>()
    };
    let items: Vec<(usize, usize, usize)> = figures.iter().enumerate().flat_map(items_of).collect();
    let left: Vec<AtomicUsize> =
        figures.iter().map(|figure| AtomicUsize::new(figure.clients.len() * figure.runs.len())).collect();
    let results = Mutex::new(vec![None; items.len()]);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            let Some((at, client_kind, run)) = items.get(item).copied() else { return };
            let figure = &figures[at];
            let played = run_one(figure, figure.clients[client_kind], run);
            if let Ok(mut results) = results.lock() {
                results[item] = Some(played);
            }
            if left[at].fetch_sub(1, Ordering::Relaxed) == 1 {
                on_case_done(figure);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().unwrap_or_default().into_iter();
    let mut next = || results.next().flatten().unwrap_or_else(|| Err("was not run".into()));
    let results_of = |figure: &FigureCase| {
        let mut repeated = |client: &EmptcpClient| (*client, figure.runs.iter().map(|_| next()).collect());
        CaseResults {
            artefact: figure.artefact,
            case: figure.case.clone(),
            runs: figure.clients.iter().map(&mut repeated).collect(),
        }
    };
    figures.iter().map(results_of).collect()
}
