//! Thresholds for marline's policies in a reproduction, and whether they are met.
//!
//! A missed threshold is reported and does not affect the exit code, because machines and models differ.

use crate::html_report::Table;
use crate::results::{ResultRow, round_to_thousandths};

/// Bound of a measured value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Bound {
    /// The value must be at least this.
    AtLeast(f64),
    /// The value must be at most this.
    AtMost(f64),
}

/// One threshold and the measured value.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Threshold {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    /// The policy that was measured.
    pub(super) policy: &'static str,
    pub(super) metric: &'static str,
    /// The requirement in words.
    pub(super) requirement: &'static str,
    pub(super) measured: f64,
    pub(super) bound: Bound,
    pub(super) unit: &'static str,
    /// What to consider when judging the value.
    pub(super) note: Option<String>,
}

impl Threshold {
    /// Whether the measured value satisfies the bound.
    pub(super) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.measured >= bound - 1e-9,
            Bound::AtMost(bound) => self.measured <= bound + 1e-9,
        }
    }

    /// One line such as `at most the clairvoyant's + 5 %: 77.22 J, ≤ 79.90: met`, followed by the note.
    pub(super) fn to_line(&self) -> String {
        let measured = format!("{} {}", format_number(self.measured), self.unit);
        let note = self.note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
        format!("{}: {}, {}: {}{note}", self.requirement, measured.trim(), self.bound_text(), self.verdict())
    }

    /// The threshold as a result row.
    pub(super) fn to_row(&self) -> ResultRow {
        let empty = ResultRow::empty(self.artefact, &self.case, self.policy, self.metric, self.unit);
        ResultRow {
            measured: Some(round_to_thousandths(self.measured)),
            note: Some(format!("floor: {}", self.to_line())),
            ..empty
        }
    }

    fn bound_text(&self) -> String {
        match self.bound {
            Bound::AtLeast(bound) => format!("≥ {}", format_number(bound)),
            Bound::AtMost(bound) => format!("≤ {}", format_number(bound)),
        }
    }

    fn verdict(&self) -> &'static str {
        if self.is_met() { "met" } else { "MISSED" }
    }
}

/// Table of all thresholds for people; `None` if there are none.
pub(super) fn table(thresholds: &[Threshold]) -> Option<Table> {
    let line = |threshold: &Threshold| {
        vec![
            threshold.artefact.to_owned(),
            threshold.case.clone(),
            threshold.metric.to_owned(),
            threshold.requirement.to_owned(),
            format!("{} {}", format_number(threshold.measured), threshold.unit).trim().to_owned(),
            threshold.bound_text(),
            threshold.verdict().to_owned(),
            threshold.note.clone().unwrap_or_default(),
        ]
    };
    let met = thresholds.iter().filter(|threshold| threshold.is_met()).count();
    let header = ["artefact", "case", "metric", "requirement", "ours", "floor", "", ""];
    (!thresholds.is_empty()).then(|| Table {
        header: header.map(String::from).into(),
        rows: thresholds.iter().map(line).collect(),
        note: Some(format!("{met} of {} floors are met.", thresholds.len())),
    })
}

/// Three decimals for small numbers (ratios), two for others (joules, percentages).
fn format_number(value: f64) -> String {
    if value.abs() < 10.0 { format!("{value:.3}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_states_the_requirement_and_the_measured_value() {
        let make_threshold = |bound| Threshold {
            artefact: "F13",
            case: "90%".into(),
            policy: "marline",
            metric: "energy",
            requirement: "at most the clairvoyant's + 5 %",
            measured: 104.0,
            bound,
            unit: "J",
            note: None,
        };
        assert_eq!(
            make_threshold(Bound::AtMost(105.0)).to_line(),
            "at most the clairvoyant's + 5 %: 104.00 J, ≤ 105.00: met"
        );
        assert!(make_threshold(Bound::AtLeast(104.0)).is_met() && !make_threshold(Bound::AtLeast(104.1)).is_met());
        let missed =
            Threshold { unit: "", measured: 1.2, note: Some("why".into()), ..make_threshold(Bound::AtMost(1.15)) };
        assert!(missed.to_row().note.unwrap().ends_with(": 1.200, ≤ 1.150: MISSED; why"));
        let found = table(&[make_threshold(Bound::AtMost(105.0)), missed]).unwrap();
        assert_eq!(found.note.unwrap(), "1 of 2 floors are met.");
        assert!(table(&[]).is_none());
    }
}
