//! Common parts of the benchmarks that consist of cases (`bench accel`, `bench fleet`, `bench paths` and others): selection and execution
//! of cases, final table and result file.
//!
//! 1. A word of `--case` is a case, `all`, or one row of a case, such as `upload 20+2`. An unknown case is refused
//!    before anything is measured.
//! 2. Ctrl-C ends the benchmark, and the results so far are shown. The exit code is then 130; otherwise it is 1 only if something could not
//!    be measured at all.

use marline_sim::spec::LinkSpec;
use serde_json::{Value, json};

use crate::LabError;
use crate::html_report::Table;
use crate::interrupt::is_interrupted;
use crate::result_file::ResultFile;
use crate::results::HostInfo;
use crate::runner::command::{notice, print_line};

/// The selected cases and rows of a benchmark.
#[derive(Clone, Debug)]
pub(super) struct Cases {
    names: &'static [&'static str],
    selected: Vec<String>,
}

impl Cases {
    /// Parses the words of `--case`; without words all cases are selected. `subject` names the benchmark in errors.
    pub(super) fn new(
        subject: &str,
        known: &'static [&'static str],
        selectors: &[String],
    ) -> Result<Self, LabError> {
        let is_known = |selector: &&String| *selector == ALL_CASES || known.contains(&case_name(selector));
        match selectors.iter().find(|selector| !is_known(selector)) {
            Some(unknown) => {
                let names = known.join(", ");
                Err(LabError::Spec(format!("no case `{unknown}` of {subject}; there are: {names}, {ALL_CASES}")))
            }
            None => Ok(Self { names: known, selected: selectors.to_vec() }),
        }
    }

    /// The cases of which at least one row is selected, in the order of the table.
    pub(super) fn selected_cases(&self) -> Vec<&'static str> {
        let is_wanted = |case: &&str| {
            self.selected.is_empty()
                || self.selected.iter().any(|selector| selector == ALL_CASES || case_name(selector) == *case)
        };
        self.names.iter().copied().filter(is_wanted).collect()
    }

    /// Whether this row of a case is selected.
    pub(super) fn is_selected(&self, case: &str, row: &str) -> bool {
        let names_row =
            |selector: &String| selector == ALL_CASES || selector == case || *selector == format!("{case} {row}");
        self.selected.is_empty() || self.selected.iter().any(names_row)
    }
}

const ALL_CASES: &str = "all";

fn case_name(selector: &str) -> &str {
    selector.split(' ').next().unwrap_or_default()
}

/// Runs the cases one after the other until the user interrupts.
pub(super) fn run_cases(
    cases: &[&str],
    mut run_case: impl FnMut(&str) -> Result<(), LabError>,
) -> Result<(), LabError> {
    print_line(&HostInfo::current().to_line());
    for case in cases {
        run_case(case)?;
        if is_interrupted() {
            notice("interrupted: the figures below are incomplete");
            break;
        }
    }
    Ok(())
}

/// Prints the results, writes the file, and returns the exit code. `heading` is printed above the table.
pub(super) fn finish(
    file: Option<ResultFile>,
    heading: &str,
    table: &Table,
    rows: &Value,
    problems: u32,
) -> Result<u8, LabError> {
    if table.rows.is_empty() && problems == 0 && !is_interrupted() {
        return Err(LabError::Spec("nothing was measured: the case has no row of that name".into()));
    }
    print_line(&format!("\n{heading}{}", table.to_text()));
    if let Some(file) = file {
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let version = env!("CARGO_PKG_VERSION");
        let record = json!({"command": command, "version": version, "machine": HostInfo::current(), "rows": rows});
        file.write(&format!("{record:#}\n"))?;
    }
    Ok(if is_interrupted() { 130 } else { u8::from(problems > 0) })
}

/// Parses a link that is a constant of this program.
pub(super) fn parse_link(spec: &str) -> LinkSpec {
    spec.parse().expect("constant links parse")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_selected_by_its_name_its_case_or_all() {
        let cases = |selectors: &[&str]| {
            let selectors: Vec<String> = selectors.iter().map(|selector| (*selector).to_owned()).collect();
            Cases::new("the fleet", &["upload", "cut"], &selectors)
        };
        let is_selected = |selectors: &[&str], case, row| cases(selectors).unwrap().is_selected(case, row);
        assert!(is_selected(&[], "upload", "8+8") && is_selected(&["all"], "upload", "8+8"));
        assert!(is_selected(&["upload"], "upload", "8+8") && !is_selected(&["upload"], "cut", "silent"));
        assert!(is_selected(&["upload 8+8"], "upload", "8+8") && !is_selected(&["upload 8+8"], "upload", "20+2"));
        assert_eq!(cases(&["cut silent"]).unwrap().selected_cases(), ["cut"]);
        assert_eq!(cases(&[]).unwrap().selected_cases(), ["upload", "cut"]);
        let message = cases(&["uplod"]).unwrap_err().to_string();
        assert!(message.contains("no case `uplod` of the fleet; there are: upload, cut, all"), "{message}");
    }
}
