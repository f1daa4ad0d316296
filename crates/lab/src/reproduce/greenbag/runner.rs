//! Plays all cases, on every processor.
//!
//! In: [`Figure`]s. Out: [`Done`], in the same order whatever was ready first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::figures::Figure;
use super::setting::{Played, Who};
use crate::evidence::stats;

/// A case and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    /// Each one's repetitions; those that failed with the reason.
    pub(super) runs: Vec<(Who, Vec<Result<Played, String>>)>,
    /// Of whom how many repetitions are suspect.
    pub(super) suspects: Vec<(Who, usize)>,
}

impl Done {
    /// Whoever it was, if every repetition was good.
    pub(super) fn played(&self, who: Who) -> Option<Vec<Played>> {
        let (_, runs) = self.runs.iter().find(|(other, _)| *other == who)?;
        runs.iter().map(|run| run.as_ref().ok().copied()).collect()
    }

    /// The mean of a figure.
    pub(super) fn mean(&self, who: Who, figure: impl Fn(&Played) -> f64) -> Option<f64> {
        stats::mean(&self.played(who)?.iter().map(figure).collect::<Vec<_>>())
    }

    /// What went wrong.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.runs.iter().flat_map(move |(who, runs)| {
            let failed = runs.iter().enumerate().filter_map(|(run, played)| Some((run, played.as_ref().err()?)));
            failed.map(move |(run, why)| {
                format!("{} {} {} run {run}: FAILED: {why}", self.artefact, self.case, who.name())
            })
        })
    }
}

/// Everything that is to be played: which figure, which of its policies, which of its settings.
pub(super) fn items(figures: &[Figure]) -> Vec<(usize, usize, usize)> {
    let of = |(at, figure): (usize, &Figure)| {
        let seeds = figure.settings.len();
        (0..figure.who.len()).flat_map(move |who| (0..seeds).map(move |seed| (at, who, seed))).collect::<Vec<_>>()
    };
    figures.iter().enumerate().flat_map(of).collect()
}

/// Plays everything in virtual time; `tell` hears of every case when all of it is done.
pub(super) fn play(figures: &[Figure], tell: impl Fn(&Figure) + Sync) -> Vec<Done> {
    gather(figures, |figure, who, seed| figure.settings[seed].play(who, figure.energy), tell)
}

/// Gathers what `each` makes of a figure, a policy and the number of a setting.
pub(super) fn gather(
    figures: &[Figure],
    each: impl Fn(&Figure, Who, usize) -> Result<Played, String> + Sync,
    tell: impl Fn(&Figure) + Sync,
) -> Vec<Done> {
    let items = items(figures);
    let results: Mutex<Vec<Option<Result<Played, String>>>> = Mutex::new(vec![None; items.len()]);
    let left: Vec<AtomicUsize> =
        figures.iter().map(|figure| AtomicUsize::new(figure.who.len() * figure.settings.len())).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            let Some((at, who, seed)) = items.get(item).copied() else { return };
            let figure = &figures[at];
            let played = each(figure, figure.who[who], seed);
            if let Ok(mut results) = results.lock() {
                results[item] = Some(played);
            }
            if left[at].fetch_sub(1, Ordering::Relaxed) == 1 {
                tell(figure);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().unwrap_or_default().into_iter();
    let mut next = || results.next().flatten().unwrap_or_else(|| Err("was not played".into()));
    let of = |figure: &Figure| {
        let mut repeated = |who: &Who| (*who, figure.settings.iter().map(|_| next()).collect());
        let runs = figure.who.iter().map(&mut repeated).collect();
        Done { artefact: figure.artefact, case: figure.case.clone(), runs, suspects: Vec::new() }
    };
    figures.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::figures::{Effort, figures};
    use super::*;

    #[test]
    fn results_stand_where_their_cases_do() {
        let figures = figures("F10", Effort::QUICK);
        let done = play(&figures, |_| {});
        assert_eq!(done.len(), 3);
        for (figure, done) in figures.iter().zip(&done) {
            assert_eq!(figure.case, done.case);
            assert_eq!(figure.who, done.runs.iter().map(|(who, _)| *who).collect::<Vec<_>>());
            assert_eq!(done.problems().count(), 0);
            let (again, there) = (figure.settings[0].play(Who::Equal, false), done.played(Who::Equal).unwrap());
            assert_eq!(again.unwrap(), there[0]);
        }
        let late = |at: usize, who| done[at].mean(who, |played| played.playback - played.least_playback).unwrap();
        assert!(late(0, Who::GreenbagP) < 0.5 && late(2, Who::GreenbagP) < 0.5);
        assert!(late(2, Who::Equal) > late(2, Who::GreenbagP) + 0.5);
    }
}
