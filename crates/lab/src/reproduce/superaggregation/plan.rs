//! Which points are measured with which senders, in which order, and how long that takes. From points, senders and repetitions it makes the
//! batches (each measured by one worker, in order), an estimate, and a list of what is left out.
//!
//! 1. cubic is measured at every point. Reno and BBR are where the paper's text has a number, and at the ends of each figure's
//!    axis ([`END_POINTS`]): the points between them show nothing that cubic does not. Other points can be selected by name.
//! 2. The variants of one point, sender and run follow each other, and each run begins with another one: a disturbance of the machine
//!    affects all of them. Other batches may run in parallel.
//! 3. Run by run, so that an early end has something of all.

use std::time::Duration;

use super::config::{FigurePoint, Variant};
use super::measurement::MeasurementPoint;
use super::paper;
use crate::Congestion;
use crate::runner::format_duration;

/// One cell to be measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedMeasurement<'a> {
    pub(super) case: &'a FigurePoint,
    pub(super) variant: &'a Variant,
    pub(super) sender: Congestion,
    pub(super) run: u32,
}

impl PlannedMeasurement<'_> {
    pub(super) fn point(&self) -> MeasurementPoint {
        MeasurementPoint::new(self.case, self.variant, self.sender, self.run)
    }
}

/// Points without a number in the text that are measured with every sender: the smallest and the largest loss and RTT, and 3 % loss, up to
/// which the paper's throughput stays (§6.5).
const END_POINTS: [(&str, &str); 9] = [
    ("F2b", "2s, 50ms"),
    ("F2c", "0%, 50ms"),
    ("F2c", "5%, 50ms"),
    ("F5", "11g-mixed, 200ms"),
    ("F5", "11b, 200ms"),
    ("F7", "0%, 50ms"),
    ("F7", "1%, 50ms"),
    ("F7", "3%, 50ms"),
    ("F7", "5%, 50ms"),
];

/// Whether a point is measured with this sender; `is_selected`: whether the user has named the point.
pub(super) fn is_measured(
    case: &FigurePoint,
    sender: Congestion,
    is_selected: impl Fn(&FigurePoint) -> bool,
) -> bool {
    let is_end = || END_POINTS.contains(&(case.artefact, case.name.as_str()));
    sender == Congestion::Cubic || paper::has_statement(case.artefact, &case.name) || is_end() || is_selected(case)
}

/// The measurements of all runs: each inner list is measured by one worker, in its order.
pub(super) fn measurement_batches<'a>(
    cases: &'a [FigurePoint],
    senders: &[Congestion],
    runs: u32,
    is_selected: impl Fn(&FigurePoint) -> bool + Copy,
) -> Vec<Vec<PlannedMeasurement<'a>>> {
    let pairs = || {
        let pairs_of = |case: &'a FigurePoint| senders.iter().map(move |sender| (case, *sender));
        cases.iter().flat_map(pairs_of).filter(|(case, sender)| is_measured(case, *sender, is_selected))
    };
    let unit = |run, case: &'a FigurePoint, sender| {
        rotated(&case.variants, run).map(|variant| PlannedMeasurement { case, variant, sender, run }).collect()
    };
    (0..runs).flat_map(|run| pairs().map(move |(case, sender)| unit(run, case, sender))).collect()
}

/// The variants of a run, beginning with another one each time.
fn rotated(variants: &[Variant], run: u32) -> impl Iterator<Item = &Variant> {
    let first = run as usize % variants.len().max(1);
    variants.iter().cycle().skip(first).take(variants.len())
}

/// What it takes to build a lab and to end it, beside the connection. Measured on two cores that others used as well.
const LAB_BUILD_TIME: Duration = Duration::from_secs(2);

