//! Runs all cases in virtual time on all CPU cores, or collects their results from real time. The results are in
//! the order of the figures.

use super::config::EmptcpClient;
use super::figures::FigureCase;
use super::simulate::CaseResult;
use crate::reproduce::parallel::run_cases;
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
    let run_counts: Vec<usize> = figures.iter().map(|figure| figure.clients.len() * figure.runs.len()).collect();
    let run = |at: usize, number: usize| {
        let figure = &figures[at];
        run_one(figure, figure.clients[number / figure.runs.len()], number % figure.runs.len())
    };
    let results = run_cases(&run_counts, run, |at| on_case_done(&figures[at]));
    let results_of = |(figure, results): (&FigureCase, Vec<Result<CaseResult, String>>)| {
        let mut results = results.into_iter();
        let mut repeated =
            |client: &EmptcpClient| (*client, results.by_ref().take(figure.runs.len()).collect::<Vec<_>>());
        CaseResults {
            artefact: figure.artefact,
            case: figure.case.clone(),
            runs: figure.clients.iter().map(&mut repeated).collect(),
        }
    };
    figures.iter().zip(results).map(results_of).collect()
}
