//! The cells of a reproduction while it goes on: what earlier sessions left, and what this one adds, from several workers.
//!
//! In: things to be measured, in their order; how many at once. Out: cells, each told and kept as soon as it is done.
//!
//! 1. What is there and good is not done again.
//! 2. Things that belong together are done by one worker, one after the other; the rest side by side ([`Crowd`]).
//! 3. Whoever is done tells and keeps his cell alone: lines of people and of the file are whole.
//! 4. What the user broke off is no result, and is not kept.

use std::sync::{Mutex, PoisonError};

use super::cell::{Cell, Figures, Name};
use super::store::Store;
use crate::LabError;
use crate::bench::is_stopped;
use crate::crowd::Crowd;
use crate::runner::command::say;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Book<N, F> {
    earlier: Vec<Cell<N, F>>,
    pages: Mutex<Pages<N, F>>,
    told: Option<&'static str>,
}

#[derive(Debug)]
struct Pages<N, F> {
    store: Option<Store<Cell<N, F>>>,
    added: Vec<Cell<N, F>>,
}

impl<N: Name + Send + Sync, F: Figures + Send + Sync> Book<N, F> {
    /// With what the store has from earlier; without one nothing is kept.
    pub(super) fn new(mut store: Option<Store<Cell<N, F>>>) -> Self {
        let earlier = store.as_mut().map(|store| std::mem::take(&mut store.earlier)).unwrap_or_default();
        Self { earlier, pages: Mutex::new(Pages { store, added: Vec::new() }), told: Some("") }
    }

    /// Each line for people begins so; none: there is no line.
    pub(super) fn telling(self, told: Option<&'static str>) -> Self {
        Self { told, ..self }
    }

    /// Whether this one need not be done again.
    pub(super) fn has(&self, name: &N) -> bool {
        self.earlier.iter().any(|cell| cell.name == *name && cell.is_good())
    }

    /// Measures what is not there yet. Each of `all` is one worker's: things in their order. `name` says which one a thing is,
    /// `room` what a worker needs for his, `one` does it; none: it is left out, or was broken off.
    pub(super) fn measure<T: Sync>(
        &self,
        all: &[Vec<T>],
        at_once: usize,
        name: impl Fn(&T) -> N + Sync,
        room: impl Fn(&T) -> u64 + Sync,
        one: impl Fn(&T) -> Result<Option<Result<F, String>>, LabError> + Sync,
    ) -> Result<(), LabError> {
        let left = |things: &Vec<T>| things.iter().any(|thing| !self.has(&name(thing)));
        let all: Vec<&Vec<T>> = all.iter().filter(|things| left(things)).collect();
        let work = |things: &&Vec<T>| {
            for thing in things.iter().filter(|thing| !self.has(&name(thing))) {
                if is_stopped() {
                    break;
                }
                if let Some(came) = one(thing)?.filter(|_| !is_stopped()) {
                    self.add(Cell::new(name(thing), came))?;
                }
            }
            Ok(())
        };
        let most = |things: &&Vec<T>| things.iter().map(&room).max().unwrap_or(0);
        Crowd::new(at_once).each(&all, most, is_stopped, work)
    }

    /// Tells and keeps one more.
    fn add(&self, cell: Cell<N, F>) -> Result<(), LabError> {
        // A worker that broke down within has left whole lines.
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = self.told {
            say(&format!("{told}{}", cell.line()));
        }
        let kept = pages.store.as_mut().map_or(Ok(()), |store| store.keep(&cell));
        pages.added.push(cell);
        kept
    }

    /// All that there is by now, the earlier ones first.
    pub(super) fn into_cells(self) -> Vec<Cell<N, F>> {
        let mut cells = self.earlier;
        cells.extend(self.pages.into_inner().unwrap_or_else(PoisonError::into_inner).added);
        cells
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::cell::tests::{Late, Named, named};
    use super::*;
    use crate::crowd::PLACE;

    fn good(late_s: f64) -> Result<Option<Result<Late, String>>, LabError> {
        Ok(Some(Ok(Late { late_s })))
    }

    /// All of these, eight workers.
    fn measure(book: &Book<Named, Late>, all: &[Vec<u32>], one: impl Fn(u32) -> f64 + Sync) {
        book.measure(all, 8, |run| named(*run), |_| PLACE, |run| good(one(*run))).unwrap();
    }

    #[test]
    fn many_workers_keep_whole_lines_and_what_is_good_is_not_done_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lab.jsonl");
        let open = |go_on| Book::new(Some(Store::open(&path, go_on, 1.0).unwrap())).telling(None);
        let all: Vec<Vec<u32>> = (0..100).map(|pair| vec![2 * pair, 2 * pair + 1]).collect();
        // Every tenth is suspect.
        let book = open(false);
        measure(&book, &all, |run| if run % 10 == 0 { 0.1 } else { 0.0 });
        let cells = book.into_cells();
        assert_eq!(cells.len(), 200);
        let place = |run| cells.iter().position(|cell| cell.name == named(run)).unwrap();
        assert!((0..100).all(|pair| place(2 * pair) < place(2 * pair + 1)));
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().count() == 201
                && text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
        );
        let book = open(true);
        measure(&book, &all, |run| {
            assert_eq!(run % 10, 0);
            0.0
        });
        let cells = book.into_cells();
        assert_eq!(cells.len(), 220);
        assert!((0..200).all(|run| super::super::cell::last(&cells, &named(run)).unwrap().is_good()));
        measure(&open(true), &all, |_| unreachable!("everything is there"));
    }

    #[test]
    fn what_is_left_out_is_not_kept_and_a_lab_that_fails_ends_it() {
        let book: Book<Named, Late> = Book::new(None).telling(None);
        let nothing = book.measure(&[vec![1_u32], vec![2]], 1, |run| named(*run), |_| PLACE, |_| Ok(None));
        assert!(nothing.is_ok());
        let fails = |run: &u32| match run {
            2 => Err(LabError::Emulator("gone".into())),
            _ => good(0.0),
        };
        let failed = book.measure(&[vec![1_u32, 2, 3], vec![4]], 1, |run| named(*run), |_| PLACE, fails);
        assert!(failed.is_err() && book.into_cells().len() == 1);
    }
}
