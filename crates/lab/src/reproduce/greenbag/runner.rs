//! Runs all cases in virtual time on all CPU cores, or collects their results from real time. The results are in
//! the order of the figures.

use super::config::{GreenBagPolicy, PlaybackMetrics};
use super::figures::FigureCase;
use crate::reproduce::parallel::run_cases;
use crate::results::stats;

/// A case and its results.
#[derive(Clone, Debug)]
pub(super) struct CaseResults {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    /// Results of each policy's repetitions; failed ones with the reason.
    pub(super) runs: Vec<(GreenBagPolicy, Vec<Result<PlaybackMetrics, String>>)>,
    /// Number of unreliable repetitions per policy.
    pub(super) unreliable: Vec<(GreenBagPolicy, usize)>,
}

impl CaseResults {
    /// All results of a policy, if every repetition succeeded.
    pub(super) fn all_results(&self, policy: GreenBagPolicy) -> Option<Vec<PlaybackMetrics>> {
        let (_, runs) = self.runs.iter().find(|(other, _)| *other == policy)?;
        runs.iter().map(|run| run.as_ref().ok().copied()).collect()
    }

    /// Mean of a value over the repetitions.
    pub(super) fn mean(&self, policy: GreenBagPolicy, figure: impl Fn(&PlaybackMetrics) -> f64) -> Option<f64> {
        stats::mean(&self.all_results(policy)?.iter().map(figure).collect::<Vec<_>>())
    }

    /// Descriptions of all failures.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.runs.iter().flat_map(move |(policy, runs)| {
            let failed = runs.iter().enumerate().filter_map(|(run, played)| Some((run, played.as_ref().err()?)));
            failed.map(move |(run, reason)| {
                format!("{} {} {} run {run}: FAILED: {reason}", self.artefact, self.case, policy.name())
            })
        })
    }
}

/// All runs as indexes of figure, policy and configuration.
pub(super) fn all_runs(figures: &[FigureCase]) -> Vec<(usize, usize, usize)> {
    let items_of = |(at, figure): (usize, &FigureCase)| {
        let seeds = figure.runs.len();
        (0..figure.policies.len())
            .flat_map(move |policy| (0..seeds).map(move |seed| (at, policy, seed)))
            .collect::<Vec<_>>()
    };
    figures.iter().enumerate().flat_map(items_of).collect()
}

/// Simulates everything; `report` is called when all runs of a case are complete.
pub(super) fn simulate_all(figures: &[FigureCase], report: impl Fn(&FigureCase) + Sync) -> Vec<CaseResults> {
    run_all(figures, |figure, policy, seed| figure.runs[seed].simulate(policy, figure.wants_energy), report)
}

/// Calls `simulate_one` for each figure, policy and configuration, in parallel. `on_case_done` is called when all
/// runs of a case are complete.
pub(super) fn run_all(
    figures: &[FigureCase],
    simulate_one: impl Fn(&FigureCase, GreenBagPolicy, usize) -> Result<PlaybackMetrics, String> + Sync,
    on_case_done: impl Fn(&FigureCase) + Sync,
) -> Vec<CaseResults> {
    let run_counts: Vec<usize> = figures.iter().map(|figure| figure.policies.len() * figure.runs.len()).collect();
    let run = |at: usize, number: usize| {
        let figure = &figures[at];
        simulate_one(figure, figure.policies[number / figure.runs.len()], number % figure.runs.len())
    };
    let results = run_cases(&run_counts, run, |at| on_case_done(&figures[at]));
    let results_of = |(figure, results): (&FigureCase, Vec<Result<PlaybackMetrics, String>>)| {
        let mut results = results.into_iter();
        let mut repeated =
            |policy: &GreenBagPolicy| (*policy, results.by_ref().take(figure.runs.len()).collect::<Vec<_>>());
        let runs = figure.policies.iter().map(&mut repeated).collect();
        CaseResults { artefact: figure.artefact, case: figure.case.clone(), runs, unreliable: Vec::new() }
    };
    figures.iter().zip(results).map(results_of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::figures::{Effort, figures};
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_cases() {
        let figures = figures("F10", Effort::QUICK);
        let results = simulate_all(&figures, |_| {});
        assert_eq!(results.len(), 3);
        for (figure, results) in figures.iter().zip(&results) {
            assert_eq!(figure.case, results.case);
            assert_eq!(figure.policies, results.runs.iter().map(|(policy, _)| *policy).collect::<Vec<_>>());
            assert_eq!(results.problems().count(), 0);
            let (again, stored) = (
                figure.runs[0].simulate(GreenBagPolicy::EqualSubsegments, false),
                results.all_results(GreenBagPolicy::EqualSubsegments).unwrap(),
            );
            assert_eq!(again.unwrap(), stored[0]);
        }
        let lateness = |at: usize, policy| {
            results[at].mean(policy, |played| played.playback_time - played.min_playback).unwrap()
        };
        assert!(lateness(0, GreenBagPolicy::GreenbagP) < 0.5 && lateness(2, GreenBagPolicy::GreenbagP) < 0.5);
        assert!(lateness(2, GreenBagPolicy::EqualSubsegments) > lateness(2, GreenBagPolicy::GreenbagP) + 0.5);
    }
}
