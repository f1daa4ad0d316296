//! Whether marline met what a scenario asks of it, beside the best other client of the same runs.
//!
//! Beside a scenario's own floor, each case with two steady links asks for a link Δ of at most 0.06 s, and every case for
//! little waste: 1 % of the file from 100 MB up, else one bandwidth-delay product of the links.

use marline_sim::scenario::{Case, Floor, Scenario};
use marline_sim::spec::Carrier;
use serde::Serialize;

use crate::evidence::{Outcome, stats};
use crate::page::Table;
use crate::runner::summary::{Group, groups};

/// One bound and how it was kept.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Verdict {
    /// The case.
    pub(super) case: String,
    /// What is bounded.
    pub(super) what: String,
    /// The bound.
    pub(super) floor: f64,
    /// What marline had.
    pub(super) ours: Option<f64>,
    /// The best other client's figure and name.
    pub(super) peer: Option<(f64, String)>,
    /// Runs of marline that count, and how many of them are suspect.
    pub(super) runs: usize,
    /// See `runs`.
    pub(super) suspect: usize,
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self.ours {
            None => "no run",
            Some(ours) if ours <= self.floor + 1e-9 => "met",
            Some(_) => "missed",
        }
    }
}

/// The longest that the links of a steady case may end apart, in seconds.
const LINK_DELTA: f64 = 0.06;
/// Of a file of 100 MB or more.
const WASTE: f64 = 0.01;

/// All bounds of a scenario.
pub(super) fn judge(scenario: &Scenario, outcomes: &[Outcome]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut ratios: Vec<(f64, String)> = Vec::new();
    let mut paired = None;
    for case in &scenario.cases {
        let groups = groups(scenario, &case.name, outcomes);
        let Some(ours) = groups.iter().find(|group| group.client == "marline") else { continue };
        match case.floor {
            Some(Floor::Paired { median, worst }) => {
                paired = Some((median, worst));
                let best = best(&groups, |name| name.starts_with("aria2"), Group::seconds);
                if let (Some(seconds), Some((theirs, name))) = (ours.seconds(), best) {
                    ratios.push((seconds / theirs, format!("{} ({name})", case.name)));
                }
            }
            Some(floor) => verdicts.push(one(case, floor, ours, &groups)),
            None => {}
        }
        verdicts.extend(always(case, ours, &groups));
    }
    if let Some((median, worst)) = paired {
        verdicts.extend(pairs(scenario, &ratios, median, worst));
    }
    verdicts.extend(orders(scenario, outcomes));
    verdicts
}

fn one(case: &Case, floor: Floor, ours: &Group<'_>, groups: &[Group<'_>]) -> Verdict {
    let curl = groups.iter().find(|group| group.client == "curl").and_then(Group::seconds);
    let other = |figure: &dyn Fn(&Group<'_>) -> Option<f64>| best(groups, is_other, figure);
    let ratio = |group: &Group<'_>| group.median(Outcome::ratio);
    let memory = |group: &Group<'_>| {
        let most = group.good().filter_map(|outcome| outcome.peak_rss_bytes).max();
        most.map(|bytes| bytes as f64 / 1e6)
    };
    match floor {
        Floor::Ideal(bound) => verdict(case, "time ÷ ideal", bound, ratio(ours), other(&ratio), ours),
        Floor::Rss(bound) => {
            let bound = bound.bytes() as f64 / 1e6;
            verdict(case, "RSS MB", bound, memory(ours), other(&memory), ours)
        }
        Floor::Curl { share, plus, most } => {
            let bound = curl.map_or(0.0, |curl| curl * share + plus.as_secs_f64());
            let bound = most.map_or(bound, |most| bound.min(most.as_secs_f64()));
            verdict(case, "time s", bound, ours.seconds(), curl.map(|curl| (curl, "curl".into())), ours)
        }
        Floor::Paired { .. } => unreachable!("judged over all cases"),
    }
}

