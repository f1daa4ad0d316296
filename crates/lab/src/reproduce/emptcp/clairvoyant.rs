//! How far everybody is above the least energy of all schedules that bring the same bytes by the same end.
//!
//! In: what was done. Out: of each artefact and client the mean, the ninth decile and the worst of energy over the
//! clairvoyant's; and how far that is above its own bound, below which no schedule can be.
//!
//! A file of 256 KB and a page have rows and are not in the floor: the clairvoyant needs no round trips, which is most of
//! what they cost.

use super::config::EmptcpClient;
use super::figures::{BOTH_BAD, CLAIRVOYANT, FigureCase, TRACES};
use super::runner::CaseResults;
use super::simulate::{CaseResult, Optimum};
use crate::html_report::Table;
use crate::results::{ResultRow, round_to_thousandths, stats};

/// Those of the floor, with the recorded links.
const THRESHOLD_ARTEFACTS: [&str; 7] = ["F5", "F6", "F8", "F10", "F13", "F16", TRACES];
/// Those beside it.
const SMALL_ARTEFACTS: [&str; 2] = ["F15", "F17"];

/// All artefacts that have a clairvoyant.
pub(super) fn artefacts() -> impl Iterator<Item = &'static str> {
    THRESHOLD_ARTEFACTS.into_iter().chain(SMALL_ARTEFACTS)
}

/// Whether the clairvoyant is asked: of ours and of the published controller, and of MPTCP where the paper's sentence on
/// two bad links is measured by it (§5.3). Not of plain TCP: its packets have more payload than are reckoned with.
pub(super) fn is_compared(figure: &FigureCase, client: EmptcpClient) -> bool {
    let said = figure.artefact == "F16" && figure.case == BOTH_BAD && client == EmptcpClient::Mptcp;
    (said || CLIENTS.contains(&client)) && artefacts().any(|known| known == figure.artefact)
}

/// Those that are compared with it.
const CLIENTS: [EmptcpClient; 3] = [EmptcpClient::Emptcp, EmptcpClient::EmptcpSettled, EmptcpClient::Marline];

/// Energy over the clairvoyant's of every run of the floor.
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

/// What is said of a list of runs: the name of the row, its unit, and how.
type Metric = (&'static str, &'static str, fn(&[(f64, Optimum)]) -> Option<f64>);

const METRICS: [Metric; 5] = [
    ("energy_ratio", "1", |runs| stats::mean(&runs.iter().map(energy_ratio).collect::<Vec<_>>())),
    ("energy_ratio_p90", "1", |runs| stats::quantile(&runs.iter().map(energy_ratio).collect::<Vec<_>>(), 0.9)),
    ("energy_ratio_worst", "1", |runs| stats::quantile(&runs.iter().map(energy_ratio).collect::<Vec<_>>(), 1.0)),
    ("bound_gap", "%", |runs| stats::mean(&runs.iter().map(bound_gap_percent).collect::<Vec<_>>())),
    ("bound_gap_worst", "%", |runs| stats::quantile(&runs.iter().map(bound_gap_percent).collect::<Vec<_>>(), 1.0)),
];

/// Percent by which the clairvoyant is above its own bound.
fn bound_gap_percent((_, known): &(f64, Optimum)) -> f64 {
    (known.energy / known.lower_bound - 1.0) * 100.0
}

/// The rows; the case is the artefact.
pub(super) fn rows(results: &[CaseResults]) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for client in CLIENTS {
        let mut push = |case: &str, runs: &[(f64, Optimum)]| {
            for (metric, unit, of) in METRICS {
                let empty = ResultRow::empty(CLAIRVOYANT, case, client.name(), metric, unit);
                let note = (metric == "energy_ratio").then(|| format!("{} runs", runs.len()));
                rows.extend(of(runs).map(|value| ResultRow {
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

/// For people.
pub(super) fn table(rows: &[ResultRow]) -> Option<Table> {
    let of: Vec<&ResultRow> = rows.iter().filter(|row| row.artefact == CLAIRVOYANT).collect();
    let line = |first: &&ResultRow| {
        let value = |(metric, unit, _): &Metric| {
            let same = |row: &&&ResultRow| {
                (&row.case, &row.policy, row.metric.as_str()) == (&first.case, &first.policy, metric)
            };
            let digits = if *unit == "%" { 1 } else { 3 };
            of.iter()
                .find(same)
                .and_then(|row| row.measured)
                .map_or("–".into(), |value| format!("{value:.digits$}"))
        };
        let start = [first.case.clone(), first.policy.clone(), first.note.clone().unwrap_or_default()];
        start.into_iter().chain(METRICS.iter().map(value)).collect()
    };
    let lines: Vec<Vec<String>> =
        of.iter().filter(|row| row.metric == "energy_ratio" && row.unit == "1").map(line).collect();
    let header = ["artefact", "client", "", "mean", "p90", "worst", "above its bound %", "worst %"];
    (!lines.is_empty()).then(|| Table { header: header.map(String::from).into(), rows: lines, note: None })
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::{done, played};
    use super::*;

    #[test]
    fn each_artefact_has_its_mean_decile_and_worst() {
        let mut case = done("F16", BOTH_BAD, &[(EmptcpClient::Marline, [10.0, 100.0])]);
        let known = |energy| Optimum { energy, lower_bound: energy / 1.25, min_seconds: 5.0 };
        case.runs[0].1 = [100.0, 80.0, 50.0]
            .map(|least| Ok(CaseResult { optimum: Some(known(least)), ..played([10.0, 100.0]) }))
            .into();
        let rows = rows(&[case]);
        let of = |metric: &str| rows.iter().find(|row| row.case == "F16" && row.metric == metric).unwrap().measured;
        assert_eq!(of("energy_ratio"), Some(1.417));
        assert_eq!((of("energy_ratio_p90"), of("energy_ratio_worst")), (Some(1.85), Some(2.0)));
        assert_eq!(of("bound_gap"), Some(25.0));
        assert_eq!(table(&rows).unwrap().rows[0][..3], ["F16", "marline", "3 runs"]);
    }
}
