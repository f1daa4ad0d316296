//! One measurement of a reproduction: its identity, its result, and its stored form (one line of
//! `evidence/PAPER/lab.jsonl`).
//!
//! 1. A [`MeasurementId`] contains everything that distinguishes a measurement from others; [`MeasuredValues`]
//!    differ from paper to paper. In the stored line the parts of the ID stand beside `problem` and `values` (`measured` in older files).
//! 2. A measurement that failed or is unreliable is repeated when the session continues. The last one with an ID
//!    counts.
use std::fmt::{Debug, Display};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::store::Persist;

/// Identity of a measurement: artefact, case, client and everything else that it depends on. Its text form begins a
/// line for people.
pub(super) trait MeasurementId: Clone + PartialEq + Debug + Display + Serialize + DeserializeOwned {}

/// Measured values of one measurement.
pub(super) trait MeasuredValues: Clone + PartialEq + Debug + Serialize + DeserializeOwned {
    /// Why the values are unreliable; `None` if they are reliable.
    fn unreliable_reason(&self) -> Option<String>;

    /// The values in one line for people.
    fn to_line(&self) -> String;
}

/// A measurement; see the [module documentation](self).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Measurement<N, F> {
    #[serde(flatten)]
    pub(super) id: N,
    /// Why the measurement failed.
    #[serde(default)]
    pub(super) problem: Option<String>,
    /// The measured values; `None` if it failed.
    #[serde(alias = "measured")]
    pub(super) values: Option<F>,
}

impl<N: MeasurementId, F: MeasuredValues> Persist for Measurement<N, F> {
    const KEY: &'static str = "cell";

    fn is_done(&self) -> bool {
        self.problem.is_none()
    }

    fn without_timeline(&self) -> Self {
        self.clone()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }

    fn is_unreliable(&self) -> bool {
        self.result().is_ok_and(|measured| measured.unreliable_reason().is_some())
    }
}

impl<N: MeasurementId, F: MeasuredValues> Measurement<N, F> {
    /// A measurement from its result.
    pub(super) fn new(name: N, result: Result<F, String>) -> Self {
        match result {
            Ok(measured) => Self { id: name, problem: None, values: Some(measured) },
            Err(reason) => Self { id: name, problem: Some(reason), values: None },
        }
    }

    /// Whether it succeeded with reliable values.
    pub(super) fn is_reliable(&self) -> bool {
        self.result().is_ok_and(|measured| measured.unreliable_reason().is_none())
    }

    /// The values, reliable or not, or the problem.
    pub(super) fn result(&self) -> Result<&F, String> {
        match &self.problem {
            Some(reason) => Err(reason.clone()),
            None => self.values.as_ref().ok_or_else(|| "nothing was measured".to_owned()),
        }
    }

    /// The measurement in one line for people.
    pub(super) fn to_line(&self) -> String {
        match self.result() {
            Err(reason) => format!("{}: FAILED: {reason}", self.id),
            Ok(measured) => {
                let unreliable_text =
                    measured.unreliable_reason().map(|reason| format!("; suspect: {reason}")).unwrap_or_default();
                format!("{}: {}{unreliable_text}", self.id, measured.to_line())
            }
        }
    }
}

/// The last measurement with this ID.
pub(super) fn latest<'a, N: MeasurementId, F: MeasuredValues>(
    cells: &'a [Measurement<N, F>],
    name: &N,
) -> Option<&'a Measurement<N, F>> {
    cells.iter().rfind(|cell| cell.id == *name)
}

/// The values of the last measurement with this ID, or why there are none.
pub(super) fn latest_values<'a, N: MeasurementId, F: MeasuredValues>(
    cells: &'a [Measurement<N, F>],
    name: &N,
) -> Result<&'a F, String> {
    latest(cells, name).ok_or("was not run")?.result()
}

