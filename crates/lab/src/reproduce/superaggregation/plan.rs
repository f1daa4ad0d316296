//! What is measured with whom, and how long that takes.
//!
//! In: points, senders, repetitions. Out: what one worker does without a break, in its order; an estimate; what is left out.
//!
//! 1. cubic is measured at every point. Reno and BBR are where the paper's text has a number, and at the ends of each figure's
//!    axis ([`ENDS`]): between them they say nothing that cubic does not. Whoever wants another point names it.
//! 2. The ways of one point, sender and run follow each other, beginning with another one each time: whatever the machine does
//!    meanwhile, it does to all of them. Everything else may go on beside them.
//! 3. Run by run, so that an early end has something of all.

use std::time::Duration;

use super::cell::Point;
use super::paper;
use super::setting::{Case, Way};
use crate::Congestion;
use crate::runner::rounded;

/// One cell to be measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    pub(super) case: &'a Case,
    pub(super) way: &'a Way,
    pub(super) sender: Congestion,
    pub(super) run: u32,
}

impl Item<'_> {
    pub(super) fn point(&self) -> Point {
        Point::of(self.case, self.way, self.sender, self.run)
    }
}

/// Points without a number in the text that are measured with every sender: what is lost, how long the way and the blackout are at
/// their least and their most, and 3 %, up to which the paper's throughput stays (§6.5).
const ENDS: [(&str, &str); 9] = [
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

/// Whether a point is measured with this sender; `is_named` by the user.
pub(super) fn wants(case: &Case, sender: Congestion, is_named: impl Fn(&Case) -> bool) -> bool {
    let is_end = || ENDS.contains(&(case.artefact, case.name.as_str()));
    sender == Congestion::Cubic || paper::is_said(case.artefact, &case.name) || is_end() || is_named(case)
}

/// What is to be done: each list is one worker's.
pub(super) fn items<'a>(
    cases: &'a [Case],
    senders: &[Congestion],
    runs: u32,
    is_named: impl Fn(&Case) -> bool + Copy,
) -> Vec<Vec<Item<'a>>> {
    let pairs = || {
        let of = |case: &'a Case| senders.iter().map(move |sender| (case, *sender));
        cases.iter().flat_map(of).filter(|(case, sender)| wants(case, *sender, is_named))
    };
    let unit =
        |run, case: &'a Case, sender| in_turn(&case.ways, run).map(|way| Item { case, way, sender, run }).collect();
    (0..runs).flat_map(|run| pairs().map(move |(case, sender)| unit(run, case, sender))).collect()
}

/// The ways of a run, beginning with another one each time.
fn in_turn(ways: &[Way], run: u32) -> impl Iterator<Item = &Way> {
    let first = run as usize % ways.len().max(1);
    ways.iter().cycle().skip(first).take(ways.len())
}

/// What it takes to build a lab and to end it, beside the connection. Measured on two cores that others used as well.
const BUILDING: Duration = Duration::from_secs(2);

/// How many cells, and how long with so many workers.
pub(super) fn effort(
    items: &[Vec<Item<'_>>],
    is_there: impl Fn(&Item<'_>) -> bool,
    jobs: usize,
) -> (usize, Duration) {
    let left = || items.iter().flatten().filter(|item| !is_there(item));
    let time: Duration = left().map(|item| item.case.length + BUILDING).sum();
    (left().count(), time / u32::try_from(jobs.max(1)).unwrap_or(u32::MAX))
}

/// The same in words: `1580 cells, 6 at once, about 2.6 hours`.
pub(super) fn told((cells, time): (usize, Duration), jobs: usize) -> String {
    let at_once = if jobs > 1 { format!(", {jobs} at once") } else { String::new() };
    format!("{cells} cells{at_once}, about {}", rounded(time))
}

/// What is left out of an artefact with which senders; none: nothing.
pub(super) fn left_out(
    artefact: &str,
    cases: &[Case],
    senders: &[Congestion],
    is_named: impl Fn(&Case) -> bool + Copy,
) -> Option<String> {
    let of: Vec<&Case> = cases.iter().filter(|case| case.artefact == artefact).collect();
    let others: Vec<Congestion> = senders.iter().copied().filter(|sender| *sender != Congestion::Cubic).collect();
    let is_out = |case: &&Case| others.iter().any(|sender| !wants(case, *sender, is_named));
    let out: Vec<&str> = of.iter().copied().filter(is_out).map(|case| case.name.as_str()).collect();
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
    use super::super::setting::{MEASURED, cases};
    use super::*;

    fn all() -> Vec<Case> {
        MEASURED.into_iter().flat_map(cases).collect()
    }

    fn nobody(_: &Case) -> bool {
        false
    }

    #[test]
    fn each_run_begins_with_another_way_and_does_all() {
        let case = &cases("F6")[0];
        let names = |run| in_turn(&case.ways, run).map(|way| way.name).collect::<Vec<_>>();
        assert_eq!(names(0), ["plain", "paper", "ours", "ideal"]);
        assert_eq!(names(5), ["paper", "ours", "ideal", "plain"]);
        assert_eq!(items(std::slice::from_ref(case), &Congestion::ALL, 2, nobody).len(), 6);
    }

    #[test]
    fn everything_five_times_is_done_in_three_hours_by_six_workers() {
        let all = all();
        let items = items(&all, &Congestion::ALL, 5, nobody);
        let (cells, time) = effort(&items, |_| false, 6);
        assert!(time < Duration::from_secs(3 * 3600), "{}", told((cells, time), 6));
        assert!(super::super::super::AFTER.contains(&told((cells, time), 6)), "{}", told((cells, time), 6));
        // Half of it is there.
        assert_eq!(effort(&items, |item| item.run < 4, 6).0, cells / 5);
        assert_eq!(effort(&items, |_| true, 6), (0, Duration::ZERO));
    }

    #[test]
    fn every_sender_is_where_the_paper_has_a_number_and_at_the_ends() {
        let all = all();
        for (artefact, name) in ENDS {
            assert!(
                all.iter().any(|case| (case.artefact, case.name.as_str()) == (artefact, name)),
                "{artefact} {name}"
            );
        }
        for artefact in MEASURED {
            let of = all.iter().filter(|case| case.artefact == artefact);
            assert!(of.clone().all(|case| wants(case, Congestion::Cubic, nobody)));
            assert!(of.clone().any(|case| wants(case, Congestion::Bbr, nobody)), "{artefact}");
        }
        let four = all.iter().find(|case| case.artefact == "F6" && case.name.starts_with("4s")).unwrap();
        assert!(!wants(four, Congestion::Reno, nobody));
        assert!(wants(four, Congestion::Reno, |case| case.name.starts_with("4s")));
    }

    #[test]
    fn what_is_left_out_is_named() {
        let all = all();
        let said = left_out("F6", &all, &Congestion::ALL, nobody).unwrap();
        assert!(said.contains("2s, 100ms; 2s, 150ms; 4s, 50ms") && !said.contains("10s"), "{said}");
        assert!(said.contains("--case \"F6 2s, 100ms\""), "{said}");
        assert_eq!(left_out("F6", &all, &[Congestion::Cubic], nobody), None);
        assert_eq!(left_out("F8", &all, &Congestion::ALL, nobody), None);
    }
}
