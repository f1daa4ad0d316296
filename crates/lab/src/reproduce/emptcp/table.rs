//! Tables of eMPTCP's figures for people: one per artefact, timelines, and the statements of the paper.

use super::config::EmptcpClient;
use super::figures::GRID;
use super::paper::STATEMENTS;
use super::rows::TIMELINES;
use crate::html_report::Table;
use crate::results::ResultRow;

/// The table of one artefact: a line per case and client, with the clairvoyant's energy if it is known.
pub(super) fn table(rows: &[ResultRow], artefact: &str) -> Table {
    let artefact_rows: Vec<&ResultRow> =
        rows.iter().filter(|row| row.artefact == artefact && row.paper.is_none()).collect();
    let known = artefact_rows.iter().any(|row| row.clairvoyant.is_some());
    let mut header = vec!["case", "client", "time s", "energy J", "J/MB", "MB Wi-Fi", "MB LTE", "LTE wakes"];
    if artefact == "X-unequal" {
        header.push("Mbit/s after 5 s");
    }
    if artefact == GRID {
        header.extend(["J of emptcp's", "s of emptcp's"]);
    }
    if known {
        header.extend(["clairvoyant J", "gap"]);
    }
    let energies =
        artefact_rows.iter().filter(|row| row.metric == "energy" && row.unit == "J" && row.note.is_none());
    let lines = energies.map(|energy| {
        let other = |metric: &str| {
            let same =
                |row: &&&ResultRow| row.case == energy.case && row.policy == energy.policy && row.metric == metric;
            artefact_rows.iter().find(same).copied()
        };
        let value = |metric: &str, digits: usize| format_number(other(metric).and_then(|row| row.measured), digits);
        let mut line = vec![energy.case.clone(), energy.policy.clone()];
        line.push(other("time").map_or("–".into(), with_spread));
        line.push(with_spread(energy));
        line.extend([value("energy_per_megabyte", 3), value("bytes_wifi", 1), value("bytes_lte", 1)]);
        let share =
            other("runs_waking_lte").and_then(|row| row.measured).filter(|share| (0.1..99.9).contains(share));
        let share = share.map(|share| format!(" in {share:.0} %")).unwrap_or_default();
        line.push(value("wakes_lte", 1) + &share);
        if artefact == "X-unequal" {
            line.push(value("rate_after_5s", 1));
        }
        if artefact == GRID {
            let measured_of = |policy: &str, metric: &str| {
                let same =
                    |row: &&&ResultRow| row.case == energy.case && row.policy == policy && row.metric == metric;
                artefact_rows.iter().find(same).and_then(|row| row.measured)
            };
            line.extend(["energy", "time"].map(|metric| {
                let (measured, emptcp) =
                    (measured_of(&energy.policy, metric), measured_of(EmptcpClient::Emptcp.name(), metric));
                format_number(measured.zip(emptcp).map(|(measured, emptcp)| measured / emptcp), 2)
            }));
        }
        if known {
            let gap =
                energy.measured.zip(energy.clairvoyant).map(|(measured, least)| (measured / least - 1.0) * 100.0);
            line.push(format_number(energy.clairvoyant, 1));
            line.push(gap.map_or("–".into(), |gap| format!("{gap:+.1} %")));
        }
        line
    });
    Table { header: header.into_iter().map(String::from).collect(), rows: lines.collect(), note: None }
}

/// The table of the energy information base: the paper's value and the measured one.
pub(super) fn base_table(rows: &[ResultRow], artefact: &str) -> Option<Table> {
    let line = |row: &ResultRow| {
        let note = row.note.clone().unwrap_or_default();
        vec![
            row.case.clone(),
            row.metric.clone(),
            format_number(row.paper, 3),
            format_number(row.measured, 3),
            row.unit.clone(),
            note,
        ]
    };
    let lines: Vec<Vec<String>> = rows.iter().filter(|row| row.artefact == artefact).map(line).collect();
    let header = ["case", "metric", "paper", "ours", "unit", ""].map(String::from).into();
    (!lines.is_empty()).then_some(Table { header, rows: lines, note: None })
}

/// A timeline: a line per time, a column per client.
pub(super) fn timeline_table(rows: &[ResultRow], artefact: &str) -> Option<Table> {
    TIMELINES.iter().find(|(timeline, ..)| *timeline == artefact)?;
    let artefact_rows: Vec<&ResultRow> = rows.iter().filter(|row| row.artefact == artefact).collect();
    let mut clients: Vec<&str> = Vec::new();
    let mut moments: Vec<&str> = Vec::new();
    for row in &artefact_rows {
        if !clients.contains(&row.policy.as_str()) {
            clients.push(&row.policy);
        }
        if !moments.contains(&row.case.as_str()) {
            moments.push(&row.case);
        }
    }
    let energy = artefact != "F9";
    let cell = |moment: &str, client: &str| {
        let value = |metric: &str| {
            let same = |row: &&&ResultRow| row.case == moment && row.policy == client && row.metric == metric;
            artefact_rows.iter().find(same).and_then(|row| row.measured)
        };
        match energy {
            true => format_number(value("energy"), 1),
            false => format!("{} + {}", format_number(value("rate_wifi"), 1), format_number(value("rate_lte"), 1)),
        }
    };
    let line = |moment: &&str| {
        std::iter::once((*moment).to_string()).chain(clients.iter().map(|client| cell(moment, client))).collect()
    };
    let header = std::iter::once("").chain(clients.iter().copied()).map(String::from).collect();
    // Clients that are finished leave the timeline; the lines of the slowest ones would fill pages.
    let lines: Vec<Vec<String>> = moments.iter().take(MAX_LINES).map(line).collect();
    (!lines.is_empty()).then_some(Table { header, rows: lines, note: None })
}

/// Maximum number of lines of a timeline.
const MAX_LINES: usize = 26;

fn with_spread(row: &ResultRow) -> String {
    let spread = row.spread.map(|spread| format!(" ± {spread:.1}")).unwrap_or_default();
    format!("{}{spread}", format_number(row.measured, 1))
}

fn format_number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |value| format!("{value:.digits$}"))
}

/// The statements of the paper: its percentages and the measured ones.
pub(super) fn statement_table(rows: &[ResultRow]) -> Option<Table> {
    let with = rows
        .iter()
        .filter(|row| row.paper.is_some() && STATEMENTS.iter().any(|statement| statement.artefact == row.artefact));
    let line = |row: &ResultRow| {
        let value = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:+.0} %"));
        let note = row.note.clone().unwrap_or_default();
        vec![
            row.artefact.clone(),
            row.case.clone(),
            format!("{}: {}", row.policy, row.metric),
            value(row.paper),
            value(row.measured),
            note,
        ]
    };
    let lines: Vec<Vec<String>> = with.map(line).collect();
    let header = ["artefact", "case", "what", "paper", "ours", "section, and reason of the difference"];
    (!lines.is_empty()).then(|| Table { header: header.map(String::from).into(), rows: lines, note: None })
}
