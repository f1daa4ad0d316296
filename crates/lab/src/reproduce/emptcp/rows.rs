//! Result rows of eMPTCP's figures.
//!
//! 1. For every case and client: time, energy, energy per megabyte, bytes over each link, promotions of LTE; means
//!    over the repetitions with their standard deviation. The paper plots these without numbers.
//! 2. For every statement with a number: the paper's percentage (the middle of its range) and the measured one, for
//!    each reading of eMPTCP that was run and for marline's policy. A statement that a configuration was chosen to
//!    reproduce is marked.
//! 3. For the timelines (figures 7, 9 and 12): the first repetition, each row the mean rates of [`TIMELINE_STEP`] points and the energy at
//!    their end.
//! 4. The share of states in which the MDP's schedule uses LTE.
//! 5. The clairvoyant's energy where it was computed, and by artefact ([`super::clairvoyant`]).

use marline_core::energy::Model;

use super::config::EmptcpClient;
use super::figures::FigureCase;
use super::paper::{EXPLAIN_BEYOND, PaperStatement, STATEMENTS};
use super::real::{STEP_S, TimelinePoint};
use super::runner::CaseResults;
use super::simulate::{self, CaseResult};
use crate::reproduce::threshold::Threshold;
use crate::results::{Backend, ResultRow, round_to_thousandths, stats};

/// A metric of every case: name, unit, and function.
type Metric = (&'static str, &'static str, fn(&CaseResult) -> Option<f64>);

pub(super) const METRICS: [Metric; 8] = [
    ("time", "s", |played| Some(played.seconds)),
    ("energy", "J", |played| Some(played.energy_j)),
    ("energy_per_megabyte", "J/MB", |played| Some(played.joules_per_megabyte())),
    ("bytes_wifi", "MB", |played| Some(played.ip_bytes[0] / 1e6)),
    ("bytes_lte", "MB", |played| Some(played.ip_bytes[1] / 1e6)),
    ("wakes_lte", "1", |played| played.promotions),
    ("runs_waking_lte", "%", |played| {
        played.promotions.map(|promotions| if promotions > 0.0 { 100.0 } else { 0.0 })
    }),
    ("rate_after_5s", "Mbit/s", |played| played.settled_mbps),
];

/// All rows of these results.
pub(super) fn rows(
    results: &[CaseResults],
    thresholds: &[Threshold],
    backend: Backend,
    scale: f64,
) -> Vec<ResultRow> {
    let mut rows: Vec<ResultRow> = results.iter().flat_map(metric_rows).collect();
    rows.extend(results.iter().flat_map(statement_rows));
    rows.extend(timeline_rows(results));
    rows.extend(super::clairvoyant::rows(results));
    rows.extend(thresholds.iter().map(Threshold::to_row));
    for row in &mut rows {
        (row.backend, row.scale) = (backend, scale);
    }
    rows
}

fn metric_rows(results: &CaseResults) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for (client, _) in &results.runs {
        let empty = |metric, unit| ResultRow::empty(results.artefact, &results.case, client.name(), metric, unit);
        let Some(played) = results.all_results(*client) else {
            rows.push(ResultRow { note: results.problems().next(), ..empty("energy", "J") });
            continue;
        };
        for (metric, unit, metric_of) in METRICS {
            let values: Option<Vec<f64>> = played.iter().map(|played| metric_of(played)).collect();
            let Some(values) = values else { continue };
            let least: Option<Vec<f64>> = played.iter().map(|played| Some(played.optimum?.energy)).collect();
            let least = least.filter(|_| metric == "energy").and_then(|values| stats::mean(&values));
            rows.push(ResultRow {
                measured: stats::mean(&values).map(round_to_thousandths),
                spread: stats::std_dev(&values).map(round_to_thousandths),
                clairvoyant: least.map(round_to_thousandths),
                ..empty(metric, unit)
            });
        }
    }
    rows
}

