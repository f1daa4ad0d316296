//! BASS's figures for people.

use super::rows::{BOTH, SPLIT, TCP};
use crate::evidence::Row;
use crate::page::Table;

/// An artefact's rows; none: there are none.
pub(super) fn table(rows: &[Row], artefact: &str) -> Option<Table> {
    let of: Vec<&Row> = rows.iter().filter(|row| row.artefact == artefact && row.metric != "floor").collect();
    if of.is_empty() {
        return None;
    }
    Some(match artefact {
        "F11" => origins(&of),
        "F12" => plain(&of),
        _ => wide(&of),
    })
}

/// One line for each case and client, a column for each thing that is measured, the paper's before ours where it says one.
fn wide(rows: &[&Row]) -> Table {
    let mut keys: Vec<(&str, &str)> = rows.iter().map(|row| (row.case.as_str(), row.policy.as_str())).collect();
    keys.dedup();
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let metric = (row.metric.as_str(), row.unit.as_str());
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    let of = |key: (&str, &str), metric: &str| {
        rows.iter().find(|row| (row.case.as_str(), row.policy.as_str()) == key && row.metric == metric)
    };
    let said = |metric: &str| rows.iter().any(|row| row.metric == metric && row.paper.is_some());
    let mut head = vec!["case".to_owned(), "who".to_owned()];
    for (metric, unit) in &metrics {
        head.extend(said(metric).then(|| format!("paper: {metric}")));
        head.push(format!("{metric} {unit}").trim().to_owned());
    }
    let line = |key: &(&str, &str)| {
        let mut line = vec![key.0.to_owned(), key.1.to_owned()];
        for (metric, _) in &metrics {
            let row = of(*key, metric);
            line.extend(said(metric).then(|| number(row.and_then(|row| row.paper))));
            line.push(row.map_or("–".into(), |row| with_spread(row)));
        }
        line
    };
    Table { head, rows: keys.iter().map(line).collect(), note: None }
}

fn with_spread(row: &Row) -> String {
    number(row.ours) + &row.spread.map(|spread| format!(" ± {spread:.2}")).unwrap_or_default()
}

fn plain(rows: &[&Row]) -> Table {
    let line = |row: &&Row| {
        let (case, policy, metric) = (row.case.clone(), row.policy.clone(), row.metric.clone());
        vec![case, policy, metric, number(row.paper), with_spread(row), row.unit.clone()]
    };
    table_of(&["case", "who", "what", "paper", "ours", ""], rows.iter().map(line).collect())
}

/// One line for each origin.
fn origins(rows: &[&Row]) -> Table {
    let gains = rows.iter().filter(|row| row.metric == "gain");
    let line = |gain: &&Row| {
        let of = |who: &str| {
            let same = |row: &&&Row| (row.case.as_str(), row.policy.as_str()) == (gain.case.as_str(), who);
            rows.iter().find(|row| same(row) && row.metric == "rate")
        };
        let mut line = vec![gain.case.clone(), of(TCP).and_then(|row| row.note.clone()).unwrap_or_default()];
        line.extend([TCP, SPLIT, BOTH].map(|who| number(of(who).and_then(|row| row.ours))));
        line.push(number(gain.ours));
        line
    };
    table_of(&["origin", "its way", TCP, SPLIT, BOTH, "gain"], gains.map(line).collect())
}

fn table_of(head: &[&str], rows: Vec<Vec<String>>) -> Table {
    Table { head: head.iter().map(|word| (*word).to_owned()).collect(), rows, note: None }
}

fn number(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_one_line_with_its_way_and_gain() {
        let rate = |who: &str, value: f64| Row {
            ours: Some(value),
            note: Some("100 ms, 1% lost".into()),
            ..Row::empty("F11", "origin 1", who, "rate", "Mbit/s")
        };
        let gain = Row { ours: Some(4.0), ..Row::empty("F11", "origin 1", BOTH, "gain", "") };
        let rows = [rate(TCP, 1.0), rate(SPLIT, 2.0), rate(BOTH, 4.0), gain];
        let made = table(&rows, "F11").unwrap();
        assert_eq!(made.rows, [["origin 1", "100 ms, 1% lost", "1.00", "2.00", "4.00", "4.00"]]);
        assert!(table(&rows, "F5").is_none());
    }

    #[test]
    fn what_is_measured_of_one_case_and_client_is_one_line() {
        let value = |case: &str, metric: &str, paper, ours| Row {
            paper,
            ours: Some(ours),
            ..Row::empty("F10", case, "marline", metric, "%")
        };
        let rows = [
            value("load 50 %", "γ = 1", Some(77.0), 88.0),
            value("load 50 %", "γ ≥ 0.9", None, 95.0),
            value("load 90 %", "γ = 1", None, 60.0),
        ];
        let made = table(&rows, "F10").unwrap();
        assert_eq!(made.head, ["case", "who", "paper: γ = 1", "γ = 1 %", "γ ≥ 0.9 %"]);
        assert_eq!(made.rows[0], ["load 50 %", "marline", "77.00", "88.00", "95.00"]);
        assert_eq!(made.rows[1], ["load 90 %", "marline", "–", "60.00", "–"]);
    }
}
