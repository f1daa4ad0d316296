//! One measurement of a reproduction: which one it is, what came of it, and how it is kept.
//!
//! In: a [`Name`], and [`Figures`] or why there are none. Out: a [`Cell`], which is one line of `evidence/PAPER/lab.jsonl`.
//!
//! 1. What makes a measurement this one and no other is its name; what is measured differs from paper to paper. On its line the
//!    name's parts stand beside `problem` and `measured`.
//! 2. One that failed, or whose figures are suspect, is done again when the session goes on: the last one of a name counts.

use std::fmt::{Debug, Display};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::store::Persist;

/// Which measurement: artefact, case, who and everything else that it depends on. As text it is the beginning of a line for
/// people.
pub(super) trait MeasurementId: Clone + PartialEq + Debug + Display + Serialize + DeserializeOwned {}

/// What is measured.
pub(super) trait MeasuredValues: Clone + PartialEq + Debug + Serialize + DeserializeOwned {
    /// Why the figures should not be trusted, if so.
    fn unreliable_reason(&self) -> Option<String>;

    /// In a line for people.
    fn to_line(&self) -> String;
}

/// See the [module](self).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Measurement<N, F> {
    #[serde(flatten)]
    pub(super) id: N,
    /// Why it is no good.
    #[serde(default)]
    pub(super) problem: Option<String>,
    /// None: a problem.
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
    /// What came of this one.
    pub(super) fn new(name: N, came: Result<F, String>) -> Self {
        match came {
            Ok(measured) => Self { id: name, problem: None, values: Some(measured) },
            Err(reason) => Self { id: name, problem: Some(reason), values: None },
        }
    }

    /// Whether nothing is wrong with it.
    pub(super) fn is_reliable(&self) -> bool {
        self.result().is_ok_and(|measured| measured.unreliable_reason().is_none())
    }

    /// Its figures, suspect or not.
    pub(super) fn result(&self) -> Result<&F, String> {
        match &self.problem {
            Some(reason) => Err(reason.clone()),
            None => self.values.as_ref().ok_or_else(|| "nothing was measured".to_owned()),
        }
    }

    /// One line for people.
    pub(super) fn to_line(&self) -> String {
        match self.result() {
            Err(reason) => format!("{}: FAILED: {reason}", self.id),
            Ok(measured) => {
                let suspect =
                    measured.unreliable_reason().map(|reason| format!("; suspect: {reason}")).unwrap_or_default();
                format!("{}: {}{suspect}", self.id, measured.to_line())
            }
        }
    }
}

/// The one of this name that counts.
pub(super) fn latest<'a, N: MeasurementId, F: MeasuredValues>(
    cells: &'a [Measurement<N, F>],
    name: &N,
) -> Option<&'a Measurement<N, F>> {
    cells.iter().rfind(|cell| cell.id == *name)
}

/// Its figures, or why there are none.
pub(super) fn latest_values<'a, N: MeasurementId, F: MeasuredValues>(
    cells: &'a [Measurement<N, F>],
    name: &N,
) -> Result<&'a F, String> {
    latest(cells, name).ok_or("was not done")?.result()
}

/// What makes the figures of an emulator suspect by what is kept of it: seconds that one packet in a hundred left late, or later, and
/// packets that it never saw.
pub(super) fn suspect(late_s: f64, dropped: u64) -> Option<String> {
    match (dropped, late_s) {
        (0, late) if late <= MAX_P99_LATENESS_S => None,
        (0, late) => Some(format!("one packet in a hundred was {:.1} ms late or more", late * 1e3)),
        (unseen, _) => Some(format!("{unseen} packets were lost before the emulator saw them")),
    }
}

/// As everywhere in the lab: later than this, and the links were not what they were said to be.
const MAX_P99_LATENESS_S: f64 = 1e-3;

#[cfg(test)]
pub(super) mod tests {
    use std::fmt;
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    /// For tests of those who keep cells.
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
            suspect(self.late_s, 0)
        }

        fn to_line(&self) -> String {
            "5.00 Mbit/s".into()
        }
    }

    pub(in super::super) fn named(run: u32) -> Named {
        Named { artefact: "F1".into(), run }
    }

    #[test]
    fn a_line_has_the_names_parts_beside_what_came() {
        let cell = Measurement::new(named(2), Ok(Late { late_s: 0.002 }));
        let kept = serde_json::to_value(cell.without_timeline()).unwrap();
        assert_eq!(kept, json!({"artefact": "F1", "run": 2, "problem": null, "values": {"late_s": 0.002}}));
        let reread: Measurement<Named, Late> = serde_json::from_value(kept).unwrap();
        assert!(reread == cell && reread.is_done() && !reread.is_reliable());
        let said = "F1 run 2: 5.00 Mbit/s; suspect: one packet in a hundred was 2.0 ms late or more";
        assert_eq!(reread.to_line(), said);
    }

    #[test]
    fn the_last_one_counts_and_a_failure_says_why() {
        let cells = [
            Measurement::new(named(0), Ok(Late { late_s: 0.5 })),
            Measurement::new(named(1), Err("no lab".into())),
            Measurement::new(named(0), Ok(Late { late_s: 0.0 })),
        ];
        assert!(latest(&cells, &named(0)).unwrap().is_reliable());
        assert_eq!(latest_values(&cells, &named(1)).unwrap_err(), "no lab");
        assert_eq!(latest_values(&cells, &named(2)).unwrap_err(), "was not done");
        assert!(cells[1].to_line().ends_with("F1 run 1: FAILED: no lab") && !cells[1].is_done());
        assert!(suspect(0.0, 3).unwrap().starts_with("3 packets"));
    }

    /// Every cell that the repository keeps of this paper is understood, and would be kept so again but for what newer figures add.
    pub(in super::super) fn is_understood<N: MeasurementId, F: MeasuredValues>(paper: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence").join(paper).join("lab.jsonl");
        let Ok(text) = std::fs::read_to_string(file) else { return };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut count = 0;
        for kept in lines.filter_map(|mut line| line.get_mut("cell").map(Value::take)) {
            let cell: Measurement<N, F> =
                serde_json::from_value(kept.clone()).unwrap_or_else(|reason| panic!("{reason}: {kept}"));
            let reread = serde_json::to_value(&cell).unwrap();
            assert_eq!(reread["problem"], kept["problem"]);
            for (part, value) in kept.as_object().unwrap().iter().filter(|(part, _)| *part != "measured") {
                let name = match part.as_str() {
                    "who" => "client",
                    "way" => "route",
                    name => name,
                };
                assert_eq!(reread[name], *value, "{part}");
            }
            assert_eq!(cell.values.is_some(), !kept["measured"].is_null());
            count += 1;
        }
        assert!(count > 10, "{paper}: {count}");
    }
}