/// Rows of the paper's statements: by how many percent one client differs from another.
fn statement_rows(results: &CaseResults) -> Vec<ResultRow> {
    let make_row = |statement: PaperStatement| {
        let measured = statement.measured_percent(results)?;
        let outside = (statement.min_percent - measured).max(measured - statement.max_percent);
        let range = match statement.min_percent == statement.max_percent {
            true => format!("§{}", statement.section),
            false => format!("§{}: {} to {} %", statement.section, statement.min_percent, statement.max_percent),
        };
        let of_emptcp = statement.client != EmptcpClient::Marline && statement.baseline != EmptcpClient::Marline;
        let mut reason = String::new();
        if outside > EXPLAIN_BEYOND && !statement.explanation.is_empty() && of_emptcp {
            reason = format!("; {}", statement.explanation);
        }
        if statement.is_tuned {
            reason += "; the configuration was chosen to reproduce this: agreement shows nothing";
        }
        if !of_emptcp {
            reason += "; the paper's is of eMPTCP";
        }
        let metric = format!("{} against {}", statement.metric.name(), statement.baseline.name());
        Some(ResultRow {
            paper: Some((statement.min_percent + statement.max_percent) / 2.0),
            measured: Some((measured * 10.0).round() / 10.0),
            note: Some(format!("{range}{reason}")),
            ..ResultRow::empty(results.artefact, &results.case, statement.client.name(), &metric, "%")
        })
    };
    // Statements on eMPTCP are compared with each reading of its text, and with marline's policy.
    let read = |statement: &PaperStatement| {
        [EmptcpClient::Emptcp, EmptcpClient::EmptcpSettled, EmptcpClient::EmptcpTable, EmptcpClient::Marline]
            .map(|client| statement.for_reading(client))
    };
    let mut all: Vec<PaperStatement> = STATEMENTS.iter().flat_map(read).collect();
    all.dedup();
    all.into_iter().filter_map(make_row).collect()
}

/// Figures over time, with the artefact and the case whose timeline they show.
pub(super) const TIMELINES: [(&str, &str, &str); 3] =
    [("F7", "F8", ""), ("F9", "F10", "n=2 λoff=0.025"), ("F12", "F13", "")];
/// Number of timeline points that one row averages.
const TIMELINE_STEP: usize = 5;

fn timeline_rows(results: &[CaseResults]) -> Vec<ResultRow> {
    let mut rows = Vec::new();
    for (artefact, figure, case) in TIMELINES {
        let Some(results) = results.iter().find(|done| done.artefact == figure && done.case.starts_with(case))
        else {
            continue;
        };
        for (client, runs) in &results.runs {
            let Some(Ok(first)) = runs.first() else { continue };
            for (at, points) in (1_u32..).zip(first.timeline.chunks(TIMELINE_STEP)) {
                let seconds = at * STEP_S * TIMELINE_STEP as u32;
                let mut push = |metric: &str, unit: &str, value: f64| {
                    let empty = ResultRow::empty(artefact, &format!("at {seconds} s"), client.name(), metric, unit);
                    rows.push(ResultRow { measured: Some(round_to_thousandths(value)), ..empty });
                };
                let mean = |link: usize| {
                    points.iter().map(|point: &TimelinePoint| point.mbps[link]).sum::<f64>() / points.len() as f64
                };
                push("energy", "J", points.last().map_or(0.0, |point| point.energy_j));
                push("rate_wifi", "Mbit/s", mean(0));
                push("rate_lte", "Mbit/s", mean(1));
            }
        }
    }
    rows
}

