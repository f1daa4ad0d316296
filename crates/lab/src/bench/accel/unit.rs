//! One run of one row: what takes turns in it is done in its order by one worker, and other runs may go on beside it.
//!
//! In: the runs of all wanted rows, in the order of the table; how many at once. Out: the sheet, the same however many.
//!
//! 1. Each run writes a sheet of its own; these are joined in the order of the table.
//! 2. A run that measures processor time, or more than some tens of Mbit/s, is alone.
//! 3. After Ctrl-C nothing more begins, and what was broken off is no figure; the sheet has what there is.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::super::cases::is_interrupted;
use super::super::report::ReportTable;
use crate::LabError;
use crate::runner::command::notice;
use crate::runner::format_duration;
use crate::worker_pool::{EXCLUSIVE_COST, JOB_COST, WorkerPool};

/// See the [module](self).
pub(super) struct Unit<'a> {
    /// Which repetition of its row, from 0.
    run: u32,
    /// Its connections last so long, one after the other.
    takes: Duration,
    alone: bool,
    work: Box<Work<'a>>,
}

type Work<'a> = dyn Fn(&mut ReportTable) -> Result<(), LabError> + Send + Sync + 'a;

impl<'a> Unit<'a> {
    /// The run of a row that does this.
    pub(super) fn new(
        run: u32,
        takes: Duration,
        work: impl Fn(&mut ReportTable) -> Result<(), LabError> + Send + Sync + 'a,
    ) -> Self {
        Self { run, takes, alone: false, work: Box::new(work) }
    }

    /// The same, with nobody beside it.
    pub(super) fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Which repetition of its row, from 0.
    pub(super) const fn run(&self) -> u32 {
        self.run
    }

    const fn room(&self) -> u64 {
        if self.alone { EXCLUSIVE_COST } else { JOB_COST }
    }
}

/// Does them all, so many at once.
pub(super) fn each(units: &[Unit<'_>], jobs: usize) -> Result<ReportTable, LabError> {
    notice(&format!("{}; Ctrl-C ends it and shows what there is", estimate(units, jobs)));
    let sheets: Mutex<Vec<(usize, ReportTable)>> = Mutex::default();
    let numbered: Vec<(usize, &Unit<'_>)> = units.iter().enumerate().collect();
    let one = |(at, unit): &(usize, &Unit<'_>)| {
        let mut sheet = ReportTable::for_run(unit.run);
        let done = (unit.work)(&mut sheet);
        sheets.lock().unwrap_or_else(PoisonError::into_inner).push((*at, sheet));
        done
    };
    WorkerPool::new(jobs).run_each(&numbered, |(_, unit)| unit.room(), is_interrupted, one)?;
    let mut sheets = sheets.into_inner().unwrap_or_else(PoisonError::into_inner);
    sheets.sort_by_key(|(at, _)| *at);
    let mut all = ReportTable::default();
    sheets.into_iter().for_each(|(_, sheet)| all.append(sheet));
    Ok(all)
}

/// `110 runs, about 20 minutes`: how many and how long, without what it takes to build labs.
fn estimate(units: &[Unit<'_>], jobs: usize) -> String {
    let sum =
        |alone: bool| units.iter().filter(|unit| unit.alone == alone).map(|unit| unit.takes).sum::<Duration>();
    let time = sum(true) + sum(false) / u32::try_from(jobs.max(1)).unwrap_or(u32::MAX);
    let at_once = if jobs > 1 { format!(", {jobs} at once") } else { String::new() };
    format!("{} runs{at_once}, about {}", units.len(), format_duration(time))
}

#[cfg(test)]
mod tests {
    use super::super::super::report::Threshold;
    use super::*;

    #[test]
    fn the_sheet_is_the_same_with_one_worker_and_with_several() {
        let table = |jobs| {
            let unit = |at: u32| {
                let work = move |sheet: &mut ReportTable| {
                    // Whoever comes first is done last.
                    (0..(40 - at) * 50).for_each(|_| std::thread::yield_now());
                    sheet.add(
                        &format!("row {}", at / 5),
                        "Mbit/s",
                        ("ours", &Threshold::AtLeast(1.0)),
                        "ours",
                        f64::from(at),
                    );
                    Ok(())
                };
                let unit = Unit::new(at % 5, Duration::from_secs(30), work);
                if at.is_multiple_of(7) { unit.alone() } else { unit }
            };
            let units: Vec<Unit<'_>> = (0..40).map(unit).collect();
            let sheet = each(&units, jobs).unwrap();
            (sheet.table().rows, sheet.to_json())
        };
        let alone = table(1);
        assert_eq!(alone.0.len(), 8);
        assert_eq!(alone.0[2][2], "12.0");
        assert_eq!(alone, table(6));
    }

    #[test]
    fn how_long_it_takes_is_what_is_alone_and_a_share_of_the_rest() {
        let nothing = || Unit::new(0, Duration::from_secs(60), |_: &mut ReportTable| Ok(()));
        let units: Vec<Unit<'_>> = (0..12).map(|_| nothing()).chain([nothing().alone()]).collect();
        assert_eq!(estimate(&units, 6), "13 runs, 6 at once, about 3 minutes");
        assert_eq!(estimate(&units, 1), "13 runs, about 13 minutes");
    }
}
