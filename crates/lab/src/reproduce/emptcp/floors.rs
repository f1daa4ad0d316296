//! What is asked of our own policy in these cases, and whether it was met.
//!
//! | case | floor |
//! |---|---|
//! | 256 KB | energy within 3 % of TCP over Wi-Fi, time within 5 % of MPTCP, in each category |
//! | 16 MB | good Wi-Fi, bad LTE: at most half of MPTCP's energy; both bad: at most 3 % above the lesser of both, and what the paper says of itself: a third less than both, a fifth sooner than MPTCP |
//! | page | energy within 5 % of TCP over Wi-Fi, latency within 5 % of MPTCP |
//! | on-off, background, walk, grid | against our eMPTCP, in the reading of its text that does best there among those played: energy per byte and time per byte within 3 % each; and their product at least 5 % better in one of the first three |
//! | clairvoyant | mean energy at most 15 % above the least of all schedules that end no later |
//! | unequal links | after 5 s at least 0.97 of the best single path; the whole at least 0.93 where the first is the slow one |

use super::clairvoyant;
use super::figures::{BOTH_BAD, GRID};
use super::runner::Done;
use super::setting::Who;
use super::simulate::Played;
use crate::evidence::stats;
use crate::reproduce::floor::{Bound, Floor};

/// All that apply.
pub(super) fn floors(done: &[Done]) -> Vec<Floor> {
    let mut floors: Vec<Floor> = done.iter().flat_map(|done| of(done).unwrap_or_default()).collect();
    floors.extend(product(done));
    floors.extend(near_clairvoyant(done));
    floors
}

fn of(done: &Done) -> Option<Vec<Floor>> {
    let make = |metric, says, ours, bound, unit| Floor {
        artefact: done.artefact,
        case: done.case.clone(),
        who: Who::Marline.name(),
        metric,
        says,
        ours,
        bound: Bound::AtMost(bound),
        unit,
        note: None,
    };
    let energy = |who| done.mean(who, |played| played.energy);
    let time = |who| done.mean(who, |played| played.seconds);
    let (ours, tcp, mptcp) = (Who::Marline, Who::TcpWifi, Who::Mptcp);
    let floors = match (done.artefact, done.case.as_str()) {
        ("F15", _) => {
            let bound = time(mptcp)? * 1.05;
            let late = make("time", "at most MPTCP's + 5 %", time(ours)?, bound, "s");
            let why = format!("TCP over Wi-Fi needs {:.2} s; sooner is only who wakes LTE, for 12.6 J", time(tcp)?);
            vec![
                make("energy", "at most TCP over Wi-Fi's + 3 %", energy(ours)?, energy(tcp)? * 1.03, "J"),
                Floor { note: (time(tcp)? > bound).then_some(why), ..late },
            ]
        }
        ("F16", "good Wi-Fi, bad LTE") => {
            let bound = energy(mptcp)? * 0.5;
            let half = make("energy", "at most half of MPTCP's", energy(ours)?, bound, "J");
            let least = possible(done, ours)?;
            let why = format!("the clairvoyant needs {least:.1} J");
            vec![Floor { note: (least > bound).then_some(why), ..half }]
        }
        ("F16", BOTH_BAD) => {
            let least = energy(mptcp)?.min(energy(tcp)?);
            let (two_thirds, four_fifths) = (least * 0.67, time(mptcp)? * 0.8);
            let third = make("energy", "§5.3: a third less than both", energy(ours)?, two_thirds, "J");
            let fifth = make("time", "§5.3: a fifth sooner than MPTCP", time(ours)?, four_fifths, "s");
            let late = possible(done, ours)?;
            let little = format!(
                "the clairvoyant needs {late:.1} J by our end and {:.1} J by MPTCP's",
                possible(done, mptcp)?
            );
            let soonest = done.mean(mptcp, |played| played.least.map_or(0.0, |known| known.soonest))?;
            let full = format!("both links at their full rates need {soonest:.2} s");
            vec![
                make("energy", "at most the lesser of MPTCP's and TCP's + 3 %", energy(ours)?, least * 1.03, "J"),
                Floor { note: (late > two_thirds).then_some(little), ..third },
                Floor { note: (soonest > four_fifths).then_some(full), ..fifth },
            ]
        }
        ("F17", _) => vec![
            make("energy", "at most TCP over Wi-Fi's + 5 %", energy(ours)?, energy(tcp)? * 1.05, "J"),
            make("time", "at most MPTCP's + 5 %", time(ours)?, time(mptcp)? * 1.05, "s"),
        ],
        ("F8" | "F10" | "F13" | GRID, _) => {
            let per_byte = |who| done.mean(who, Played::per_megabyte);
            let pace = |who| done.mean(who, Played::pace);
            let theirs = strongest(done)?;
            let floors = [
                make(
                    "energy",
                    "per byte, at most eMPTCP's + 3 %",
                    per_byte(ours)?,
                    per_byte(theirs)? * 1.03,
                    "J/MB",
                ),
                make("time", "per byte, at most eMPTCP's + 3 %", pace(ours)?, pace(theirs)? * 1.03, "s/MB"),
            ];
            floors.map(|floor| Floor { note: Some(against(done, theirs)), ..floor }).into()
        }
        ("X-unequal", _) => unequal(done, make)?,
        _ => Vec::new(),
    };
    Some(floors)
}