/// Share of its reachable states in which the MDP's schedule uses LTE (section 4.6: none, so that it is TCP over
/// Wi-Fi).
pub(super) fn mdp_row(figure: &FigureCase, model: &Model) -> ResultRow {
    let shares: Vec<f64> = figure
        .runs
        .iter()
        .map(|run| simulate::mdp_lte_states(run, model))
        .map(|(used, total)| used as f64 / total.max(1) as f64 * 100.0)
        .collect();
    let measured = stats::mean(&shares);
    let note = match measured {
        Some(share) if share > 0.0 => {
            "§4.6: WiFi-only in all scenarios; in this model a fast Wi-Fi draws more a second than LTE, so that the \
             schedule, which counts joules a second, takes LTE there"
        }
        _ => "§4.6: WiFi-only in all scenarios",
    };
    let empty = ResultRow::empty(figure.artefact, &figure.case, EmptcpClient::Mdp.name(), "states_with_lte", "%");
    ResultRow { paper: Some(0.0), measured: measured.map(round_to_thousandths), note: Some(note.into()), ..empty }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A result of ten megabytes with this time and energy.
    pub(in super::super) fn played([seconds, energy]: [f64; 2]) -> CaseResult {
        CaseResult {
            seconds,
            bytes: 10e6,
            energy_j: energy,
            ip_bytes: [9e6, 1.5e6],
            promotions: Some(1.0),
            settled_mbps: Some(80.0 / seconds),
            timeline: vec![TimelinePoint { mbps: [4.0, 2.0], energy_j: energy / 2.0 }; 7],
            optimum: None,
        }
    }

    pub(in super::super) fn done(
        artefact: &'static str,
        case: &str,
        runs: &[(EmptcpClient, [f64; 2])],
    ) -> CaseResults {
        let runs = runs.iter().map(|(client, figures)| (*client, vec![Ok(played(*figures))])).collect();
        CaseResults { artefact, case: case.into(), runs }
    }

    #[test]
    fn a_statement_of_the_paper_is_compared_with_the_measured_value() {
        let runs = [
            (EmptcpClient::TcpWifi, [200.0, 100.0]),
            (EmptcpClient::Mptcp, [100.0, 110.0]),
            (EmptcpClient::Emptcp, [130.0, 99.0]),
        ];
        let rows = rows(&[done("F8", "on-off 40 s", &runs)], &[], Backend::Sim, 0.5);
        assert!(rows.iter().all(|row| row.scale == 0.5 && row.backend == Backend::Sim));
        let row_of = |metric: &str| rows.iter().find(|row| row.policy == "emptcp" && row.metric == metric).unwrap();
        let energy = row_of("energy against mptcp");
        assert_eq!((energy.paper, energy.measured), (Some(-8.0), Some(-10.0)));
        assert!(energy.note.as_ref().unwrap().starts_with("§4.3") && !energy.note.as_ref().unwrap().contains(';'));
        let time = row_of("time against mptcp");
        assert_eq!(time.measured, Some(30.0));
        assert!(time.note.as_ref().unwrap().contains("over upstream MPTCP"), "{time:?}");
        assert_eq!(row_of("energy_per_megabyte").measured, Some(9.9));
    }

    #[test]
    fn a_tuned_statement_is_marked_and_marlines_policy_has_a_row() {
        let runs = [
            (EmptcpClient::TcpWifi, [200.0, 100.0]),
            (EmptcpClient::Mptcp, [100.0, 110.0]),
            (EmptcpClient::EmptcpSettled, [100.0, 99.0]),
            (EmptcpClient::Marline, [110.0, 99.0]),
        ];
        let rows = rows(&[done("F10", "n=2 λoff=0.025", &runs)], &[], Backend::Sim, 1.0);
        let row_of = |policy: &str, metric: &str| {
            let row = rows.iter().find(|row| row.policy == policy && row.metric == metric).unwrap();
            (row.measured.unwrap(), row.note.clone().unwrap())
        };
        let (twice, note) = row_of("single:wifi", "time against emptcp-settled");
        assert_eq!(twice, 100.0);
        assert!(note.contains("chosen to reproduce this"), "{note}");
        let (measured, note) = row_of("marline", "time against mptcp");
        assert_eq!(measured, 10.0);
        assert!(note.ends_with("the paper's is of eMPTCP"), "{note}");
        assert!(!row_of("emptcp-settled", "time against mptcp").1.contains("chosen"));
    }

    #[test]
    fn a_timeline_is_that_of_the_first_repetition() {
        let rows =
            rows(&[done("F8", "on-off 40 s", &[(EmptcpClient::Mptcp, [14.0, 20.0])])], &[], Backend::Sim, 1.0);
        let timeline: Vec<&ResultRow> =
            rows.iter().filter(|row| row.artefact == "F7" && row.metric == "energy").collect();
        assert_eq!(timeline.iter().map(|row| row.case.as_str()).collect::<Vec<_>>(), ["at 10 s", "at 20 s"]);
        let table = super::super::table::timeline_table(&rows, "F7").unwrap();
        assert_eq!(table.rows[0], ["at 10 s", "10.0"]);
        assert!(super::super::table::timeline_table(&rows, "F12").is_none());
    }

    #[test]
    fn a_failed_client_has_a_null_and_the_reason() {
        let mut case = done("F5", "good Wi-Fi", &[(EmptcpClient::Marline, [14.0, 20.0])]);
        case.runs[0].1.push(Err("no end".into()));
        let rows = rows(&[case], &[], Backend::Lab, 1.0);
        assert_eq!(rows.len(), 1);
        assert!(rows[0].measured.is_none() && rows[0].note.as_ref().unwrap().contains("no end"));
    }
}
