//! Prints the findings of a check: one line each, followed by the remedy.

use marline_core::finding::{Finding, Severity};
use marline_core::printable::printable;

/// The findings as text for a terminal: `ok`, `note` or `WRONG` (it blocks the command), the name, the message, and the remedy below.
pub fn render(findings: &[Finding]) -> String {
    let mut text = String::new();
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    for finding in findings {
        let mark = match finding.severity {
            Severity::Ok => "ok   ",
            Severity::Note => "note ",
            Severity::Blocks => "WRONG",
        };
        text += &format!("{mark}  {:<width$}  {}\n", finding.name, printable(&finding.message));
        if !finding.remedy.is_empty() {
            text += &format!("{:width$}  remedy: {}\n", "", printable(&finding.remedy), width = width + 7);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_has_a_line_followed_by_its_remedy() {
        let findings = [
            Finding::ok("kernel", "Linux 6.18"),
            Finding::blocks("path manager", "another one is active", "stop it"),
        ];
        assert_eq!(
            render(&findings),
            "ok     kernel        Linux 6.18\n\
             WRONG  path manager  another one is active\n                     remedy: stop it\n"
        );
    }
}
