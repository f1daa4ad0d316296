//! Super-aggregation's figures for people: a line for each point, sender and variant, a column for each metric.

use crate::html_report::Table;
use crate::results::ResultRow;

/// An artefact's rows; none: there are none.
pub(super) fn table(rows: &[ResultRow], artefact: &str) -> Option<Table> {
    let artefact_rows: Vec<&ResultRow> = rows.iter().filter(|row| row.artefact == artefact).collect();
    let key = |row: &&ResultRow| (row.case.clone(), row.policy.clone());
    let mut keys: Vec<(String, String)> = artefact_rows.iter().map(key).collect();
    keys.dedup();
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    for row in &artefact_rows {
        let metric = (row.metric.as_str(), row.unit.as_str());
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    if keys.is_empty() {
        return None;
    }
    let has_paper_value =
        |metric: &str| artefact_rows.iter().any(|row| row.metric == metric && row.paper.is_some());
    let mut header = vec!["case".to_owned(), "who".to_owned()];
    for (metric, unit) in &metrics {
        header.extend(has_paper_value(metric).then(|| format!("paper: {metric}")));
        header.push(format!("{metric} {unit}").trim().to_owned());
    }
    header.push("note".to_owned());
    let line = |(case, policy): &(String, String)| {
        let policy_rows: Vec<&&ResultRow> =
            artefact_rows.iter().filter(|row| (&row.case, &row.policy) == (case, policy)).collect();
        let mut line = vec![case.clone(), policy.clone()];
        for (metric, _) in &metrics {
            let row = policy_rows.iter().find(|row| row.metric == *metric);
            line.extend(has_paper_value(metric).then(|| format_number(row.and_then(|row| row.paper))));
            let spread = row.and_then(|row| row.spread).map(|spread| format!(" ± {}", format_number(Some(spread))));
            line.push(format_number(row.and_then(|row| row.measured)) + &spread.unwrap_or_default());
        }
        let notes: Vec<&str> = policy_rows.iter().filter_map(|row| row.note.as_deref()).collect();
        line.push(notes.join("; "));
        line
    };
    Some(Table { header, rows: keys.iter().map(line).collect(), note: None })
}

fn format_number(value: Option<f64>) -> String {
    match value {
        None => "–".into(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_figure_stands_before_ours_where_it_says_one() {
        let row = |policy: &str, metric: &str, paper, measured| ResultRow {
            paper,
            measured: Some(measured),
            ..ResultRow::empty("F6", "2s, 50ms", policy, metric, "%")
        };
        let rows = [
            row("cubic plain", "rate", None, 16.4),
            row("cubic paper", "rate", None, 15.0),
            ResultRow { note: Some("§6.4".into()), ..row("cubic paper", "gain", Some(87.0), -8.5) },
        ];
        let found = table(&rows, "F6").unwrap();
        assert_eq!(found.header, ["case", "who", "rate %", "paper: gain", "gain %", "note"]);
        assert_eq!(found.rows[0], ["2s, 50ms", "cubic plain", "16.40", "–", "–", ""]);
        assert_eq!(found.rows[1], ["2s, 50ms", "cubic paper", "15.00", "87.00", "-8.50", "§6.4"]);
        assert!(table(&rows, "F5").is_none());
    }
}
