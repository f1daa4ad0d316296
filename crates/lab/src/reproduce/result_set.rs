//! The cells of a reproduction while it goes on: what earlier sessions left, and what this one adds, from several workers.
//!
//! In: things to be measured, in their order; how many at once. Out: cells, each told and kept as soon as it is done.
//!
//! 1. What is there and good is not done again.
//! 2. Things that belong together are done by one worker, one after the other; the rest side by side ([`Crowd`]).
//! 3. Whoever is done tells and keeps his cell alone: lines of people and of the file are whole.
//! 4. What the user broke off is no result, and is not kept.

use std::sync::{Mutex, PoisonError};

use super::measurement::{MeasuredValues, Measurement, MeasurementId};
use super::store::ResultStore;
use crate::LabError;
use crate::bench::is_interrupted;
use crate::runner::command::notice;
use crate::worker_pool::WorkerPool;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct ResultSet<N, F> {
    earlier: Vec<Measurement<N, F>>,
    state: Mutex<ResultSetState<N, F>>,
    line_prefix: Option<&'static str>,
}

#[derive(Debug)]
struct ResultSetState<N, F> {
    store: Option<ResultStore<Measurement<N, F>>>,
    new_results: Vec<Measurement<N, F>>,
}

impl<N: MeasurementId + Send + Sync, F: MeasuredValues + Send + Sync> ResultSet<N, F> {
    /// With what the store has from earlier; without one nothing is kept.
    pub(super) fn new(mut store: Option<ResultStore<Measurement<N, F>>>) -> Self {
        let earlier = store.as_mut().map(|store| std::mem::take(&mut store.earlier_results)).unwrap_or_default();
        Self {
            earlier,
            state: Mutex::new(ResultSetState { store, new_results: Vec::new() }),
            line_prefix: Some(""),
        }
    }

    /// Each line for people begins so; none: there is no line.
    pub(super) fn with_line_prefix(self, told: Option<&'static str>) -> Self {
        Self { line_prefix: told, ..self }
    }

    /// Whether this one need not be done again.
    pub(super) fn is_done(&self, name: &N) -> bool {
        self.earlier.iter().any(|cell| cell.id == *name && cell.is_reliable())
    }

    /// Measures what is not there yet. Each of `all` is one worker's: things in their order. `name` says which one a thing is,
    /// `room` what a worker needs for his, `one` does it; none: it is left out, or was broken off.
    pub(super) fn measure<T: Sync>(
        &self,
        batches: &[Vec<T>],
        jobs: usize,
        name: impl Fn(&T) -> N + Sync,
        cost: impl Fn(&T) -> u64 + Sync,
        measure_one: impl Fn(&T) -> Result<Option<Result<F, String>>, LabError> + Sync,
    ) -> Result<(), LabError> {
        let left = |things: &Vec<T>| things.iter().any(|thing| !self.is_done(&name(thing)));
        let all: Vec<&Vec<T>> = batches.iter().filter(|things| left(things)).collect();
        let work = |things: &&Vec<T>| {
            for thing in things.iter().filter(|thing| !self.is_done(&name(thing))) {
                if is_interrupted() {
                    break;
                }
                if let Some(came) = measure_one(thing)?.filter(|_| !is_interrupted()) {
                    self.add(Measurement::new(name(thing), came))?;
                }
            }
            Ok(())
        };
        let max = |things: &&Vec<T>| things.iter().map(&cost).max().unwrap_or(0);
        WorkerPool::new(jobs).run_each(&all, max, is_interrupted, work)
    }

    /// Tells and keeps one more.
    fn add(&self, cell: Measurement<N, F>) -> Result<(), LabError> {
        // A worker that broke down within has left whole lines.
        let mut pages = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = self.line_prefix {
            notice(&format!("{told}{}", cell.to_line()));
        }
        let kept = pages.store.as_mut().map_or(Ok(()), |store| store.append(&cell));
        pages.new_results.push(cell);
        kept
    }

    /// All that there is by now, the earlier ones first.
    pub(super) fn into_measurements(self) -> Vec<Measurement<N, F>> {
        let mut cells = self.earlier;
        cells.extend(self.state.into_inner().unwrap_or_else(PoisonError::into_inner).new_results);
        cells
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::measurement::tests::{Late, Named, named};
    use super::*;
    use crate::worker_pool::JOB_COST;

    fn good(late_s: f64) -> Result<Option<Result<Late, String>>, LabError> {
        Ok(Some(Ok(Late { late_s })))
    }

    /// All of these, eight workers.
    fn measure(results: &ResultSet<Named, Late>, all: &[Vec<u32>], one: impl Fn(u32) -> f64 + Sync) {
        results.measure(all, 8, |run| named(*run), |_| JOB_COST, |run| good(one(*run))).unwrap();
    }

    #[test]
    fn many_workers_keep_whole_lines_and_what_is_good_is_not_done_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lab.jsonl");
        let open =
            |go_on| ResultSet::new(Some(ResultStore::open(&path, go_on, 1.0).unwrap())).with_line_prefix(None);
        let all: Vec<Vec<u32>> = (0..100).map(|pair| vec![2 * pair, 2 * pair + 1]).collect();
        // Every tenth is suspect.
        let results = open(false);
        measure(&results, &all, |run| if run.is_multiple_of(10) { 0.1 } else { 0.0 });
        let cells = results.into_measurements();
        assert_eq!(cells.len(), 200);
        let place = |run| cells.iter().position(|cell| cell.id == named(run)).unwrap();
        assert!((0..100).all(|pair| place(2 * pair) < place(2 * pair + 1)));
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().count() == 201
                && text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
        );
        let results = open(true);
        measure(&results, &all, |run| {
            assert_eq!(run % 10, 0);
            0.0
        });
        let cells = results.into_measurements();
        assert_eq!(cells.len(), 220);
        assert!((0..200).all(|run| super::super::measurement::latest(&cells, &named(run)).unwrap().is_reliable()));
        measure(&open(true), &all, |_| unreachable!("everything is there"));
    }

    #[test]
    fn what_is_left_out_is_not_kept_and_a_lab_that_fails_ends_it() {
        let results: ResultSet<Named, Late> = ResultSet::new(None).with_line_prefix(None);
        let nothing = results.measure(&[vec![1_u32], vec![2]], 1, |run| named(*run), |_| JOB_COST, |_| Ok(None));
        assert!(nothing.is_ok());
        let fails = |run: &u32| match run {
            2 => Err(LabError::Emulator("gone".into())),
            _ => good(0.0),
        };
        let failed = results.measure(&[vec![1_u32, 2, 3], vec![4]], 1, |run| named(*run), |_| JOB_COST, fails);
        assert!(failed.is_err() && results.into_measurements().len() == 1);
    }
}