fn unequal(
    done: &Done,
    make: impl Fn(&'static str, &'static str, f64, f64, &'static str) -> Floor,
) -> Option<Vec<Floor>> {
    let best = [Who::TcpLte, Who::TcpWifi].into_iter().find(|who| done.played(*who).is_some())?;
    let later = |who| {
        let rates: Option<Vec<f64>> = done.played(who)?.iter().map(|played| played.later).collect();
        stats::mean(&rates?)
    };
    let time = |who| done.mean(who, |played| played.seconds);
    let ours = Who::Throughput;
    let at_least = |bound: f64, floor: Floor| Floor { bound: Bound::AtLeast(bound), who: ours.name(), ..floor };
    let after = later(ours)? / later(best)?;
    let says = "at least 0.97 of the best single path";
    let mut floors = vec![at_least(0.97, make("rate_after_5s", says, after, 0.97, ""))];
    if best == Who::TcpLte {
        let whole = time(best)? / time(ours)?;
        let says = "the whole at least at 0.93 of the best path's rate";
        floors.push(at_least(0.93, make("time", says, whole, 0.93, "")));
    }
    Some(floors)
}

/// The clairvoyant's energy by this client's end.
fn possible(done: &Done, who: Who) -> Option<f64> {
    done.mean(who, |played| played.least.map_or(0.0, |known| known.energy))
}

/// Energy per byte times time per byte.
fn costs(done: &Done, who: Who) -> Option<f64> {
    Some(done.mean(who, Played::per_megabyte)? * done.mean(who, Played::pace)?)
}

/// The published controller in the reading that does best here.
fn strongest(done: &Done) -> Option<Who> {
    let known = Who::PUBLISHED.into_iter().filter_map(|who| Some((who, costs(done, who)?)));
    known.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(who, _)| who)
}

/// Whom a floor is against, and which readings were not played and might have done better.
fn against(done: &Done, theirs: Who) -> String {
    let absent: Vec<&str> =
        Who::PUBLISHED.into_iter().filter(|who| done.played(*who).is_none()).map(Who::name).collect();
    match absent.is_empty() {
        true => format!("against {}", theirs.name()),
        false => format!("against {} (not played: {})", theirs.name(), absent.join(", ")),
    }
}

