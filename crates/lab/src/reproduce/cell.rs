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

use super::store::Kept;

/// Which measurement: artefact, case, who and everything else that it depends on. As text it is the beginning of a line for
/// people.
pub(super) trait Name: Clone + PartialEq + Debug + Display + Serialize + DeserializeOwned {}

/// What is measured.
pub(super) trait Figures: Clone + PartialEq + Debug + Serialize + DeserializeOwned {
    /// Why the figures should not be trusted, if so.
    fn suspect(&self) -> Option<String>;

    /// In a line for people.
    fn line(&self) -> String;
}

/// See the [module](self).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Cell<N, F> {
    #[serde(flatten)]
    pub(super) name: N,
    /// Why it is no good.
    #[serde(default)]
    pub(super) problem: Option<String>,
    /// None: a problem.
    pub(super) measured: Option<F>,
}

impl<N: Name, F: Figures> Kept for Cell<N, F> {
    const KEY: &'static str = "cell";

    fn is_done(&self) -> bool {
        self.problem.is_none()
    }

    fn lean(&self) -> Self {
        self.clone()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
    }

    fn is_suspect(&self) -> bool {
        self.came().is_ok_and(|measured| measured.suspect().is_some())
    }
}

impl<N: Name, F: Figures> Cell<N, F> {
    /// What came of this one.
    pub(super) fn new(name: N, came: Result<F, String>) -> Self {
        match came {
            Ok(measured) => Self { name, problem: None, measured: Some(measured) },
            Err(why) => Self { name, problem: Some(why), measured: None },
        }
    }

    /// Whether nothing is wrong with it.
    pub(super) fn is_good(&self) -> bool {
        self.came().is_ok_and(|measured| measured.suspect().is_none())
    }

    /// Its figures, suspect or not.
    pub(super) fn came(&self) -> Result<&F, String> {
        match &self.problem {
            Some(why) => Err(why.clone()),
            None => self.measured.as_ref().ok_or_else(|| "nothing was measured".to_owned()),
        }
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        match self.came() {
            Err(why) => format!("{}: FAILED: {why}", self.name),
            Ok(measured) => {
                let suspect = measured.suspect().map(|why| format!("; suspect: {why}")).unwrap_or_default();
                format!("{}: {}{suspect}", self.name, measured.line())
            }
        }
    }
}

/// The one of this name that counts.
pub(super) fn last<'a, N: Name, F: Figures>(cells: &'a [Cell<N, F>], name: &N) -> Option<&'a Cell<N, F>> {
    cells.iter().rfind(|cell| cell.name == *name)
}

/// Its figures, or why there are none.
pub(super) fn measured<'a, N: Name, F: Figures>(cells: &'a [Cell<N, F>], name: &N) -> Result<&'a F, String> {
    last(cells, name).ok_or("was not done")?.came()
}

/// What makes the figures of an emulator suspect by what is kept of it: seconds that one packet in a hundred left late, or later, and
/// packets that it never saw.
pub(super) fn suspect(late_s: f64, unseen: u64) -> Option<String> {
    match (unseen, late_s) {
        (0, late) if late <= LATE_S => None,
        (0, late) => Some(format!("one packet in a hundred was {:.1} ms late or more", late * 1e3)),
        (unseen, _) => Some(format!("{unseen} packets were lost before the emulator saw them")),
    }
}

/// As everywhere in the lab: later than this, and the links were not what they were said to be.
const LATE_S: f64 = 1e-3;

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

    impl Name for Named {}

    impl fmt::Display for Named {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} run {}", self.artefact, self.run)
        }
    }

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(in super::super) struct Late {
        pub(in super::super) late_s: f64,
    }

    impl Figures for Late {
        fn suspect(&self) -> Option<String> {
            suspect(self.late_s, 0)
        }

        fn line(&self) -> String {
            "5.00 Mbit/s".into()
        }
    }

    pub(in super::super) fn named(run: u32) -> Named {
        Named { artefact: "F1".into(), run }
    }

    #[test]
    fn a_line_has_the_names_parts_beside_what_came() {
        let cell = Cell::new(named(2), Ok(Late { late_s: 0.002 }));
        let kept = serde_json::to_value(cell.lean()).unwrap();
        assert_eq!(kept, json!({"artefact": "F1", "run": 2, "problem": null, "measured": {"late_s": 0.002}}));
        let again: Cell<Named, Late> = serde_json::from_value(kept).unwrap();
        assert!(again == cell && again.is_done() && !again.is_good());
        let said = "F1 run 2: 5.00 Mbit/s; suspect: one packet in a hundred was 2.0 ms late or more";
        assert_eq!(again.line(), said);
    }

    #[test]
    fn the_last_one_counts_and_a_failure_says_why() {
        let cells = [
            Cell::new(named(0), Ok(Late { late_s: 0.5 })),
            Cell::new(named(1), Err("no lab".into())),
            Cell::new(named(0), Ok(Late { late_s: 0.0 })),
        ];
        assert!(last(&cells, &named(0)).unwrap().is_good());
        assert_eq!(measured(&cells, &named(1)).unwrap_err(), "no lab");
        assert_eq!(measured(&cells, &named(2)).unwrap_err(), "was not done");
        assert!(cells[1].line().ends_with("F1 run 1: FAILED: no lab") && !cells[1].is_done());
        assert!(suspect(0.0, 3).unwrap().starts_with("3 packets"));
    }

    /// Every cell that the repository keeps of this paper is understood, and would be kept so again but for what newer figures add.
    pub(in super::super) fn is_understood<N: Name, F: Figures>(paper: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence").join(paper).join("lab.jsonl");
        let Ok(text) = std::fs::read_to_string(file) else { return };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut count = 0;
        for kept in lines.filter_map(|mut line| line.get_mut("cell").map(Value::take)) {
            let cell: Cell<N, F> =
                serde_json::from_value(kept.clone()).unwrap_or_else(|why| panic!("{why}: {kept}"));
            let again = serde_json::to_value(&cell).unwrap();
            assert_eq!(again["problem"], kept["problem"]);
            for (part, value) in kept.as_object().unwrap().iter().filter(|(part, _)| *part != "measured") {
                assert_eq!(again[part], *value, "{part}");
            }
            assert_eq!(cell.measured.is_some(), !kept["measured"].is_null());
            count += 1;
        }
        assert!(count > 10, "{paper}: {count}");
    }
}
