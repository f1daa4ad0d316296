//! GreenBag's figures for people: one table per artefact, then what the paper's text says, then the floors.

use crate::evidence::Row;
use crate::page::Table;

/// One artefact: a line per case and policy, ours beside the clairvoyant's; `beside`: what virtual time has made of the
/// same.
pub(super) fn table(rows: &[Row], beside: Option<&[Row]>, artefact: &str) -> Table {
    let of: Vec<&Row> = rows.iter().filter(|row| row.artefact == artefact).collect();
    let energy = of.iter().any(|row| row.metric == "energy" && row.clairvoyant.is_some());
    let ratio = of.iter().any(|row| row.metric == "energy_ratio");
    let mut head = vec!["case", "policy"];
    let figure = |name: &'static str| if beside.is_some() { vec![name, "sim"] } else { vec![name] };
    head.extend(figure("playback s"));
    head.extend(["clairvoyant", "gap"]);
    head.extend(figure("interruption s"));
    head.extend(figure("stalls"));
    if energy {
        head.extend(figure("energy J"));
        head.extend(["clairvoyant", "gap"]);
    }
    let lines = of.iter().filter(|row| row.metric == "playback_time").map(|time| {
        let same = |row: &&Row, metric: &str| {
            (row.artefact.as_str(), &row.case, &row.policy) == (artefact, &time.case, &time.policy)
                && row.metric == metric
        };
        let other = |metric: &str| of.iter().copied().find(|row| same(row, metric));
        let simulated = |metric: &str, digits: usize| {
            let row = beside.map(|rows| rows.iter().find(|row| same(row, metric)));
            row.map(|row| number(row.and_then(|row| row.ours), digits))
        };
        let whole = if time.spread.is_some() { 1 } else { 0 };
        let mut line = vec![time.case.clone(), time.policy.clone()];
        line.push(with_spread(time));
        line.extend(simulated("playback_time", 1));
        line.push(number(time.clairvoyant, 1));
        let gap = time.ours.zip(time.clairvoyant).map(|(ours, least)| ours - least);
        line.push(gap.map_or("–".into(), |gap| format!("{gap:+.1}")));
        line.push(number(other("interruption").and_then(|row| row.ours), 1));
        line.extend(simulated("interruption", 1));
        line.push(number(other("stalls").and_then(|row| row.ours), whole));
        line.extend(simulated("stalls", whole));
        if energy {
            let joules = other("energy");
            line.push(joules.map_or("–".into(), with_spread));
            line.extend(simulated("energy", 1));
            line.push(number(joules.and_then(|row| row.clairvoyant), 1));
            line.push(above(joules));
        }
        line
    });
    let note =
        ratio.then(|| "energy: the mean of the runs, and its gap to the mean of the clairvoyant's".to_string());
    Table { head: head.into_iter().map(String::from).collect(), rows: lines.collect(), note }
}

fn with_spread(row: &Row) -> String {
    let spread = row.spread.map(|spread| format!(" ± {spread:.1}")).unwrap_or_default();
    format!("{}{spread}", number(row.ours, 1))
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |value| format!("{value:.digits$}"))
}

/// By how much more than the clairvoyant.
fn above(row: Option<&Row>) -> String {
    let (ours, least) = match row {
        Some(Row { ours: Some(ours), clairvoyant: Some(least), .. }) if *least > 0.0 => (ours, least),
        _ => return "–".into(),
    };
    format!("{:+.1} %", (ours / least - 1.0) * 100.0)
}

/// What the paper's text says in numbers: the paper's and ours; `beside` as above.
pub(super) fn said(rows: &[Row], beside: Option<&[Row]>) -> Option<Table> {
    let with = rows.iter().filter(|row| row.paper.is_some());
    let line = |row: &Row| {
        let value = |value| number(value, usize::from(row.unit != "KiB"));
        let mut line = vec![row.artefact.clone(), row.case.clone(), row.policy.clone(), row.metric.clone()];
        line.extend([value(row.paper), value(row.ours)]);
        let key = |row: &Row| (row.artefact.clone(), row.case.clone(), row.policy.clone(), row.metric.clone());
        line.extend(
            beside.map(|rows| value(rows.iter().find(|other| key(other) == key(row)).and_then(|row| row.ours))),
        );
        line.push(row.unit.clone());
        line
    };
    let lines: Vec<Vec<String>> = with.map(line).collect();
    let mut head = vec!["artefact", "case", "policy", "metric", "paper", "ours"];
    head.extend(beside.map(|_| "sim"));
    head.push("unit");
    let head = head.into_iter().map(String::from).collect();
    (!lines.is_empty()).then_some(Table { head, rows: lines, note: None })
}

#[cfg(test)]
mod tests {
    use super::super::rows::{
        rows,
        tests::{done, played},
    };
    use super::super::setting::Who;
    use super::*;
    use crate::evidence::By;

    #[test]
    fn a_line_has_ours_the_clairvoyants_and_the_gap() {
        let real = rows(&[done("F13", "80%", &[(Who::Marline, &[played(125.6, 104.0)])])], &[], By::Lab);
        let table = |beside| super::table(&real, beside, "F13");
        assert_eq!(
            table(None).rows,
            [["80%", "marline", "125.6", "125.0", "+0.6", "5.6", "0", "104.0", "100.0", "+4.0 %"]]
        );
        let sim = rows(&[done("F13", "80%", &[(Who::Marline, &[played(125.2, 103.0)])])], &[], By::Sim);
        let beside = table(Some(&sim));
        assert_eq!(beside.head.len(), beside.rows[0].len());
        assert_eq!(beside.rows[0][2..4], ["125.6", "125.2"]);
        assert_eq!(beside.rows[0][10..12], ["104.0", "103.0"]);
        assert!(said(&real, None).is_none());
    }
}
