//! Thresholds for marline's policy in the cases of eMPTCP, and whether they are met.
//!
//! | case | threshold |
//! |---|---|
//! | 256 KB | energy within 3 % of TCP over Wi-Fi, time within 5 % of MPTCP, in each category |
//! | 16 MB | good Wi-Fi, bad LTE: at most half of MPTCP's energy. Both bad: at most 3 % above the smaller of both, and the paper's own claims: a third less energy than both, a fifth less time than MPTCP |
//! | page | energy within 5 % of TCP over Wi-Fi, latency within 5 % of MPTCP |
//! | on-off, shared Wi-Fi, walk, grid | against eMPTCP in the best of the readings that were run: energy per byte and time per byte within 3 % each; and their product at least 5 % better in one of the first three |
//! | clairvoyant | mean energy at most 15 % above the least of all schedules that end no later |
//! | unequal links | after 5 s at least 0.97 of the best single link; the whole download at least 0.93 if the first link is the slow one |

use super::clairvoyant;
use super::config::EmptcpClient;
use super::figures::{BOTH_BAD, GRID};
use super::runner::CaseResults;
use super::simulate::CaseResult;
use crate::reproduce::threshold::{Bound, Threshold};
use crate::results::stats;

/// All thresholds that apply to these results.
pub(super) fn thresholds(results: &[CaseResults]) -> Vec<Threshold> {
    let mut thresholds: Vec<Threshold> =
        results.iter().flat_map(|results| thresholds_of(results).unwrap_or_default()).collect();
    thresholds.extend(product_threshold(results));
    thresholds.extend(clairvoyant_threshold(results));
    thresholds
}

fn thresholds_of(results: &CaseResults) -> Option<Vec<Threshold>> {
    let make = |metric, requirement, measured, bound, unit| Threshold {
        artefact: results.artefact,
        case: results.case.clone(),
        policy: EmptcpClient::Marline.name(),
        metric,
        requirement,
        measured,
        bound: Bound::AtMost(bound),
        unit,
        note: None,
    };
    let energy = |client| results.mean(client, |played| played.energy_j);
    let time = |client| results.mean(client, |played| played.seconds);
    let (measured, tcp, mptcp) = (EmptcpClient::Marline, EmptcpClient::TcpWifi, EmptcpClient::Mptcp);
    let thresholds = match (results.artefact, results.case.as_str()) {
        ("F15", _) => {
            let bound = time(mptcp)? * 1.05;
            let time_threshold = make("time", "at most MPTCP's + 5 %", time(measured)?, bound, "s");
            let reason = format!(
                "TCP over Wi-Fi needs {:.2} s; only a client that uses LTE is faster, for 12.6 J",
                time(tcp)?
            );
            vec![
                make("energy", "at most TCP over Wi-Fi's + 3 %", energy(measured)?, energy(tcp)? * 1.03, "J"),
                Threshold { note: (time(tcp)? > bound).then_some(reason), ..time_threshold },
            ]
        }
        ("F16", "good Wi-Fi, bad LTE") => {
            let bound = energy(mptcp)? * 0.5;
            let half = make("energy", "at most half of MPTCP's", energy(measured)?, bound, "J");
            let least = optimal_energy(results, measured)?;
            let reason = format!("the clairvoyant needs {least:.1} J");
            vec![Threshold { note: (least > bound).then_some(reason), ..half }]
        }
        ("F16", BOTH_BAD) => {
            let least = energy(mptcp)?.min(energy(tcp)?);
            let (two_thirds, four_fifths) = (least * 0.67, time(mptcp)? * 0.8);
            let third = make("energy", "§5.3: a third less than both", energy(measured)?, two_thirds, "J");
            let fifth = make("time", "§5.3: a fifth sooner than MPTCP", time(measured)?, four_fifths, "s");
            let clairvoyant_j = optimal_energy(results, measured)?;
            let energy_note = format!(
                "the clairvoyant needs {clairvoyant_j:.1} J by marline's end and {:.1} J by MPTCP's",
                optimal_energy(results, mptcp)?
            );
            let soonest =
                results.mean(mptcp, |played| played.optimum.map_or(0.0, |optimum| optimum.min_seconds))?;
            let full = format!("both links at their full rates need {soonest:.2} s");
            vec![
                make(
                    "energy",
                    "at most the lesser of MPTCP's and TCP's + 3 %",
                    energy(measured)?,
                    least * 1.03,
                    "J",
                ),
                Threshold { note: (clairvoyant_j > two_thirds).then_some(energy_note), ..third },
                Threshold { note: (soonest > four_fifths).then_some(full), ..fifth },
            ]
        }
        ("F17", _) => vec![
            make("energy", "at most TCP over Wi-Fi's + 5 %", energy(measured)?, energy(tcp)? * 1.05, "J"),
            make("time", "at most MPTCP's + 5 %", time(measured)?, time(mptcp)? * 1.05, "s"),
        ],
        ("F8" | "F10" | "F13" | GRID, _) => {
            let per_byte = |client| results.mean(client, CaseResult::joules_per_megabyte);
            let seconds_per_byte = |client| results.mean(client, CaseResult::seconds_per_megabyte);
            let published = best_published(results)?;
            let thresholds = [
                make(
                    "energy",
                    "per byte, at most eMPTCP's + 3 %",
                    per_byte(measured)?,
                    per_byte(published)? * 1.03,
                    "J/MB",
                ),
                make(
                    "time",
                    "per byte, at most eMPTCP's + 3 %",
                    seconds_per_byte(measured)?,
                    seconds_per_byte(published)? * 1.03,
                    "s/MB",
                ),
            ];
            thresholds
                .map(|threshold| Threshold { note: Some(compared_with(results, published)), ..threshold })
                .into()
        }
        ("X-unequal", _) => unequal_thresholds(results, make)?,
        _ => Vec::new(),
    };
    Some(thresholds)
}

