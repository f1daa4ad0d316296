//! Does all cases in virtual time, on every processor; or gathers what real time has made of them.
//!
//! In: [`Figure`]s. Out: [`Done`], in the same order whatever was ready first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::config::EmptcpClient;
use super::figures::FigureCase;
use super::simulate::CaseResult;
use crate::results::stats;

/// A case and what came of it.
#[derive(Clone, Debug)]
pub(super) struct CaseResults {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    /// Each one's repetitions; those that failed with the reason.
    pub(super) runs: Vec<(EmptcpClient, Vec<Result<CaseResult, String>>)>,
}

impl CaseResults {
    /// Whoever it was, if every repetition was good.
    pub(super) fn all_results(&self, client: EmptcpClient) -> Option<Vec<&CaseResult>> {
        let (_, runs) = self.runs.iter().find(|(other, _)| *other == client)?;
        runs.iter().map(|run| run.as_ref().ok()).collect()
    }

    /// The mean of a figure.
    pub(super) fn mean(&self, client: EmptcpClient, figure: impl Fn(&CaseResult) -> f64) -> Option<f64> {
        stats::mean(&self.all_results(client)?.into_iter().map(figure).collect::<Vec<_>>())
    }

    /// What went wrong.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.runs.iter().flat_map(move |(client, runs)| {
            let failed = runs.iter().enumerate().filter_map(|(run, played)| Some((run, played.as_ref().err()?)));
            failed.map(move |(run, reason)| {
                format!("{} {} {} run {run}: FAILED: {reason}", self.artefact, self.case, client.name())
            })
        })
    }
}

/// Gathers what `each` makes of a figure, a policy and the number of a setting; `tell` hears of every case that is done.
pub(super) fn run_all(
    figures: &[FigureCase],
    run_one: impl Fn(&FigureCase, EmptcpClient, usize) -> Result<CaseResult, String> + Sync,
    on_case_done: impl Fn(&FigureCase) + Sync,
) -> Vec<CaseResults> {
    let of = |(at, figure): (usize, &FigureCase)| {
        let runs = figure.runs.len();
        (0..figure.clients.len())
            .flat_map(move |client| (0..runs).map(move |run| (at, client, run)))
            .collect::<Vec<_>>()
    };
    let items: Vec<(usize, usize, usize)> = figures.iter().enumerate().flat_map(of).collect();
    let left: Vec<AtomicUsize> =
        figures.iter().map(|figure| AtomicUsize::new(figure.clients.len() * figure.runs.len())).collect();
    let results = Mutex::new(vec![None; items.len()]);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            let Some((at, who, run)) = items.get(item).copied() else { return };
            let figure = &figures[at];
            let played = run_one(figure, figure.clients[who], run);
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
    let of = |figure: &FigureCase| {
        let mut repeated = |client: &EmptcpClient| (*client, figure.runs.iter().map(|_| next()).collect());
        CaseResults {
            artefact: figure.artefact,
            case: figure.case.clone(),
            runs: figure.clients.iter().map(&mut repeated).collect(),
        }
    };
    figures.iter().map(of).collect()
}