/// What is asked of every case.
fn always(case: &Case, ours: &Group<'_>, groups: &[Group<'_>]) -> Vec<Verdict> {
    let steady = case.events.is_empty()
        && case.links.iter().all(|link| matches!(&link.down, Carrier::Rate { steps, .. } if steps.is_empty()));
    let wasted = |group: &Group<'_>| group.median(|o| o.wasted_bytes.map(|bytes| bytes as f64 / 1000.0));
    let delta = |group: &Group<'_>| group.median(|outcome| outcome.link_delta_s);
    let large = case.size.bytes() >= 100_000_000;
    let flight: u64 = case.links.iter().map(|link| (nominal(&link.down) * link.rtt).bytes()).sum();
    let bound = if large { case.size.bytes() as f64 * WASTE } else { flight as f64 } / 1000.0;
    let mut verdicts = Vec::new();
    if steady && large {
        let other = best(groups, |name| name.starts_with("aria2"), delta);
        verdicts.push(verdict(case, "link Δ s", LINK_DELTA, delta(ours), other, ours));
    }
    let other = best(groups, |name| name.starts_with("aria2"), wasted);
    verdicts.push(verdict(case, "wasted kB", bound, wasted(ours), other, ours));
    verdicts
}

fn nominal(carrier: &Carrier) -> marline_core::units::Bitrate {
    match carrier {
        Carrier::Rate { first, .. } => *first,
        Carrier::Trace(file) => file.trace.as_ref().map_or_else(Default::default, |trace| trace.mean_rate()),
        Carrier::Medium { phy, .. } => phy.unwrap_or_default(),
    }
}

fn pairs(scenario: &Scenario, ratios: &[(f64, String)], median: f64, worst: f64) -> [Verdict; 2] {
    let values: Vec<f64> = ratios.iter().map(|(ratio, _)| *ratio).collect();
    let largest = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let verdict = |what: &str, floor: f64, ours: Option<f64>, peer: Option<(f64, String)>| Verdict {
        case: scenario.name.clone(),
        what: what.into(),
        floor,
        ours,
        peer,
        runs: ratios.len(),
        suspect: 0,
    };
    [
        verdict("time ÷ best aria2, median of pairs", median, stats::median(&values), None),
        verdict(
            "time ÷ best aria2, worst pair",
            worst,
            largest.map(|(ratio, _)| *ratio),
            largest.map(|(_, name)| (1.0, name.clone())),
        ),
    ]
}

/// Cases `x` and `x-swapped`: how far apart their medians are, in percent, against the larger spread of the two.
fn orders(scenario: &Scenario, outcomes: &[Outcome]) -> Vec<Verdict> {
    let times = |case: &str| -> Vec<f64> {
        outcomes
            .iter()
            .filter(|o| o.case == case && o.client == "marline" && o.is_good())
            .map(|o| o.seconds)
            .collect()
    };
    let mut verdicts = Vec::new();
    for case in &scenario.cases {
        let swapped = format!("{}-swapped", case.name);
        if scenario.case(&swapped).is_none() {
            continue;
        }
        let (one, other) = (times(&case.name), times(&swapped));
        let apart = stats::median(&one).zip(stats::median(&other)).map(|(a, b)| (a - b).abs() / a.min(b) * 100.0);
        let spread =
            |times: &[f64]| stats::range(times).map_or(0.0, |(least, most)| (most - least) / least * 100.0);
        verdicts.push(Verdict {
            case: case.name.clone(),
            what: "order of links: % between medians".into(),
            // Beyond the runs' own spread, and half a percent that no one notices.
            floor: spread(&one).max(spread(&other)).max(0.5),
            ours: apart,
            peer: None,
            runs: one.len() + other.len(),
            suspect: 0,
        });
    }
    verdicts
}

fn verdict(
    case: &Case,
    what: &str,
    floor: f64,
    ours: Option<f64>,
    peer: Option<(f64, String)>,
    group: &Group<'_>,
) -> Verdict {
    let (runs, suspect) = (group.good().count(), group.suspect().map_or(0, |(n, _)| n));
    Verdict { case: case.name.clone(), what: what.into(), floor, ours, peer, runs, suspect }
}

fn is_other(name: &str) -> bool {
    name.starts_with("aria2") || name.starts_with("curl")
}

