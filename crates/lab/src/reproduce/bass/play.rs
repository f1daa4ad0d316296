//! Measures what is not there yet, in real time or in virtual time.
//!
//! In: cases, and a [`Book`]. Out: the book's cells.
//!
//! 1. Uploads over the same links never happen at once. Several labs may, each with links of its own: `--jobs`.
//! 2. The ways of one case follow each other, so that whatever the machine does meanwhile, it does to all of them.

use super::measured::{Cell, Measured, Upload};
use super::real::Workshop;
use super::setting::{Case, Way};
use super::simulate;
use crate::LabError;
use crate::bench::is_stopped;
use crate::crowd::PLACE;
use crate::mptcp::fetch::STOPPED;
use crate::reproduce::book::Book;

/// Measures in real time.
pub(super) fn real(
    cases: &[Case],
    book: &Book<Upload, Measured>,
    workshop: &Workshop,
    at_once: usize,
) -> Result<(), LabError> {
    let each = |case: &Case, way: Way| match workshop.upload(case, way)? {
        Err(why) if is_stopped() || why == STOPPED => Ok(None),
        came => Ok(Some(came)),
    };
    all(cases, book, workshop.congestion.name(), at_once, each)
}

/// Measures in virtual time, on every processor.
pub(super) fn simulated(cases: &[Case], congestion: &str) -> Result<Vec<Cell>, LabError> {
    let book = Book::new(None).telling(None);
    let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    all(cases, &book, congestion, at_once, |case, way| Ok(Some(simulate::upload(case, way))))?;
    Ok(book.into_cells())
}

fn all(
    cases: &[Case],
    book: &Book<Upload, Measured>,
    congestion: &str,
    at_once: usize,
    each: impl Fn(&Case, Way) -> Result<Option<Result<Measured, String>>, LabError> + Sync,
) -> Result<(), LabError> {
    let ways = |case| move |way: &Way| (case, *way);
    let all: Vec<Vec<(&Case, Way)>> = cases.iter().map(|case| case.ways.iter().map(ways(case)).collect()).collect();
    let name = |(case, way): &(&Case, Way)| Upload::of(case, *way, congestion);
    book.measure(&all, at_once, name, |_| PLACE, |(case, way)| each(case, *way))
}
