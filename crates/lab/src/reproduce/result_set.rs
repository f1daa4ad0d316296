//! The measurements of a running reproduction: those of earlier sessions, and those that this session adds from
//! several workers. Each one is reported and stored as soon as it is complete.
//!
//! 1. A stored, reliable measurement is not repeated.
//! 2. Items that belong together (a batch) are measured by one worker, one after the other; batches run in parallel
//!    ([`WorkerPool`]).
//! 3. Reporting and storing happen under one lock, so that lines on the terminal and in the file are never mixed.
//! 4. A measurement that the user interrupted is not stored.

use std::sync::{Mutex, PoisonError};

use super::measurement::{MeasuredValues, Measurement, MeasurementId};
use super::store::ResultStore;
use crate::LabError;
use crate::bench::is_interrupted;
use crate::runner::command::notice;
use crate::worker_pool::WorkerPool;

/// The measurements; see the [module documentation](self).
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
    /// Starts with the stored measurements; without a store nothing is stored.
    pub(super) fn new(mut store: Option<ResultStore<Measurement<N, F>>>) -> Self {
        let earlier = store.as_mut().map(|store| std::mem::take(&mut store.earlier_results)).unwrap_or_default();
        Self {
            earlier,
            state: Mutex::new(ResultSetState { store, new_results: Vec::new() }),
            line_prefix: Some(""),
        }
    }

    /// Sets the prefix of each line for people; `None` suppresses the lines.
    pub(super) fn with_line_prefix(self, prefix: Option<&'static str>) -> Self {
        Self { line_prefix: prefix, ..self }
    }

    /// Whether a stored, reliable measurement with this ID exists.
    pub(super) fn is_done(&self, name: &N) -> bool {
        self.earlier.iter().any(|cell| cell.id == *name && cell.is_reliable())
    }

    /// Measures what is not stored yet. Each batch is processed by one worker, its items in order. `name` returns
    /// the ID of an item, `cost` what it takes of the pool's capacity. `measure_one` measures it and returns `None`
    /// if it is omitted or was interrupted.
    pub(super) fn measure<T: Sync>(
        &self,
        batches: &[Vec<T>],
        jobs: usize,
        name: impl Fn(&T) -> N + Sync,
        cost: impl Fn(&T) -> u64 + Sync,
        measure_one: impl Fn(&T) -> Result<Option<Result<F, String>>, LabError> + Sync,
    ) -> Result<(), LabError> {
        let left = |batch: &Vec<T>| batch.iter().any(|item| !self.is_done(&name(item)));
        let all: Vec<&Vec<T>> = batches.iter().filter(|batch| left(batch)).collect();
        let work = |batch: &&Vec<T>| {
            for item in batch.iter().filter(|item| !self.is_done(&name(item))) {
                if is_interrupted() {
                    break;
                }
                if let Some(result) = measure_one(item)?.filter(|_| !is_interrupted()) {
                    self.add(Measurement::new(name(item), result))?;
                }
            }
            Ok(())
        };
        let max = |batch: &&Vec<T>| batch.iter().map(&cost).max().unwrap_or(0);
        WorkerPool::new(jobs).run_each(&all, max, is_interrupted, work)
    }

    /// Reports and stores one measurement.
    fn add(&self, cell: Measurement<N, F>) -> Result<(), LabError> {
        // A worker that panicked here left only complete lines, so the poisoned lock can be used.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prefix) = self.line_prefix {
            notice(&format!("{prefix}{}", cell.to_line()));
        }
        let append_result = state.store.as_mut().map_or(Ok(()), |store| store.append(&cell));
        state.new_results.push(cell);
        append_result
    }

    /// All measurements, those of earlier sessions first.
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

    /// Measures all batches with eight workers.
    fn measure(results: &ResultSet<Named, Late>, all: &[Vec<u32>], one: impl Fn(u32) -> f64 + Sync) {
        results.measure(all, 8, |run| named(*run), |_| JOB_COST, |run| good(one(*run))).unwrap();
    }

    #[test]
    fn parallel_workers_store_whole_lines_and_reliable_measurements_are_not_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lab.jsonl");
        let open =
            |go_on| ResultSet::new(Some(ResultStore::open(&path, go_on, 1.0).unwrap())).with_line_prefix(None);
        let all: Vec<Vec<u32>> = (0..100).map(|pair| vec![2 * pair, 2 * pair + 1]).collect();
        // Every tenth measurement is unreliable.
        let results = open(false);
        measure(&results, &all, |run| if run.is_multiple_of(10) { 0.1 } else { 0.0 });
        let cells = results.into_measurements();
        assert_eq!(cells.len(), 200);
        let position = |run| cells.iter().position(|cell| cell.id == named(run)).unwrap();
        assert!((0..100).all(|pair| position(2 * pair) < position(2 * pair + 1)));
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
    fn omitted_measurements_are_not_stored_and_a_lab_error_ends_the_run() {
        let results: ResultSet<Named, Late> = ResultSet::new(None).with_line_prefix(None);
        let outcome = results.measure(&[vec![1_u32], vec![2]], 1, |run| named(*run), |_| JOB_COST, |_| Ok(None));
        assert!(outcome.is_ok());
        let fails = |run: &u32| match run {
            2 => Err(LabError::Emulator("gone".into())),
            _ => good(0.0),
        };
        let failed = results.measure(&[vec![1_u32, 2, 3], vec![4]], 1, |run| named(*run), |_| JOB_COST, fails);
        assert!(failed.is_err() && results.into_measurements().len() == 1);
    }
}
