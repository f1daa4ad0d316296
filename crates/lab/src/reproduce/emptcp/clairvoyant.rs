//! Comparison with the clairvoyant: how much more energy each client uses than the best schedule that delivers the
//! same bytes by the same end.
//!
//! For each artefact and client it reports the mean, the 90th percentile and the maximum of the ratio. It also
//! reports how far the clairvoyant is above its own lower bound, which no schedule can beat.
//!
//! A file of 256 KB and the web page have rows but do not count for the threshold: the clairvoyant needs no round
//! trips, which are most of their cost.

use super::config::EmptcpClient;
use super::figures::{BOTH_BAD, CLAIRVOYANT, FigureCase, TRACES};
use super::runner::CaseResults;
use super::simulate::{CaseResult, Optimum};
use crate::html_report::Table;
use crate::results::{ResultRow, round_to_thousandths, stats};

/// Artefacts that count for the threshold, including the recorded links.
const THRESHOLD_ARTEFACTS: [&str; 7] = ["F5", "F6", "F8", "F10", "F13", "F16", TRACES];
/// Artefacts that only have rows.
const SMALL_ARTEFACTS: [&str; 2] = ["F15", "F17"];

/// All artefacts that are compared with a clairvoyant.
pub(super) fn artefacts() -> impl Iterator<Item = &'static str> {
    THRESHOLD_ARTEFACTS.into_iter().chain(SMALL_ARTEFACTS)
}

/// Whether a client is compared with the clairvoyant in this case: marline, the published controller, and MPTCP
/// where the paper's statement on two bad links needs it (section 5.3). Plain TCP is not compared, because its
/// packets carry more payload than the model assumes.
pub(super) fn is_compared(figure: &FigureCase, client: EmptcpClient) -> bool {
    let needs_mptcp = figure.artefact == "F16" && figure.case == BOTH_BAD && client == EmptcpClient::Mptcp;
    (needs_mptcp || CLIENTS.contains(&client)) && artefacts().any(|known| known == figure.artefact)
}

/// The clients that are compared in all artefacts.
const CLIENTS: [EmptcpClient; 3] = [EmptcpClient::Emptcp, EmptcpClient::EmptcpSettled, EmptcpClient::Marline];

/// Ratio to the clairvoyant's energy for every run that counts for the threshold.
pub(super) fn ratios(results: &[CaseResults], client: EmptcpClient) -> Vec<f64> {
    runs_with_optimum(results, client, |artefact| THRESHOLD_ARTEFACTS.contains(&artefact))
        .iter()
        .map(energy_ratio)
        .collect()
}

fn runs_with_optimum(
    results: &[CaseResults],
    client: EmptcpClient,
    counts: impl Fn(&str) -> bool,
) -> Vec<(f64, Optimum)> {
    let cases = results.iter().filter(|results| counts(results.artefact));
    let runs = cases.flat_map(|results| results.all_results(client).unwrap_or_default());
    runs.filter_map(|played: &CaseResult| Some((played.energy_j, played.optimum?))).collect()
}

fn energy_ratio((energy, known): &(f64, Optimum)) -> f64 {
    energy / known.energy
}

/// A statistic over runs: metric of the row, unit, and function.
type Metric = (&'static str, &'static str, fn(&[(f64, Optimum)]) -> Option<f64>);

const METRICS: [Metric; 5] = [
    ("energy_ratio", "1", |runs| stats::mean(&runs.iter().map(energy_ratio).collect::<Vec<_>>())),
    ("energy_ratio_p90", "1", |runs| stats::quantile(&runs.iter().map(energy_ratio).collect::<Vec<_>>(), 0.9)),
    ("energy_ratio_worst", "1", |runs| stats::quantile(&runs.iter().map(energy_ratio).collect::<Vec<_>>(), 1.0)),
    ("bound_gap", "%", |runs| stats::mean(&runs.iter().map(bound_gap_percent).collect::<Vec<_>>())),
    ("bound_gap_worst", "%", |runs| stats::quantile(&runs.iter().map(bound_gap_percent).collect::<Vec<_>>(), 1.0)),
];

/// Percentage by which the clairvoyant is above its lower bound.
fn bound_gap_percent((_, known): &(f64, Optimum)) -> f64 {
    (known.energy / known.lower_bound - 1.0) * 100.0
}

/// The rows; their case is the artefact.
pub(super) fn rows(results: &[CaseResults]) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for client in CLIENTS {
        let mut push = |case: &str, runs: &[(f64, Optimum)]| {
            for (metric, unit, metric_of) in METRICS {
                let empty = ResultRow::empty(CLAIRVOYANT, case, client.name(), metric, unit);
                let note = (metric == "energy_ratio").then(|| format!("{} runs", runs.len()));
                rows.extend(metric_of(runs).map(|value| ResultRow {
                    measured: Some(round_to_thousandths(value)),
                    note,
                    ..empty
                }));
            }
        };
        for artefact in artefacts() {
            push(artefact, &runs_with_optimum(results, client, |name| name == artefact));
        }
        push(ALL_LARGE, &runs_with_optimum(results, client, |name| THRESHOLD_ARTEFACTS.contains(&name)));
    }
    rows
}

const ALL_LARGE: &str = "all but F15 and F17";

/// The rows as a table for people.
pub(super) fn table(rows: &[ResultRow]) -> Option<Table> {
    let artefact_rows: Vec<&ResultRow> = rows.iter().filter(|row| row.artefact == CLAIRVOYANT).collect();
    let line = |first: &&ResultRow| {
        let value = |(metric, unit, _): &Metric| {
            let same = |row: &&&ResultRow| {
                (&row.case, &row.policy, row.metric.as_str()) == (&first.case, &first.policy, metric)
            };
            let digits = if *unit == "%" { 1 } else { 3 };
            artefact_rows
                .iter()
                .find(same)
                .and_then(|row| row.measured)
                .map_or("–".into(), |value| format!("{value:.digits$}"))
        };
        let start = [first.case.clone(), first.policy.clone(), first.note.clone().unwrap_or_default()];
        start.into_iter().chain(METRICS.iter().map(value)).collect()
    };
    let lines: Vec<Vec<String>> =
        artefact_rows.iter().filter(|row| row.metric == "energy_ratio" && row.unit == "1").map(line).collect();
    let header = ["artefact", "client", "", "mean", "p90", "worst", "above its bound %", "worst %"];
    (!lines.is_empty()).then(|| Table { header: header.map(String::from).into(), rows: lines, note: None })
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::{done, played};
    use super::*;

    #[test]
    fn each_artefact_has_the_mean_the_90th_percentile_and_the_maximum() {
        let mut case = done("F16", BOTH_BAD, &[(EmptcpClient::Marline, [10.0, 100.0])]);
        let known = |energy| Optimum { energy, lower_bound: energy / 1.25, min_seconds: 5.0 };
        case.runs[0].1 = [100.0, 80.0, 50.0]
            .map(|least| Ok(CaseResult { optimum: Some(known(least)), ..played([10.0, 100.0]) }))
            .into();
        let rows = rows(&[case]);
        let measured_of =
            |metric: &str| rows.iter().find(|row| row.case == "F16" && row.metric == metric).unwrap().measured;
        assert_eq!(measured_of("energy_ratio"), Some(1.417));
        assert_eq!((measured_of("energy_ratio_p90"), measured_of("energy_ratio_worst")), (Some(1.85), Some(2.0)));
        assert_eq!(measured_of("bound_gap"), Some(25.0));
        assert_eq!(table(&rows).unwrap().rows[0][..3], ["F16", "marline", "3 runs"]);
    }
}
