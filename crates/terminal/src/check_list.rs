//! Results of a check of the host (`doctor`): one line for each finding, followed by its remedy.

use marline_core::printable::printable;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Nothing to do.
    Ok,
    /// A restriction; the command can run.
    Note,
    /// The command cannot run.
    Wrong,
}

/// One line of a check list.
#[derive(Clone, Copy, Debug)]
pub struct Finding<'a> {
    /// How serious it is.
    pub severity: Severity,
    /// What was checked.
    pub name: &'a str,
    /// What was found.
    pub message: &'a str,
    /// What to do; empty if nothing.
    pub remedy: &'a str,
}

/// Renders the findings.
pub fn render(findings: &[Finding<'_>]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.severity {
            Severity::Ok => "ok   ",
            Severity::Note => "note ",
            Severity::Wrong => "WRONG",
        };
        text += &format!("{mark}  {:<width$}  {}\n", finding.name, printable(finding.message));
        if !finding.remedy.is_empty() {
            text += &format!("{:width$}  remedy: {}\n", "", printable(finding.remedy), width = width + 7);
        }
    }
    text
}
