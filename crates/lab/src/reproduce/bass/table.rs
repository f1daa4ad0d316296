//! BASS's figures for people.

use super::rows::{BOTH, Floor, SPLIT, TCP};
use crate::evidence::Row;
use crate::page::Table;

/// An artefact's rows; none: there are none.
pub(super) fn table(rows: &[Row], artefact: &str) -> Option<Table> {
    let of: Vec<&Row> = rows.iter().filter(|row| row.artefact == artefact && row.metric != "floor").collect();
    if of.is_empty() {
        return None;
    }
    Some(if artefact == "F11" { origins(&of) } else { plain(&of) })
}

fn plain(rows: &[&Row]) -> Table {
    let line = |row: &&Row| {
        let spread = row.spread.map(|spread| format!(" ± {spread:.2}")).unwrap_or_default();
        vec![
            row.case.clone(),
            row.policy.clone(),
            row.metric.clone(),
            number(row.paper),
            number(row.ours) + &spread,
            row.unit.clone(),
        ]
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

/// What is asked, and what came; none: nothing is asked.
pub(super) fn floors(floors: &[Floor]) -> Option<Table> {
    let line = |floor: &Floor| {
        vec![
            floor.artefact.to_owned(),
            floor.case.clone(),
            floor.says.to_owned(),
            format!("{:.2}", floor.ours),
            format!("≥ {:.2} {}", floor.least, floor.unit),
            if floor.is_met() { "met" } else { "MISSED" }.to_owned(),
            floor.note.clone().unwrap_or_default(),
        ]
    };
    let head = ["artefact", "case", "asked", "ours", "floor", "", "note"];
    (!floors.is_empty()).then(|| table_of(&head, floors.iter().map(line).collect()))
}

fn table_of(head: &[&str], rows: Vec<Vec<String>>) -> Table {
    Table { head: head.iter().map(|word| (*word).to_owned()).collect(), rows, note: None }
}

fn number(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::super::rows::row;
    use super::*;

    #[test]
    fn an_origin_is_one_line_with_its_way_and_gain() {
        let rate = |who: &str, value: f64| Row {
            ours: Some(value),
            note: Some("100 ms, 1% lost".into()),
            ..row("F11", "origin 1", who, "rate", "Mbit/s")
        };
        let gain = Row { ours: Some(4.0), ..row("F11", "origin 1", BOTH, "gain", "") };
        let rows = [rate(TCP, 1.0), rate(SPLIT, 2.0), rate(BOTH, 4.0), gain];
        let made = table(&rows, "F11").unwrap();
        assert_eq!(made.rows, [["origin 1", "100 ms, 1% lost", "1.00", "2.00", "4.00", "4.00"]]);
        assert!(table(&rows, "F5").is_none());
    }

    #[test]
    fn floors_say_whether_they_are_met() {
        let made = floors(&[Floor::hits("load 50 %", 80.0, 86.7)]).unwrap();
        assert!(made.rows[0].contains(&"MISSED".to_owned()));
        assert!(floors(&[]).is_none());
    }
}