/// Why values are unreliable, from the stored counters of the emulator: its p99 lateness in seconds, and the number
/// of packets dropped before they reached it.
pub(super) fn unreliable_reason_of(late_s: f64, dropped: u64) -> Option<String> {
    match (dropped, late_s) {
        (0, lateness_s) if lateness_s <= MAX_P99_LATENESS_S => None,
        (0, lateness_s) => Some(format!("one packet in a hundred was {:.1} ms late or more", lateness_s * 1e3)),
        (unseen, _) => Some(format!("{unseen} packets were lost before the emulator saw them")),
    }
}

/// Largest p99 lateness at which the links still count as emulated correctly, as everywhere in the lab.
const MAX_P99_LATENESS_S: f64 = 1e-3;

#[cfg(test)]
pub(super) mod tests {
    use std::fmt;
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    /// An ID for tests of modules that store measurements.
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(in super::super) struct Named {
        pub(in super::super) artefact: String,
        pub(in super::super) run: u32,
    }

    impl MeasurementId for Named {}

    impl fmt::Display for Named {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} run {}", self.artefact, self.run)
        }
    }

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(in super::super) struct Late {
        pub(in super::super) late_s: f64,
    }

    impl MeasuredValues for Late {
        fn unreliable_reason(&self) -> Option<String> {
            unreliable_reason_of(self.late_s, 0)
        }

        fn to_line(&self) -> String {
            "5.00 Mbit/s".into()
        }
    }

    pub(in super::super) fn named(run: u32) -> Named {
        Named { artefact: "F1".into(), run }
    }

    #[test]
    fn a_stored_line_has_the_parts_of_the_id_beside_the_result() {
        let cell = Measurement::new(named(2), Ok(Late { late_s: 0.002 }));
        let stored = serde_json::to_value(cell.without_timeline()).unwrap();
        assert_eq!(stored, json!({"artefact": "F1", "run": 2, "problem": null, "values": {"late_s": 0.002}}));
        let reread: Measurement<Named, Late> = serde_json::from_value(stored).unwrap();
        assert!(reread == cell && reread.is_done() && !reread.is_reliable());
        let message = "F1 run 2: 5.00 Mbit/s; suspect: one packet in a hundred was 2.0 ms late or more";
        assert_eq!(reread.to_line(), message);
    }

    #[test]
    fn the_last_measurement_counts_and_a_failure_has_a_reason() {
        let cells = [
            Measurement::new(named(0), Ok(Late { late_s: 0.5 })),
            Measurement::new(named(1), Err("no lab".into())),
            Measurement::new(named(0), Ok(Late { late_s: 0.0 })),
        ];
        assert!(latest(&cells, &named(0)).unwrap().is_reliable());
        assert_eq!(latest_values(&cells, &named(1)).unwrap_err(), "no lab");
        assert_eq!(latest_values(&cells, &named(2)).unwrap_err(), "was not run");
        assert!(cells[1].to_line().ends_with("F1 run 1: FAILED: no lab") && !cells[1].is_done());
        assert!(unreliable_reason_of(0.0, 3).unwrap().starts_with("3 packets"));
    }

    /// Checks that every measurement that the repository stores for this paper can be read, and that writing it
    /// again gives the same ID and problem.
    pub(in super::super) fn check_committed_measurements<N: MeasurementId, F: MeasuredValues>(paper: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence").join(paper).join("lab.jsonl");
        let Ok(text) = std::fs::read_to_string(file) else { return };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut count = 0;
        for stored_cell in lines.filter_map(|mut line| line.get_mut("cell").map(Value::take)) {
            let cell: Measurement<N, F> = serde_json::from_value(stored_cell.clone())
                .unwrap_or_else(|reason| panic!("{reason}: {stored_cell}"));
            let reread = serde_json::to_value(&cell).unwrap();
            assert_eq!(reread["problem"], stored_cell["problem"]);
            for (part, value) in stored_cell.as_object().unwrap().iter().filter(|(part, _)| *part != "measured") {
                let name = match part.as_str() {
                    "who" => "client",
                    "way" => "route",
                    name => name,
                };
                assert_eq!(reread[name], *value, "{part}");
            }
            assert_eq!(cell.values.is_some(), !stored_cell["measured"].is_null());
            count += 1;
        }
        assert!(count > 10, "{paper}: {count}");
    }
}