/// The smallest figure of the clients that count, and whose it is.
fn best<'a>(
    groups: &[Group<'a>],
    counts: impl Fn(&str) -> bool,
    figure: impl Fn(&Group<'a>) -> Option<f64>,
) -> Option<(f64, String)> {
    let all = groups.iter().filter(|group| counts(group.client));
    all.filter_map(|group| Some((figure(group)?, group.client.to_string()))).min_by(|a, b| a.0.total_cmp(&b.0))
}

/// All verdicts as one table.
pub(super) fn table(verdicts: &[Verdict]) -> Table {
    let number = |value: f64| if value.abs() < 100.0 { format!("{value:.3}") } else { format!("{value:.0}") };
    let row = |verdict: &Verdict| {
        vec![
            verdict.case.clone(),
            verdict.what.clone(),
            verdict.peer.as_ref().map_or("–".into(), |(value, name)| format!("{} {name}", number(*value))),
            verdict.ours.map_or("–".into(), number),
            format!("≤ {}", number(verdict.floor)),
            verdict.word().to_string(),
            if verdict.suspect > 0 {
                format!("{} of {} suspect", verdict.suspect, verdict.runs)
            } else {
                verdict.runs.to_string()
            },
        ]
    };
    Table {
        head: ["case", "what", "best other", "marline", "floor", "verdict", "runs"].map(str::to_owned).to_vec(),
        rows: verdicts.iter().map(row).collect(),
        note: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::outcome::tests::example;
    use crate::scenarios;

    fn runs(case: &str, client: &str, seconds: &[f64]) -> Vec<Outcome> {
        let of = |(run, s): (usize, &f64)| Outcome { case: case.into(), ..example(client, run as u32, *s) };
        seconds.iter().enumerate().map(of).collect()
    }

    #[test]
    fn a_floor_over_the_ideal_is_met_or_missed_by_the_median() {
        let scenario = scenarios::find("floor-a").unwrap();
        let mut outcomes = runs("floor-a", "marline", &[6.0, 6.5, 6.1]);
        outcomes.extend(runs("floor-a", "aria2-s2", &[6.24, 6.24, 6.24]));
        let verdicts = judge(&scenario, &outcomes);
        assert_eq!(
            verdicts.iter().map(|v| v.what.as_str()).collect::<Vec<_>>(),
            ["time ÷ ideal", "link Δ s", "wasted kB"]
        );
        assert_eq!(verdicts.iter().map(Verdict::word).collect::<Vec<_>>(), ["met", "met", "met"]);
        assert_eq!(verdicts[0].peer.as_ref().unwrap().1, "aria2-s2");
        let slow = judge(&scenario, &runs("floor-a", "marline", &[6.3]));
        assert_eq!(slow[0].word(), "missed");
        assert!(judge(&scenario, &[]).is_empty());
    }

    #[test]
    fn pairs_are_judged_together() {
        let scenario = scenarios::find("pairs").unwrap();
        let (one, two) = (&scenario.cases[0].name, &scenario.cases[1].name);
        let mut outcomes = runs(one, "marline", &[10.0]);
        outcomes.extend(runs(one, "aria2-s2", &[10.1]));
        outcomes.extend(runs(one, "aria2-s16", &[12.0]));
        outcomes.extend(runs(two, "marline", &[10.2]));
        outcomes.extend(runs(two, "aria2-s2", &[10.0]));
        let all = judge(&scenario, &outcomes);
        let [.., median, worst] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(median.word(), "missed");
        assert!((median.ours.unwrap() - (10.0 / 10.1 + 1.02) / 2.0).abs() < 1e-9);
        assert!((worst.ours.unwrap() - 1.02).abs() < 1e-9 && worst.word() == "missed");
    }

    #[test]
    fn small_files_are_compared_with_curl_and_the_fixed_bound() {
        let scenario = scenarios::find("floor-small").unwrap();
        let mut outcomes = runs("a-10KB", "marline", &[0.055]);
        outcomes.extend(runs("a-10KB", "curl", &[0.054]));
        outcomes.extend(runs("a-5MB", "marline", &[0.57]));
        outcomes.extend(runs("a-5MB", "curl", &[0.63]));
        let verdicts = judge(&scenario, &outcomes);
        let of = |case: &str| verdicts.iter().find(|v| v.case == case && v.what == "time s").unwrap();
        assert_eq!((of("a-10KB").word(), of("a-5MB").word()), ("met", "missed"));
    }

    #[test]
    fn an_order_matters_only_beyond_the_spread() {
        let scenario = scenarios::find("floor-order").unwrap();
        let mut outcomes = runs("a", "marline", &[6.00, 6.02]);
        outcomes.extend(runs("a-swapped", "marline", &[6.01, 6.03]));
        outcomes.extend(runs("d", "marline", &[15.0, 15.01]));
        outcomes.extend(runs("d-swapped", "marline", &[16.0, 16.01]));
        let verdicts = judge(&scenario, &outcomes);
        let of = |case: &str| verdicts.iter().find(|v| v.case == case && v.what.starts_with("order")).unwrap();
        assert_eq!((of("a").word(), of("d").word()), ("met", "missed"));
        assert!(table(&verdicts).plain().contains("order of links"));
    }
}