fn unequal_thresholds(
    results: &CaseResults,
    make: impl Fn(&'static str, &'static str, f64, f64, &'static str) -> Threshold,
) -> Option<Vec<Threshold>> {
    let best = [EmptcpClient::TcpLte, EmptcpClient::TcpWifi]
        .into_iter()
        .find(|client| results.all_results(*client).is_some())?;
    let settled_rate = |client| {
        let rates: Option<Vec<f64>> =
            results.all_results(client)?.iter().map(|played| played.settled_mbps).collect();
        stats::mean(&rates?)
    };
    let time = |client| results.mean(client, |played| played.seconds);
    let measured = EmptcpClient::MarlineThroughput;
    let at_least =
        |bound: f64, floor: Threshold| Threshold { bound: Bound::AtLeast(bound), policy: measured.name(), ..floor };
    let after = settled_rate(measured)? / settled_rate(best)?;
    let requirement = "at least 0.97 of the best single path";
    let mut thresholds = vec![at_least(0.97, make("rate_after_5s", requirement, after, 0.97, ""))];
    if best == EmptcpClient::TcpLte {
        let ratio = time(best)? / time(measured)?;
        let requirement = "the whole at least at 0.93 of the best path's rate";
        thresholds.push(at_least(0.93, make("time", requirement, ratio, 0.93, "")));
    }
    Some(thresholds)
}

/// The clairvoyant's mean energy for the end times of this client.
fn optimal_energy(results: &CaseResults, client: EmptcpClient) -> Option<f64> {
    results.mean(client, |played| played.optimum.map_or(0.0, |optimum| optimum.energy))
}

/// Energy per byte times time per byte.
fn energy_time_product(results: &CaseResults, client: EmptcpClient) -> Option<f64> {
    Some(
        results.mean(client, CaseResult::joules_per_megabyte)?
            * results.mean(client, CaseResult::seconds_per_megabyte)?,
    )
}

/// The reading of the published controller with the best product in this case.
fn best_published(results: &CaseResults) -> Option<EmptcpClient> {
    let known = EmptcpClient::PUBLISHED
        .into_iter()
        .filter_map(|client_kind| Some((client_kind, energy_time_product(results, client_kind)?)));
    known.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(client, _)| client)
}

/// Names the reading that a threshold compares with, and those that were not run and might be better.
fn compared_with(results: &CaseResults, published: EmptcpClient) -> String {
    let absent: Vec<&str> = EmptcpClient::PUBLISHED
        .into_iter()
        .filter(|client| results.all_results(*client).is_none())
        .map(EmptcpClient::name)
        .collect();
    match absent.is_empty() {
        true => format!("against {}", published.name()),
        false => format!("against {} (not run: {})", published.name(), absent.join(", ")),
    }
}

