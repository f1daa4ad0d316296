//! Measures what is not there yet, in real time or in virtual time, and tells of each as soon as it is done.
//!
//! In: cases, and what earlier sessions left. Out: [`Cell`]s.
//!
//! 1. Uploads over the same links never happen at once. Several labs may, each with links of its own: `--parallel`.
//! 2. The ways of one case follow each other, so that whatever the machine does meanwhile, it does to all of them.
//! 3. A cell that failed, or whose figures are suspect, is done again when the session goes on; the last one counts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::measured::{Cell, Measured};
use super::real::Workshop;
use super::setting::{Case, Way};
use super::simulate;
use crate::LabError;
use crate::mptcp::fetch::STOPPED;

/// Measures in real time; gives whether the user stopped it.
pub(super) fn real(
    cases: &[Case],
    there: &[Cell],
    workshop: &Workshop,
    at_once: usize,
    tell: impl Fn(&Cell) -> Result<(), LabError> + Sync,
) -> Result<bool, LabError> {
    let congestion = workshop.congestion.name();
    let stopped = || marline_sys::signal::caught().is_some();
    let each = |case: &Case, way: Way| match workshop.upload(case, way)? {
        Err(why) if stopped() || why == STOPPED => Ok(None),
        came => Ok(Some(came)),
    };
    all(cases, there, congestion, at_once, stopped, each, tell)?;
    Ok(stopped())
}

/// Measures in virtual time, on every processor.
pub(super) fn simulated(cases: &[Case], congestion: &str) -> Result<Vec<Cell>, LabError> {
    let cells = Mutex::new(Vec::new());
    let each = |case: &Case, way: Way| Ok(Some(simulate::upload(case, way)));
    let tell = |cell: &Cell| {
        cells.lock().map_err(|_| LabError::Emulator("another case has failed".into()))?.push(cell.clone());
        Ok(())
    };
    let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    all(cases, &[], congestion, at_once, || false, each, tell)?;
    cells.into_inner().map_err(|_| LabError::Emulator("another case has failed".into()))
}

fn all(
    cases: &[Case],
    there: &[Cell],
    congestion: &str,
    at_once: usize,
    stopped: impl Fn() -> bool + Sync,
    each: impl Fn(&Case, Way) -> Result<Option<Result<Measured, String>>, LabError> + Sync,
    tell: impl Fn(&Cell) -> Result<(), LabError> + Sync,
) -> Result<(), LabError> {
    let (next, broken) = (AtomicUsize::new(0), Mutex::new(None::<LabError>));
    let is_broken = || broken.lock().map_or(true, |broken| broken.is_some());
    let is_there = |case: &Case, way: Way| {
        let known = there.iter().rfind(|cell| cell.is(case, way, congestion));
        known.is_some_and(Cell::is_good)
    };
    let one = |case: &Case| -> Result<(), LabError> {
        for way in &case.ways {
            if stopped() || is_broken() {
                return Ok(());
            }
            if is_there(case, *way) {
                continue;
            }
            if let Some(came) = each(case, *way)? {
                tell(&Cell::new(case, *way, congestion, came))?;
            }
        }
        Ok(())
    };
    let work = || {
        while !stopped() && !is_broken() {
            let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            if let (Err(error), Ok(mut broken)) = (one(case), broken.lock()) {
                broken.get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| (0..at_once.max(1)).for_each(|_| drop(scope.spawn(work))));
    match broken.into_inner() {
        Ok(Some(error)) if !stopped() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Effort, cases};
    use super::*;

    #[test]
    fn what_is_there_and_good_is_not_done_again() {
        let cases = cases("F8", Effort { runs: 1, quick: true, fleet: false });
        let good = Measured::of(1.0, 1.0);
        let late = Measured { late_s: 0.1, ..good };
        let there: Vec<Cell> = cases
            .iter()
            .zip([good, late])
            .map(|(case, got)| Cell::new(case, Way::To(0), "cubic", Ok(got)))
            .collect();
        let done = Mutex::new(Vec::new());
        let each = |_: &Case, _: Way| Ok(Some(Err("no lab".into())));
        let tell = |cell: &Cell| {
            done.lock().unwrap().push(cell.clone());
            Ok(())
        };
        all(&cases, &there, "cubic", 2, || false, each, tell).unwrap();
        let done = done.into_inner().unwrap();
        assert_eq!(done.len(), 1);
        assert!(done[0].case == cases[1].name && done[0].line().ends_with("FAILED: no lab"));
        all(&cases, &there, "bbr", 1, || true, |_, _| unreachable!(), |_| unreachable!()).unwrap();
    }
}
