//! Several things at once, each done by one worker from its beginning to its end.
//!
//! In: things in their order, how many at once, how much of the crowd's room each takes. Out: whether the user stopped it.
//!
//! 1. A lab needs minutes of real time and little of a processor, so several run side by side, each in namespaces of its own.
//!    What a crowd would spoil is seen in each of them: how late its emulator was.
//! 2. They are begun in their order. One that needs all the room waits until nobody else is there, and nobody begins beside
//!    it ([`ALONE`]).
//! 3. After an error, and after Ctrl-C, nothing more is begun. What is under way ends by itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::LabError;

/// The room that most things take.
pub(crate) const JOB_COST: u64 = 1000;
/// The most labs that a user may have side by side (`--jobs`). chosen: two to a core of a large machine; more would only be
/// late.
pub(crate) const MAX_JOBS: u16 = 16;
/// More room than there is.
pub(crate) const EXCLUSIVE_COST: u64 = u64::MAX;

/// The room: so many [`PLACE`]s.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    workers: usize,
    used: Mutex<u64>,
    released: Condvar,
}

impl WorkerPool {
    /// So many at once; one at least.
    pub(crate) fn new(places: usize) -> Self {
        Self { workers: places.max(1), used: Mutex::new(0), released: Condvar::new() }
    }

    /// Does each of these. `room` is what it takes, at least one [`PLACE`]; `is_over` says that the user wants an end.
    ///
    /// # Errors
    /// The first one of `one`, unless it is over.
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

    /// Waits for room.
    fn acquire(&self, cost: u64) -> Permit<'_> {
        let (cost, capacity) = (cost.max(JOB_COST), JOB_COST * self.workers as u64);
        let is_full = |used: &mut u64| *used > 0 && used.saturating_add(cost) > capacity;
        let guard = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        *self.released.wait_while(guard, is_full).unwrap_or_else(PoisonError::into_inner) += cost;
        Permit { pool: self, cost }
    }
}

/// Somebody's room, until he leaves.
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

    /// The most that were under way at once; one that is alone counts a hundred.
    fn max_concurrent(places: usize, rooms: &[u64]) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let one = |room: &u64| {
            let weight = match *room {
                EXCLUSIVE_COST => 100,
                room => usize::try_from(room / JOB_COST).unwrap_or(0),
            };
            most.fetch_max(now.fetch_add(weight, Ordering::SeqCst) + weight, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(weight, Ordering::SeqCst);
            Ok(())
        };
        WorkerPool::new(places).run_each(rooms, |room| *room, || false, one).unwrap();
        most.into_inner()
    }

    #[test]
    fn there_are_never_more_than_there_is_room_for_and_one_that_is_too_large_is_alone() {
        let mixed: Vec<u64> =
            (0..200).map(|at| if at % 20 == 7 { EXCLUSIVE_COST } else { JOB_COST * (1 + at % 3) }).collect();
        assert_eq!(max_concurrent(4, &mixed), 100);
        let small: Vec<u64> = mixed.into_iter().filter(|room| *room != EXCLUSIVE_COST).collect();
        assert!((1..=4).contains(&max_concurrent(4, &small)));
        assert_eq!(max_concurrent(1, &[JOB_COST; 50]), 1);
    }

    #[test]
    fn each_is_done_once_and_by_one_worker_in_its_order() {
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
    fn an_error_and_the_users_end_let_nothing_more_begin() {
        let begun = AtomicUsize::new(0);
        let fails = |item: &usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            if *item == 3 { Err(LabError::Emulator("gone".into())) } else { Ok(()) }
        };
        let all: Vec<usize> = (0..1000).collect();
        let said = WorkerPool::new(1).run_each(&all, |_| JOB_COST, || false, fails).unwrap_err().to_string();
        assert!(said.contains("gone") && begun.load(Ordering::SeqCst) == 4, "{said}");
        let is_over = || begun.load(Ordering::SeqCst) >= 4;
        WorkerPool::new(3).run_each(&all, |_| JOB_COST, is_over, fails).unwrap();
        assert_eq!(begun.into_inner(), 4);
    }
}
