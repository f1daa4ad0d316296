//! One run of one row: its trials are run in their order by one worker, and other runs may be concurrent.
//!
//! The resulting sheet is the same for any number of workers.
//!
//! 1. Each run writes a sheet of its own; these are joined in the order of the table.
//! 2. A run that measures processor time, or more than some tens of Mbit/s, is exclusive.
//! 3. After Ctrl-C no run starts, and an interrupted one is not counted; the sheet has the results so far.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::super::report::ReportTable;
use crate::LabError;
use crate::interrupt::is_interrupted;
use crate::runner::command::notice;
use crate::runner::format_duration;
use crate::worker_pool::{EXCLUSIVE_COST, JOB_COST, WorkerPool};

/// One run; see the [module documentation](self).
pub(super) struct BenchRun<'a> {
    /// Which repetition of its row, from 0.
    run: u32,
    /// The total duration of its transfers.
    duration: Duration,
    is_exclusive: bool,
    work: Box<Work<'a>>,
}

type Work<'a> = dyn Fn(&mut ReportTable) -> Result<(), LabError> + Send + Sync + 'a;

impl<'a> BenchRun<'a> {
    /// A run of a row that does this.
    pub(super) fn new(
        run: u32,
        duration: Duration,
        work: impl Fn(&mut ReportTable) -> Result<(), LabError> + Send + Sync + 'a,
    ) -> Self {
        Self { run, duration, is_exclusive: false, work: Box::new(work) }
    }

    /// The same, never concurrent with others.
    pub(super) fn exclusive(self) -> Self {
        Self { is_exclusive: true, ..self }
    }

    /// Which repetition of its row, from 0.
    pub(super) const fn run(&self) -> u32 {
        self.run
    }

    const fn weight(&self) -> u64 {
        if self.is_exclusive { EXCLUSIVE_COST } else { JOB_COST }
    }
}

/// Runs them all, at most `jobs` at once.
pub(super) fn each(units: &[BenchRun<'_>], jobs: usize) -> Result<ReportTable, LabError> {
    notice(&format!("{}; Ctrl-C ends it and shows what there is", estimate(units, jobs)));
    let sheets: Mutex<Vec<(usize, ReportTable)>> = Mutex::default();
    let numbered: Vec<(usize, &BenchRun<'_>)> = units.iter().enumerate().collect();
    let one = |(at, unit): &(usize, &BenchRun<'_>)| {
        let mut sheet = ReportTable::for_run(unit.run);
        let done = (unit.work)(&mut sheet);
        sheets.lock().unwrap_or_else(PoisonError::into_inner).push((*at, sheet));
        done
    };
    WorkerPool::new(jobs).run_each(&numbered, |(_, unit)| unit.weight(), is_interrupted, one)?;
    let mut sheets = sheets.into_inner().unwrap_or_else(PoisonError::into_inner);
    sheets.sort_by_key(|(at, _)| *at);
    let mut all = ReportTable::default();
    sheets.into_iter().for_each(|(_, sheet)| all.append(sheet));
    Ok(all)
}

/// `110 runs, about 20 minutes`: number and duration, without the time to build labs.
fn estimate(units: &[BenchRun<'_>], jobs: usize) -> String {
    let sum = |alone: bool| {
        units.iter().filter(|unit| unit.is_exclusive == alone).map(|unit| unit.duration).sum::<Duration>()
    };
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
                    // The first one is done last.
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
                let unit = BenchRun::new(at % 5, Duration::from_secs(30), work);
                if at.is_multiple_of(7) { unit.exclusive() } else { unit }
            };
            let units: Vec<BenchRun<'_>> = (0..40).map(unit).collect();
            let sheet = each(&units, jobs).unwrap();
            (sheet.table().rows, sheet.to_json())
        };
        let alone = table(1);
        assert_eq!(alone.0.len(), 8);
        assert_eq!(alone.0[2][2], "12.0");
        assert_eq!(alone, table(6));
    }

    #[test]
    fn the_estimate_is_the_exclusive_time_and_a_share_of_the_rest() {
        let make_run = || BenchRun::new(0, Duration::from_secs(60), |_: &mut ReportTable| Ok(()));
        let units: Vec<BenchRun<'_>> = (0..12).map(|_| make_run()).chain([make_run().exclusive()]).collect();
        assert_eq!(estimate(&units, 6), "13 runs, 6 at once, about 3 minutes");
        assert_eq!(estimate(&units, 1), "13 runs, about 13 minutes");
    }
}
