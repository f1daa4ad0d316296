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
pub(crate) const PLACE: u64 = 1000;
/// The most labs that a user may have side by side (`--jobs`). chosen: two to a core of a large machine; more would only be
/// late.
pub(crate) const MOST_JOBS: u16 = 16;
/// More room than there is.
pub(crate) const ALONE: u64 = u64::MAX;

/// The room: so many [`PLACE`]s.
#[derive(Debug)]
pub(crate) struct Crowd {
    places: usize,
    taken: Mutex<u64>,
    left: Condvar,
}

impl Crowd {
    /// So many at once; one at least.
    pub(crate) fn new(places: usize) -> Self {
        Self { places: places.max(1), taken: Mutex::new(0), left: Condvar::new() }
    }

    /// Does each of these. `room` is what it takes, at least one [`PLACE`]; `is_over` says that the user wants an end.
    ///
    /// # Errors
    /// The first one of `one`, unless it is over.
    pub(crate) fn each<T: Sync>(
        &self,
        all: &[T],
        room: impl Fn(&T) -> u64 + Sync,
        is_over: impl Fn() -> bool + Sync,
        one: impl Fn(&T) -> Result<(), LabError> + Sync,
    ) -> Result<(), LabError> {
        let (next, broken) = (AtomicUsize::new(0), Mutex::new(None::<LabError>));
        let is_broken = || broken.lock().map_or(true, |broken| broken.is_some());
        let work = || {
            while !is_over() && !is_broken() {
                let Some(item) = all.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                let _place = self.admit(room(item));
                if is_over() || is_broken() {
                    return;
                }
                if let (Err(error), Ok(mut broken)) = (one(item), broken.lock()) {
                    broken.get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| (0..self.places).for_each(|_| drop(scope.spawn(work))));
        match broken.into_inner() {
            Ok(Some(error)) if !is_over() => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits for room.
    fn admit(&self, room: u64) -> Place<'_> {
        let (room, most) = (room.max(PLACE), PLACE * self.places as u64);
        let is_full = |taken: &mut u64| *taken > 0 && taken.saturating_add(room) > most;
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *self.left.wait_while(taken, is_full).unwrap_or_else(PoisonError::into_inner) += room;
        Place { crowd: self, room }
    }
}

/// Somebody's room, until he leaves.
struct Place<'a> {
    crowd: &'a Crowd,
    room: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.crowd.taken.lock().unwrap_or_else(PoisonError::into_inner) -= self.room;
        self.crowd.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most that were under way at once; one that is alone counts a hundred.
    fn most(places: usize, rooms: &[u64]) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let one = |room: &u64| {
            let weight = match *room {
                ALONE => 100,
                room => usize::try_from(room / PLACE).unwrap_or(0),
            };
            most.fetch_max(now.fetch_add(weight, Ordering::SeqCst) + weight, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(weight, Ordering::SeqCst);
            Ok(())
        };
        Crowd::new(places).each(rooms, |room| *room, || false, one).unwrap();
        most.into_inner()
    }

    #[test]
    fn there_are_never_more_than_there_is_room_for_and_one_that_is_too_large_is_alone() {
        let mixed: Vec<u64> = (0..200).map(|at| if at % 20 == 7 { ALONE } else { PLACE * (1 + at % 3) }).collect();
        assert_eq!(most(4, &mixed), 100);
        let small: Vec<u64> = mixed.into_iter().filter(|room| *room != ALONE).collect();
        assert!((1..=4).contains(&most(4, &small)));
        assert_eq!(most(1, &[PLACE; 50]), 1);
    }

    #[test]
    fn each_is_done_once_and_by_one_worker_in_its_order() {
        let done = Mutex::new(Vec::new());
        let one = |item: &usize| {
            done.lock().unwrap().push(*item);
            Ok(())
        };
        let all: Vec<usize> = (0..300).collect();
        Crowd::new(6).each(&all, |_| PLACE, || false, one).unwrap();
        let mut several = std::mem::take(&mut *done.lock().unwrap());
        several.sort_unstable();
        assert_eq!(several, all);
        Crowd::new(1).each(&all, |_| PLACE, || false, one).unwrap();
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
        let said = Crowd::new(1).each(&all, |_| PLACE, || false, fails).unwrap_err().to_string();
        assert!(said.contains("gone") && begun.load(Ordering::SeqCst) == 4, "{said}");
        let is_over = || begun.load(Ordering::SeqCst) >= 4;
        Crowd::new(3).each(&all, |_| PLACE, is_over, fails).unwrap();
        assert_eq!(begun.into_inner(), 4);
    }
}
