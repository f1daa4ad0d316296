//! Tables of BASS's figures for people.

use super::rows::{BOTH_LINKS, DIRECT_TCP, SPLIT_ONE_LINK};
use crate::html_report::Table;
use crate::results::ResultRow;

/// The table of an artefact; `None` if it has no rows.
pub(super) fn table(rows: &[ResultRow], artefact: &str) -> Option<Table> {
    let artefact_rows: Vec<&ResultRow> =
        rows.iter().filter(|row| row.artefact == artefact && row.metric != "floor").collect();
    if artefact_rows.is_empty() {
        return None;
    }
    Some(match artefact {
        "F11" => origin_table(&artefact_rows),
        "F12" => plain_table(&artefact_rows),
        _ => wide_table(&artefact_rows),
    })
}

/// One line per case and client, one column per metric, preceded by the paper's value where it has one.
fn wide_table(rows: &[&ResultRow]) -> Table {
    let mut keys: Vec<(&str, &str)> = rows.iter().map(|row| (row.case.as_str(), row.policy.as_str())).collect();
    keys.dedup();
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let metric = (row.metric.as_str(), row.unit.as_str());
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    let row_of = |key: (&str, &str), metric: &str| {
        rows.iter().find(|row| (row.case.as_str(), row.policy.as_str()) == key && row.metric == metric)
    };
    let has_paper_value = |metric: &str| rows.iter().any(|row| row.metric == metric && row.paper.is_some());
    let mut header = vec!["case".to_owned(), "client".to_owned()];
    for (metric, unit) in &metrics {
        header.extend(has_paper_value(metric).then(|| format!("paper: {metric}")));
        header.push(format!("{metric} {unit}").trim().to_owned());
    }
    let line = |key: &(&str, &str)| {
        let mut line = vec![key.0.to_owned(), key.1.to_owned()];
        for (metric, _) in &metrics {
            let row = row_of(*key, metric);
            line.extend(has_paper_value(metric).then(|| format_number(row.and_then(|row| row.paper))));
            line.push(row.map_or("–".into(), |row| with_spread(row)));
        }
        line
    };
    Table { header, rows: keys.iter().map(line).collect(), note: None }
}

fn with_spread(row: &ResultRow) -> String {
    format_number(row.measured) + &row.spread.map(|spread| format!(" ± {spread:.2}")).unwrap_or_default()
}

fn plain_table(rows: &[&ResultRow]) -> Table {
    let line = |row: &&ResultRow| {
        let (case, policy, metric) = (row.case.clone(), row.policy.clone(), row.metric.clone());
        vec![case, policy, metric, format_number(row.paper), with_spread(row), row.unit.clone()]
    };
    table_of(&["case", "client", "what", "paper", "ours", ""], rows.iter().map(line).collect())
}

/// One line per origin.
fn origin_table(rows: &[&ResultRow]) -> Table {
    let gains = rows.iter().filter(|row| row.metric == "gain");
    let line = |gain: &&ResultRow| {
        let row_of = |policy: &str| {
            let same = |row: &&&ResultRow| (row.case.as_str(), row.policy.as_str()) == (gain.case.as_str(), policy);
            rows.iter().find(|row| same(row) && row.metric == "rate")
        };
        let mut line =
            vec![gain.case.clone(), row_of(DIRECT_TCP).and_then(|row| row.note.clone()).unwrap_or_default()];
        line.extend(
            [DIRECT_TCP, SPLIT_ONE_LINK, BOTH_LINKS]
                .map(|policy| format_number(row_of(policy).and_then(|row| row.measured))),
        );
        line.push(format_number(gain.measured));
        line
    };
    table_of(&["origin", "its path", DIRECT_TCP, SPLIT_ONE_LINK, BOTH_LINKS, "gain"], gains.map(line).collect())
}

fn table_of(header: &[&str], rows: Vec<Vec<String>>) -> Table {
    Table { header: header.iter().map(|name| (*name).to_owned()).collect(), rows, note: None }
}

fn format_number(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_one_line_with_its_path_and_gain() {
        let rate = |policy: &str, value: f64| ResultRow {
            measured: Some(value),
            note: Some("100 ms, 1% lost".into()),
            ..ResultRow::empty("F11", "origin 1", policy, "rate", "Mbit/s")
        };
        let gain = ResultRow { measured: Some(4.0), ..ResultRow::empty("F11", "origin 1", BOTH_LINKS, "gain", "") };
        let rows = [rate(DIRECT_TCP, 1.0), rate(SPLIT_ONE_LINK, 2.0), rate(BOTH_LINKS, 4.0), gain];
        let found = table(&rows, "F11").unwrap();
        assert_eq!(found.rows, [["origin 1", "100 ms, 1% lost", "1.00", "2.00", "4.00", "4.00"]]);
        assert!(table(&rows, "F5").is_none());
    }

    #[test]
    fn the_metrics_of_a_case_and_client_are_one_line() {
        let value = |case: &str, metric: &str, paper, measured| ResultRow {
            paper,
            measured: Some(measured),
            ..ResultRow::empty("F10", case, "marline", metric, "%")
        };
        let rows = [
            value("load 50 %", "γ = 1", Some(77.0), 88.0),
            value("load 50 %", "γ ≥ 0.9", None, 95.0),
            value("load 90 %", "γ = 1", None, 60.0),
        ];
        let table = table(&rows, "F10").unwrap();
        assert_eq!(table.header, ["case", "client", "paper: γ = 1", "γ = 1 %", "γ ≥ 0.9 %"]);
        assert_eq!(table.rows[0], ["load 50 %", "marline", "77.00", "88.00", "95.00"]);
        assert_eq!(table.rows[1], ["load 90 %", "marline", "–", "60.00", "–"]);
    }
}