/// Energy per byte times time per byte, against published eMPTCP: the best of the three scenarios.
fn product(done: &[Done]) -> Option<Floor> {
    let of = |artefact: &str| {
        let ratios: Option<Vec<f64>> = done
            .iter()
            .filter(|done| done.artefact == artefact)
            .map(|done| Some(costs(done, Who::Marline)? / costs(done, strongest(done)?)?))
            .collect();
        stats::mean(&ratios?)
    };
    let ratios: Option<Vec<f64>> = ["F8", "F10", "F13"].into_iter().map(of).collect();
    let best = ratios?.into_iter().reduce(f64::min)?;
    Some(Floor {
        artefact: "F8",
        case: "or F10 or F13".into(),
        who: Who::Marline.name(),
        metric: "product",
        says: "energy × time per byte, at most 0.95 of eMPTCP's in one of the three",
        ours: best,
        bound: Bound::AtMost(0.95),
        unit: "",
        note: None,
    })
}

/// The mean of all repetitions of all cases.
fn near_clairvoyant(done: &[Done]) -> Option<Floor> {
    let ratios = clairvoyant::ratios(done, Who::Marline);
    Some(Floor {
        artefact: "X-clairvoyant",
        case: format!("{} runs", ratios.len()),
        who: Who::Marline.name(),
        metric: "energy_ratio",
        says: "mean of energy over the least of all schedules that end no later",
        ours: stats::mean(&ratios)?,
        bound: Bound::AtMost(1.15),
        unit: "",
        note: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::{done, played};
    use super::*;

    #[test]
    fn a_floor_that_nobody_can_reach_says_so() {
        let runs = [(Who::TcpWifi, [0.9, 0.6]), (Who::Mptcp, [0.7, 13.5]), (Who::Marline, [0.9, 0.61])];
        let found = floors(&[done("F15", "bad Wi-Fi, bad LTE", &runs)]);
        assert_eq!(found.iter().map(Floor::met).collect::<Vec<_>>(), [true, false]);
        assert!(found[1].line().contains("TCP over Wi-Fi needs 0.90 s"), "{}", found[1].line());
    }

    #[test]
    fn the_published_controller_is_taken_in_its_best_reading() {
        let runs = [(Who::Emptcp, [120.0, 90.0]), (Who::Settled, [100.0, 100.0]), (Who::Marline, [101.0, 101.0])];
        let found = floors(&[done("F8", "on-off 40 s", &runs)]);
        assert!(found.iter().all(Floor::met) && found.len() == 2, "{found:?}");
        assert_eq!(found[0].note.as_deref(), Some("against emptcp-settled (not played: emptcp-table)"));
        let found = floors(&[done("F8", "on-off 40 s", &[runs[0], runs[2]])]);
        assert_eq!(found.iter().map(Floor::met).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn unequal_links_are_judged_by_the_better_one() {
        let runs = [(Who::TcpLte, [17.0, 120.0]), (Who::Mptcp, [19.0, 130.0]), (Who::Throughput, [18.0, 125.0])];
        let found = floors(&[done("X-unequal", "5+50", &runs)]);
        assert_eq!(found.len(), 2);
        assert!((found[1].ours - 17.0 / 18.0).abs() < 1e-9 && found[1].met());
        let none = floors(&[done("X-unequal", "5+50", &runs[1..])]);
        assert!(none.is_empty());
    }

    #[test]
    fn the_clairvoyants_mean_is_over_all_runs_that_have_one() {
        let runs = [(Who::Emptcp, [100.0, 120.0]), (Who::Marline, [100.0, 110.0])];
        let mut case = done("F8", "on-off", &runs);
        let least = Some(super::super::simulate::Known { energy: 100.0, bound: 99.0, soonest: 90.0 });
        case.runs[1].1 = vec![Ok(Played { least, ..played([100.0, 110.0]) })];
        let found = floors(&[case]);
        let of = found.iter().find(|floor| floor.artefact == "X-clairvoyant").unwrap();
        assert!((of.ours - 1.1).abs() < 1e-9 && of.met() && of.case == "1 runs");
    }
}