/// Threshold of energy per byte times time per byte, relative to published eMPTCP: the best of the three scenarios
/// counts.
fn product_threshold(results: &[CaseResults]) -> Option<Threshold> {
    let ratio_of = |artefact: &str| {
        let ratios: Option<Vec<f64>> = results
            .iter()
            .filter(|results| results.artefact == artefact)
            .map(|results| {
                Some(
                    energy_time_product(results, EmptcpClient::Marline)?
                        / energy_time_product(results, best_published(results)?)?,
                )
            })
            .collect();
        stats::mean(&ratios?)
    };
    let ratios: Option<Vec<f64>> = ["F8", "F10", "F13"].into_iter().map(ratio_of).collect();
    let best = ratios?.into_iter().reduce(f64::min)?;
    Some(Threshold {
        artefact: "F8",
        case: "or F10 or F13".into(),
        policy: EmptcpClient::Marline.name(),
        metric: "product",
        requirement: "energy × time per byte, at most 0.95 of eMPTCP's in one of the three",
        measured: best,
        bound: Bound::AtMost(0.95),
        unit: "",
        note: None,
    })
}

/// Threshold of the mean over all runs that have a clairvoyant.
fn clairvoyant_threshold(results: &[CaseResults]) -> Option<Threshold> {
    let ratios = clairvoyant::ratios(results, EmptcpClient::Marline);
    Some(Threshold {
        artefact: "X-clairvoyant",
        case: format!("{} runs", ratios.len()),
        policy: EmptcpClient::Marline.name(),
        metric: "energy_ratio",
        requirement: "mean of energy over the least of all schedules that end no later",
        measured: stats::mean(&ratios)?,
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
    fn an_unreachable_threshold_is_noted() {
        let runs = [
            (EmptcpClient::TcpWifi, [0.9, 0.6]),
            (EmptcpClient::Mptcp, [0.7, 13.5]),
            (EmptcpClient::Marline, [0.9, 0.61]),
        ];
        let found = thresholds(&[done("F15", "bad Wi-Fi, bad LTE", &runs)]);
        assert_eq!(found.iter().map(Threshold::is_met).collect::<Vec<_>>(), [true, false]);
        assert!(found[1].to_line().contains("TCP over Wi-Fi needs 0.90 s"), "{}", found[1].to_line());
    }

    #[test]
    fn the_published_controller_counts_in_its_best_reading() {
        let runs = [
            (EmptcpClient::Emptcp, [120.0, 90.0]),
            (EmptcpClient::EmptcpSettled, [100.0, 100.0]),
            (EmptcpClient::Marline, [101.0, 101.0]),
        ];
        let found = thresholds(&[done("F8", "on-off 40 s", &runs)]);
        assert!(found.iter().all(Threshold::is_met) && found.len() == 2, "{found:?}");
        assert_eq!(found[0].note.as_deref(), Some("against emptcp-settled (not run: emptcp-table)"));
        let found = thresholds(&[done("F8", "on-off 40 s", &[runs[0], runs[2]])]);
        assert_eq!(found.iter().map(Threshold::is_met).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn unequal_links_are_compared_with_the_better_one() {
        let runs = [
            (EmptcpClient::TcpLte, [17.0, 120.0]),
            (EmptcpClient::Mptcp, [19.0, 130.0]),
            (EmptcpClient::MarlineThroughput, [18.0, 125.0]),
        ];
        let found = thresholds(&[done("X-unequal", "5+50", &runs)]);
        assert_eq!(found.len(), 2);
        assert!((found[1].measured - 17.0 / 18.0).abs() < 1e-9 && found[1].is_met());
        let none = thresholds(&[done("X-unequal", "5+50", &runs[1..])]);
        assert!(none.is_empty());
    }

    #[test]
    fn the_clairvoyant_threshold_averages_all_runs_that_have_one() {
        let runs = [(EmptcpClient::Emptcp, [100.0, 120.0]), (EmptcpClient::Marline, [100.0, 110.0])];
        let mut case = done("F8", "on-off", &runs);
        let optimum = Some(super::super::simulate::Optimum { energy: 100.0, lower_bound: 99.0, min_seconds: 90.0 });
        case.runs[1].1 = vec![Ok(CaseResult { optimum, ..played([100.0, 110.0]) })];
        let found = thresholds(&[case]);
        let clairvoyant = found.iter().find(|threshold| threshold.artefact == "X-clairvoyant").unwrap();
        assert!((clairvoyant.measured - 1.1).abs() < 1e-9 && clairvoyant.is_met() && clairvoyant.case == "1 runs");
    }
}
