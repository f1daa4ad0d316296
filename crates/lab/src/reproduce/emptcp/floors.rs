//! What is asked of our own policy in these cases, and whether it was met.
//!
//! | case | floor |
//! |---|---|
//! | 256 KB | energy within 3 % of TCP over Wi-Fi, time within 5 % of MPTCP, in each category |
//! | 16 MB | good Wi-Fi, bad LTE: at most half of MPTCP's energy; both bad: at most 3 % above the lesser of both |
//! | page | energy within 5 % of TCP over Wi-Fi, latency within 5 % of MPTCP |
//! | on-off, background, walk | against published eMPTCP: energy per byte and time per byte within 3 % each, and their product at least 5 % better in one of the three |
//! | clairvoyant | mean energy at most 15 % above the least of all schedules that end no later |
//! | unequal links | after 5 s at least 0.97 of the best single path; the whole at least 0.93 where the first is the slow one |

use super::figures::TRACES;
use super::runner::Done;
use super::setting::Who;
use super::simulate::Played;
use crate::evidence::stats;

/// One demand.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Floor {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    pub(super) who: Who,
    pub(super) metric: &'static str,
    /// What is demanded, in words.
    pub(super) says: &'static str,
    pub(super) ours: f64,
    pub(super) bound: f64,
    /// Whether `bound` is the least and not the most.
    pub(super) least: bool,
    pub(super) unit: &'static str,
    /// What must be known if it was missed.
    pub(super) note: Option<String>,
}

impl Floor {
    /// Whether it was reached.
    pub(super) fn met(&self) -> bool {
        if self.least { self.ours >= self.bound } else { self.ours <= self.bound }
    }

    /// `at most TCP over Wi-Fi's + 3 %: 4.21 of 4.30 J, met`.
    pub(super) fn line(&self) -> String {
        let Self { says, ours, bound, unit, .. } = self;
        let met = if self.met() { "met" } else { "NOT MET" };
        let note = self.note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
        format!("{says}: {ours:.3} of {bound:.3} {unit}, {met}{note}")
    }
}

/// All that apply.
pub(super) fn floors(done: &[Done]) -> Vec<Floor> {
    let mut floors: Vec<Floor> = done.iter().flat_map(|done| of(done).unwrap_or_default()).collect();
    floors.extend(product(done));
    floors.extend(clairvoyant(done));
    floors
}

