//! What is asked of a policy of ours, and whether it was met.
//!
//! In: a figure, and what it is held to. Out: a row with a note, a note alone, a line of the table of floors.
//!
//! A floor that is missed is said, and changes no exit code: machines and models differ.

use crate::evidence::{Row, thousandths};
use crate::page::Table;

/// What a figure is held to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Bound {
    /// It may not be less.
    AtLeast(f64),
    /// It may not be more.
    AtMost(f64),
}

/// One demand.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Floor {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    /// Whose figure it is.
    pub(super) who: &'static str,
    pub(super) metric: &'static str,
    /// What is demanded, in words.
    pub(super) says: &'static str,
    pub(super) ours: f64,
    pub(super) bound: Bound,
    pub(super) unit: &'static str,
    /// What must be known beside it.
    pub(super) note: Option<String>,
}

impl Floor {
    /// Whether it was reached.
    pub(super) fn met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.ours >= bound - 1e-9,
            Bound::AtMost(bound) => self.ours <= bound + 1e-9,
        }
    }

    /// `at most the clairvoyant's + 5 %: 77.22 J, ≤ 79.90: met`, and the note.
    pub(super) fn line(&self) -> String {
        let ours = format!("{} {}", number(self.ours), self.unit);
        let note = self.note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
        format!("{}: {}, {}: {}{note}", self.says, ours.trim(), self.asked(), self.word())
    }

    /// As one of the rows.
    pub(super) fn row(&self) -> Row {
        let empty = Row::empty(self.artefact, &self.case, self.who, self.metric, self.unit);
        Row { ours: Some(thousandths(self.ours)), note: Some(format!("floor: {}", self.line())), ..empty }
    }

    fn asked(&self) -> String {
        match self.bound {
            Bound::AtLeast(bound) => format!("≥ {}", number(bound)),
            Bound::AtMost(bound) => format!("≤ {}", number(bound)),
        }
    }

    fn word(&self) -> &'static str {
        if self.met() { "met" } else { "MISSED" }
    }
}

/// All of them for people; none: nothing is asked.
pub(super) fn table(floors: &[Floor]) -> Option<Table> {
    let line = |floor: &Floor| {
        vec![
            floor.artefact.to_owned(),
            floor.case.clone(),
            floor.metric.to_owned(),
            floor.says.to_owned(),
            format!("{} {}", number(floor.ours), floor.unit).trim().to_owned(),
            floor.asked(),
            floor.word().to_owned(),
            floor.note.clone().unwrap_or_default(),
        ]
    };
    let met = floors.iter().filter(|floor| floor.met()).count();
    let head = ["artefact", "case", "metric", "asked", "ours", "floor", "", ""];
    (!floors.is_empty()).then(|| Table {
        head: head.map(String::from).into(),
        rows: floors.iter().map(line).collect(),
        note: Some(format!("{met} of {} floors are met.", floors.len())),
    })
}

/// Ratios are small numbers, joules and percents are not.
fn number(value: f64) -> String {
    if value.abs() < 10.0 { format!("{value:.3}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_says_what_is_asked_and_what_came() {
        let of = |bound| Floor {
            artefact: "F13",
            case: "90%".into(),
            who: "marline",
            metric: "energy",
            says: "at most the clairvoyant's + 5 %",
            ours: 104.0,
            bound,
            unit: "J",
            note: None,
        };
        assert_eq!(of(Bound::AtMost(105.0)).line(), "at most the clairvoyant's + 5 %: 104.00 J, ≤ 105.00: met");
        assert!(of(Bound::AtLeast(104.0)).met() && !of(Bound::AtLeast(104.1)).met());
        let missed = Floor { unit: "", ours: 1.2, note: Some("why".into()), ..of(Bound::AtMost(1.15)) };
        assert!(missed.row().note.unwrap().ends_with(": 1.200, ≤ 1.150: MISSED; why"));
        let made = table(&[of(Bound::AtMost(105.0)), missed]).unwrap();
        assert_eq!(made.note.unwrap(), "1 of 2 floors are met.");
        assert!(table(&[]).is_none());
    }
}
