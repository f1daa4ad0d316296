//! Tables of GreenBag's figures for people: one per artefact, and the numbers in the paper's text.

use crate::html_report::Table;
use crate::results::ResultRow;

/// The table of one artefact: a line per case and policy, beside the clairvoyant's values; `compared` are the rows
/// of virtual time.
pub(super) fn table(rows: &[ResultRow], compared: Option<&[ResultRow]>, artefact: &str) -> Table {
    let artefact_rows: Vec<&ResultRow> = rows.iter().filter(|row| row.artefact == artefact).collect();
    let energy = artefact_rows.iter().any(|row| row.metric == "energy" && row.clairvoyant.is_some());
    let ratio = artefact_rows.iter().any(|row| row.metric == "energy_ratio");
    let mut header = vec!["case", "policy"];
    let figure = |name: &'static str| if compared.is_some() { vec![name, "sim"] } else { vec![name] };
    header.extend(figure("playback s"));
    header.extend(["clairvoyant", "gap"]);
    header.extend(figure("interruption s"));
    header.extend(figure("stalls"));
    if energy {
        header.extend(figure("energy J"));
        header.extend(["clairvoyant", "gap"]);
    }
    let lines = artefact_rows.iter().filter(|row| row.metric == "playback_time").map(|time| {
        let same = |row: &&ResultRow, metric: &str| {
            (row.artefact.as_str(), &row.case, &row.policy) == (artefact, &time.case, &time.policy)
                && row.metric == metric
        };
        let other = |metric: &str| artefact_rows.iter().copied().find(|row| same(row, metric));
        let simulated = |metric: &str, digits: usize| {
            let row = compared.map(|rows| rows.iter().find(|row| same(row, metric)));
            row.map(|row| format_number(row.and_then(|row| row.measured), digits))
        };
        let decimals = if time.spread.is_some() { 1 } else { 0 };
        let mut line = vec![time.case.clone(), time.policy.clone()];
        line.push(with_spread(time));
        line.extend(simulated("playback_time", 1));
        line.push(format_number(time.clairvoyant, 1));
        let gap = time.measured.zip(time.clairvoyant).map(|(measured, least)| measured - least);
        line.push(gap.map_or("–".into(), |gap| format!("{gap:+.1}")));
        line.push(format_number(other("interruption").and_then(|row| row.measured), 1));
        line.extend(simulated("interruption", 1));
        line.push(format_number(other("stalls").and_then(|row| row.measured), decimals));
        line.extend(simulated("stalls", decimals));
        if energy {
            let joules = other("energy");
            line.push(joules.map_or("–".into(), with_spread));
            line.extend(simulated("energy", 1));
            line.push(format_number(joules.and_then(|row| row.clairvoyant), 1));
            line.push(percent_above(joules));
        }
        line
    });
    let note =
        ratio.then(|| "energy: the mean of the runs, and its gap to the mean of the clairvoyant's".to_string());
    Table { header: header.into_iter().map(String::from).collect(), rows: lines.collect(), note }
}

fn with_spread(row: &ResultRow) -> String {
    let spread = row.spread.map(|spread| format!(" ± {spread:.1}")).unwrap_or_default();
    format!("{}{spread}", format_number(row.measured, 1))
}

fn format_number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |value| format!("{value:.digits$}"))
}

/// By how many percent the value is above the clairvoyant's.
fn percent_above(row: Option<&ResultRow>) -> String {
    let (measured, least) = match row {
        Some(ResultRow { measured: Some(measured), clairvoyant: Some(least), .. }) if *least > 0.0 => {
            (measured, least)
        }
        _ => return "–".into(),
    };
    format!("{:+.1} %", (measured / least - 1.0) * 100.0)
}

/// The numbers in the paper's text: its values and the measured ones; `compared` as in [`table`].
pub(super) fn statement_table(rows: &[ResultRow], compared: Option<&[ResultRow]>) -> Option<Table> {
    let with = rows.iter().filter(|row| row.paper.is_some());
    let line = |row: &ResultRow| {
        let value = |value| format_number(value, usize::from(row.unit != "KiB"));
        let mut line = vec![row.artefact.clone(), row.case.clone(), row.policy.clone(), row.metric.clone()];
        line.extend([value(row.paper), value(row.measured)]);
        let key =
            |row: &ResultRow| (row.artefact.clone(), row.case.clone(), row.policy.clone(), row.metric.clone());
        line.extend(
            compared
                .map(|rows| value(rows.iter().find(|other| key(other) == key(row)).and_then(|row| row.measured))),
        );
        line.push(row.unit.clone());
        line
    };
    let lines: Vec<Vec<String>> = with.map(line).collect();
    let mut header = vec!["artefact", "case", "policy", "metric", "paper", "ours"];
    header.extend(compared.map(|_| "sim"));
    header.push("unit");
    let header = header.into_iter().map(String::from).collect();
    (!lines.is_empty()).then_some(Table { header, rows: lines, note: None })
}

#[cfg(test)]
mod tests {
    use super::super::config::GreenBagPolicy;
    use super::super::rows::{
        rows,
        tests::{done, played},
    };
    use super::*;
    use crate::results::Backend;

    #[test]
    fn a_line_has_the_measured_value_the_clairvoyants_and_the_gap() {
        let real =
            rows(&[done("F13", "80%", &[(GreenBagPolicy::Marline, &[played(125.6, 104.0)])])], &[], Backend::Lab);
        let table = |compared| super::table(&real, compared, "F13");
        assert_eq!(
            table(None).rows,
            [["80%", "marline", "125.6", "125.0", "+0.6", "5.6", "0", "104.0", "100.0", "+4.0 %"]]
        );
        let sim =
            rows(&[done("F13", "80%", &[(GreenBagPolicy::Marline, &[played(125.2, 103.0)])])], &[], Backend::Sim);
        let compared = table(Some(&sim));
        assert_eq!(compared.header.len(), compared.rows[0].len());
        assert_eq!(compared.rows[0][2..4], ["125.6", "125.2"]);
        assert_eq!(compared.rows[0][10..12], ["104.0", "103.0"]);
        assert!(statement_table(&real, None).is_none());
    }
}