fn of(done: &Done) -> Option<Vec<Floor>> {
    let make = |metric, says, ours, bound, unit| Floor {
        artefact: done.artefact,
        case: done.case.clone(),
        who: Who::Marline,
        metric,
        says,
        ours,
        bound,
        least: false,
        unit,
        note: None,
    };
    let energy = |who| done.mean(who, |played| played.energy);
    let time = |who| done.mean(who, |played| played.seconds);
    let (ours, tcp, mptcp) = (Who::Marline, Who::TcpWifi, Who::Mptcp);
    let floors = match (done.artefact, done.case.as_str()) {
        ("F15", _) => {
            let late = make("time", "at most MPTCP's + 5 %", time(ours)?, time(mptcp)? * 1.05, "s");
            let why = format!("TCP over Wi-Fi needs {:.2} s; sooner is only who wakes LTE, for 12.6 J", time(tcp)?);
            vec![
                make("energy", "at most TCP over Wi-Fi's + 3 %", energy(ours)?, energy(tcp)? * 1.03, "J"),
                Floor { note: (time(tcp)? > late.bound).then_some(why), ..late },
            ]
        }
        ("F16", "good Wi-Fi, bad LTE") => {
            let half = make("energy", "at most half of MPTCP's", energy(ours)?, energy(mptcp)? * 0.5, "J");
            let least = done.mean(ours, |played| played.least.map_or(0.0, |(least, _)| least))?;
            let why = format!("the clairvoyant needs {least:.1} J");
            vec![Floor { note: (least > half.bound).then_some(why), ..half }]
        }
        ("F16", "bad Wi-Fi, bad LTE") => {
            let most = energy(mptcp)?.min(energy(tcp)?) * 1.03;
            vec![make("energy", "at most the lesser of MPTCP's and TCP's + 3 %", energy(ours)?, most, "J")]
        }
        ("F17", _) => vec![
            make("energy", "at most TCP over Wi-Fi's + 5 %", energy(ours)?, energy(tcp)? * 1.05, "J"),
            make("time", "at most MPTCP's + 5 %", time(ours)?, time(mptcp)? * 1.05, "s"),
        ],
        ("F8" | "F10" | "F13", _) => {
            let per_byte = |who| done.mean(who, Played::per_megabyte);
            let pace = |who| done.mean(who, Played::pace);
            let theirs = Who::Emptcp;
            vec![
                make(
                    "energy",
                    "per byte, at most eMPTCP's + 3 %",
                    per_byte(ours)?,
                    per_byte(theirs)? * 1.03,
                    "J/MB",
                ),
                make("time", "per byte, at most eMPTCP's + 3 %", pace(ours)?, pace(theirs)? * 1.03, "s/MB"),
            ]
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
    let at_least = |floor: Floor| Floor { least: true, who: ours, ..floor };
    let mut floors = vec![at_least(make(
        "rate_after_5s",
        "at least 0.97 of the best single path",
        later(ours)? / later(best)?,
        0.97,
        "",
    ))];
    if best == Who::TcpLte {
        let whole = time(best)? / time(ours)?;
        floors.push(at_least(make("time", "the whole at least at 0.93 of the best path's rate", whole, 0.93, "")));
    }
    Some(floors)
}

/// Energy per byte times time per byte, against published eMPTCP: the best of the three scenarios.
fn product(done: &[Done]) -> Option<Floor> {
    let of = |artefact: &str| {
        let ratios: Option<Vec<f64>> = done
            .iter()
            .filter(|done| done.artefact == artefact)
            .map(|done| {
                let of = |who| Some(done.mean(who, Played::per_megabyte)? * done.mean(who, Played::pace)?);
                Some(of(Who::Marline)? / of(Who::Emptcp)?)
            })
            .collect();
        stats::mean(&ratios?)
    };
    let ratios: Option<Vec<f64>> = ["F8", "F10", "F13"].into_iter().map(of).collect();
    let best = ratios?.into_iter().reduce(f64::min)?;
    Some(Floor {
        artefact: "F8",
        case: "or F10 or F13".into(),
        who: Who::Marline,
        metric: "product",
        says: "energy × time per byte, at most 0.95 of eMPTCP's in one of the three",
        ours: best,
        bound: 0.95,
        least: false,
        unit: "",
        note: None,
    })
}

/// Those whose energy is compared with a clairvoyant's.
pub(super) const KNOWN: [&str; 6] = ["F5", "F6", "F8", "F10", "F13", "F16"];

/// The mean of all repetitions of all cases.
fn clairvoyant(done: &[Done]) -> Option<Floor> {
    let cases = done.iter().filter(|done| KNOWN.contains(&done.artefact) || done.artefact == TRACES);
    let ratios: Vec<f64> = cases
        .flat_map(|done| done.played(Who::Marline).unwrap_or_default())
        .filter_map(|played| Some(played.energy / played.least?.0))
        .collect();
    Some(Floor {
        artefact: "X-clairvoyant",
        case: format!("{} runs", ratios.len()),
        who: Who::Marline,
        metric: "energy_ratio",
        says: "mean of energy over the least of all schedules that end no later",
        ours: stats::mean(&ratios)?,
        bound: 1.15,
        least: false,
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
        case.runs[1].1 =
            vec![Ok(super::super::simulate::Played { least: Some((100.0, 99.0)), ..played([100.0, 110.0]) })];
        let found = floors(&[case]);
        let of = found.iter().find(|floor| floor.artefact == "X-clairvoyant").unwrap();
        assert!((of.ours - 1.1).abs() < 1e-9 && of.met() && of.case == "1 runs");
    }
}