/// How many cells, and how long with so many workers.
pub(super) fn count_and_time(
    items: &[Vec<PlannedMeasurement<'_>>],
    is_measured: impl Fn(&PlannedMeasurement<'_>) -> bool,
    jobs: usize,
) -> (usize, Duration) {
    let left = || items.iter().flatten().filter(|item| !is_measured(item));
    let time: Duration = left().map(|item| item.case.length + LAB_BUILD_TIME).sum();
    (left().count(), time / u32::try_from(jobs.max(1)).unwrap_or(u32::MAX))
}

/// The same in words: `1580 cells, 6 at once, about 2.6 hours`.
pub(super) fn effort_text((cells, time): (usize, Duration), jobs: usize) -> String {
    let at_once = if jobs > 1 { format!(", {jobs} at once") } else { String::new() };
    format!("{cells} cells{at_once}, about {}", format_duration(time))
}

/// What is left out of an artefact with which senders; none: nothing.
pub(super) fn omitted(
    artefact: &str,
    cases: &[FigurePoint],
    senders: &[Congestion],
    is_selected: impl Fn(&FigurePoint) -> bool + Copy,
) -> Option<String> {
    let points: Vec<&FigurePoint> = cases.iter().filter(|case| case.artefact == artefact).collect();
    let others: Vec<Congestion> = senders.iter().copied().filter(|sender| *sender != Congestion::Cubic).collect();
    let is_out = |case: &&FigurePoint| others.iter().any(|sender| !is_measured(case, *sender, is_selected));
    let out: Vec<&str> = points.iter().copied().filter(is_out).map(|case| case.name.as_str()).collect();
    let names: Vec<&str> = others.iter().map(|sender| sender.name()).collect();
    (!out.is_empty()).then(|| {
        format!(
            "Left out with {}: {} (neither a number in the paper's text nor an end of the axis); `--case \"{artefact} {}\"` \
             measures one all the same.",
            names.join(" and "),
            out.join("; "),
            out[0],
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::config::{MEASURED, cases};
    use super::*;

    fn all() -> Vec<FigurePoint> {
        MEASURED.into_iter().flat_map(cases).collect()
    }

    fn never(_: &FigurePoint) -> bool {
        false
    }

    #[test]
    fn each_run_begins_with_another_way_and_does_all() {
        let case = &cases("F6")[0];
        let names = |run| rotated(&case.variants, run).map(|variant| variant.name).collect::<Vec<_>>();
        assert_eq!(names(0), ["plain", "paper", "ours", "ideal"]);
        assert_eq!(names(5), ["paper", "ours", "ideal", "plain"]);
        assert_eq!(measurement_batches(std::slice::from_ref(case), &Congestion::ALL, 2, never).len(), 6);
    }

    #[test]
    fn everything_five_times_is_done_in_three_hours_by_six_workers() {
        let all = all();
        let items = measurement_batches(&all, &Congestion::ALL, 5, never);
        let (cells, time) = count_and_time(&items, |_| false, 6);
        assert!(time < Duration::from_secs(3 * 3600), "{}", effort_text((cells, time), 6));
        assert!(
            super::super::super::AFTER_HELP.contains(&effort_text((cells, time), 6)),
            "{}",
            effort_text((cells, time), 6)
        );
        // Half of it is there.
        assert_eq!(count_and_time(&items, |item| item.run < 4, 6).0, cells / 5);
        assert_eq!(count_and_time(&items, |_| true, 6), (0, Duration::ZERO));
    }

    #[test]
    fn every_sender_is_where_the_paper_has_a_number_and_at_the_ends() {
        let all = all();
        for (artefact, name) in END_POINTS {
            assert!(
                all.iter().any(|case| (case.artefact, case.name.as_str()) == (artefact, name)),
                "{artefact} {name}"
            );
        }
        for artefact in MEASURED {
            let points = all.iter().filter(|case| case.artefact == artefact);
            assert!(points.clone().all(|case| is_measured(case, Congestion::Cubic, never)));
            assert!(points.clone().any(|case| is_measured(case, Congestion::Bbr, never)), "{artefact}");
        }
        let four = all.iter().find(|case| case.artefact == "F6" && case.name.starts_with("4s")).unwrap();
        assert!(!is_measured(four, Congestion::Reno, never));
        assert!(is_measured(four, Congestion::Reno, |case| case.name.starts_with("4s")));
    }

    #[test]
    fn what_is_left_out_is_named() {
        let all = all();
        let text = omitted("F6", &all, &Congestion::ALL, never).unwrap();
        assert!(text.contains("2s, 100ms; 2s, 150ms; 4s, 50ms") && !text.contains("10s"), "{text}");
        assert!(text.contains("--case \"F6 2s, 100ms\""), "{text}");
        assert_eq!(omitted("F6", &all, &[Congestion::Cubic], never), None);
        assert_eq!(omitted("F8", &all, &Congestion::ALL, never), None);
    }
}
