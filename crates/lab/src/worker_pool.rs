//! Worker pool: runs several jobs in parallel, each from start to end by one worker, with a limit on their total
//! cost.
//!
//! 1. A lab needs minutes of real time and little CPU, so several run side by side, each in namespaces of its own.
//!    If parallel labs disturb each other, the report of each one shows it: its emulator was late.
//! 2. Jobs start in their order. A job that costs more than the whole capacity waits until no other job runs, and
//!    no other job starts beside it ([`EXCLUSIVE_COST`]).
//! 3. After an error and after Ctrl-C no further job starts. Running jobs end by themselves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::LabError;

/// Cost of an ordinary job. The capacity of a pool is this times its number of workers.
pub(crate) const JOB_COST: u64 = 1000;
/// Largest value of `--jobs`. Our choice: two labs per core of a large machine; with more, the emulators would only
/// be late.
pub(crate) const MAX_JOBS: u16 = 16;
/// Cost of a job that must run alone: more than any capacity.
pub(crate) const EXCLUSIVE_COST: u64 = u64::MAX;

/// Workers, and the capacity that running jobs use; see the [module documentation](self).
#[derive(Debug)]
pub(crate) struct WorkerPool {
    workers: usize,
    used: Mutex<u64>,
    released: Condvar,
}

impl WorkerPool {
    /// A pool of this many workers, at least one.
    pub(crate) fn new(workers: usize) -> Self {
        Self { workers: workers.max(1), used: Mutex::new(0), released: Condvar::new() }
    }

    /// Runs every item. `cost` is what an item takes of the capacity, at least [`JOB_COST`]; `is_cancelled` reports
    /// that the user stopped the run.
    ///
    /// # Errors
    /// The first error of `run_one`, unless the run was cancelled.
    pub(crate) fn run_each<T: Sync>(
        &self,
        items: &[T],
        cost: impl Fn(&T) -> u64 + Sync,
        is_cancelled: impl Fn() -> bool + Sync,
        run_one: impl Fn(&T) -> Result<(), LabError> + Sync,
    ) -> Result<(), LabError> {
        let (next, first_error) = (AtomicUsize::new(0), Mutex::new(None::<LabError>));
        let has_failed = || first_error.lock().map_or(true, |broken| broken.is_some());
        let worker = || {
            while !is_cancelled() && !has_failed() {
                let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                let _permit = self.acquire(cost(item));
                if is_cancelled() || has_failed() {
                    return;
                }
                if let (Err(error), Ok(mut slot)) = (run_one(item), first_error.lock()) {
                    slot.get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| (0..self.workers).for_each(|_| drop(scope.spawn(worker))));
        match first_error.into_inner() {
            Ok(Some(error)) if !is_cancelled() => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits until the capacity suffices for `cost`, or no other job runs.
    fn acquire(&self, cost: u64) -> Permit<'_> {
        let (cost, capacity) = (cost.max(JOB_COST), JOB_COST * self.workers as u64);
        let is_full = |used: &mut u64| *used > 0 && used.saturating_add(cost) > capacity;
        let guard = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        *self.released.wait_while(guard, is_full).unwrap_or_else(PoisonError::into_inner) += cost;
        Permit { pool: self, cost }
    }
}

/// Capacity that a running job holds; dropping it releases the capacity.
struct Permit<'a> {
    pool: &'a WorkerPool,
    cost: u64,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.pool.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.cost;
        self.pool.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest number of jobs that ran in parallel; an exclusive job counts as a hundred.
    fn max_concurrent(workers: usize, costs: &[u64]) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let one = |cost: &u64| {
            let weight = match *cost {
                EXCLUSIVE_COST => 100,
                cost => usize::try_from(cost / JOB_COST).unwrap_or(0),
            };
            most.fetch_max(now.fetch_add(weight, Ordering::SeqCst) + weight, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(weight, Ordering::SeqCst);
            Ok(())
        };
        WorkerPool::new(workers).run_each(costs, |cost| *cost, || false, one).unwrap();
        most.into_inner()
    }

    #[test]
    fn the_capacity_is_never_exceeded_and_an_exclusive_job_runs_alone() {
        let mixed: Vec<u64> =
            (0..200).map(|at| if at % 20 == 7 { EXCLUSIVE_COST } else { JOB_COST * (1 + at % 3) }).collect();
        assert_eq!(max_concurrent(4, &mixed), 100);
        let small: Vec<u64> = mixed.into_iter().filter(|cost| *cost != EXCLUSIVE_COST).collect();
        assert!((1..=4).contains(&max_concurrent(4, &small)));
        assert_eq!(max_concurrent(1, &[JOB_COST; 50]), 1);
    }

    #[test]
    fn each_job_runs_once_and_one_worker_keeps_the_order() {
        let done = Mutex::new(Vec::new());
        let one = |item: &usize| {
            done.lock().unwrap().push(*item);
            Ok(())
        };
        let all: Vec<usize> = (0..300).collect();
        WorkerPool::new(6).run_each(&all, |_| JOB_COST, || false, one).unwrap();
        let mut several = std::mem::take(&mut *done.lock().unwrap());
        several.sort_unstable();
        assert_eq!(several, all);
        WorkerPool::new(1).run_each(&all, |_| JOB_COST, || false, one).unwrap();
        assert_eq!(done.into_inner().unwrap(), all);
    }

    #[test]
    fn no_job_starts_after_an_error_or_a_cancellation() {
        let begun = AtomicUsize::new(0);
        let fails = |item: &usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            if *item == 3 { Err(LabError::Emulator("gone".into())) } else { Ok(()) }
        };
        let all: Vec<usize> = (0..1000).collect();
        let message = WorkerPool::new(1).run_each(&all, |_| JOB_COST, || false, fails).unwrap_err().to_string();
        assert!(message.contains("gone") && begun.load(Ordering::SeqCst) == 4, "{message}");
        let is_over = || begun.load(Ordering::SeqCst) >= 4;
        WorkerPool::new(3).run_each(&all, |_| JOB_COST, is_over, fails).unwrap();
        assert_eq!(begun.into_inner(), 4);
    }
}
