//! Does all cases in virtual time, on every processor; or gathers what real time has made of them.
//!
//! In: [`Figure`]s. Out: [`Done`], in the same order whatever was ready first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::figures::Figure;
use super::setting::Who;
use super::simulate::Played;
use crate::evidence::stats;

/// A case and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    /// Each one's repetitions; those that failed with the reason.
    pub(super) runs: Vec<(Who, Vec<Result<Played, String>>)>,
}

impl Done {
    /// Whoever it was, if every repetition was good.
    pub(super) fn played(&self, who: Who) -> Option<Vec<&Played>> {
        let (_, runs) = self.runs.iter().find(|(other, _)| *other == who)?;
        runs.iter().map(|run| run.as_ref().ok()).collect()
    }

    /// The mean of a figure.
    pub(super) fn mean(&self, who: Who, figure: impl Fn(&Played) -> f64) -> Option<f64> {
        stats::mean(&self.played(who)?.into_iter().map(figure).collect::<Vec<_>>())
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

/// Gathers what `each` makes of a figure, a policy and the number of a setting; `tell` hears of every case that is done.
pub(super) fn gather(
    figures: &[Figure],
    each: impl Fn(&Figure, Who, usize) -> Result<Played, String> + Sync,
    tell: impl Fn(&Figure) + Sync,
) -> Vec<Done> {
    let of = |(at, figure): (usize, &Figure)| {
        let runs = figure.settings.len();
        (0..figure.who.len()).flat_map(move |who| (0..runs).map(move |run| (at, who, run))).collect::<Vec<_>>()
    };
    let items: Vec<(usize, usize, usize)> = figures.iter().enumerate().flat_map(of).collect();
    let left: Vec<AtomicUsize> =
        figures.iter().map(|figure| AtomicUsize::new(figure.who.len() * figure.settings.len())).collect();
    let results = Mutex::new(vec![None; items.len()]);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            let Some((at, who, run)) = items.get(item).copied() else { return };
            let figure = &figures[at];
            let played = each(figure, figure.who[who], run);
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
    let mut next = || results.next().flatten().unwrap_or_else(|| Err("was not done".into()));
    let of = |figure: &Figure| {
        let mut repeated = |who: &Who| (*who, figure.settings.iter().map(|_| next()).collect());
        Done {
            artefact: figure.artefact,
            case: figure.case.clone(),
            runs: figure.who.iter().map(&mut repeated).collect(),
        }
    };
    figures.iter().map(of).collect()
}
