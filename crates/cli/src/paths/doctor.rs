//! `marline paths doctor`: checks the host and prints the findings as a list or as JSON.

use std::path::Path;

use marline_net::links::Interface;
use marline_net::printable::printable;
use marline_paths::doctor::{self, Report, State, Wish};

use super::args::LinkOption;
use super::{print_result, say, to_json};
use crate::{CliError, ConfigFile, energy};

/// Checks the host for a run with this configuration. Fails if `marline paths run` would reject the configuration.
pub(super) fn run(probe: &[String], run_dir: &Path, file: &ConfigFile, json: bool) -> Result<(), CliError> {
    energy::select_model(None, file.energy_model.as_deref())?;
    file.paths.forward_scope()?;
    let expected_link = |option: LinkOption| Wish { name: option.link.name, later: option.is_optional };
    let expected_links = file.paths.link_options().map(expected_link).collect();
    let servers: Vec<_> =
        probe.iter().map(|server| doctor::addresses(server)).collect::<Result<_, _>>().map_err(CliError::usage)?;
    let facts = doctor::gather(run_dir, expected_links, &file.described_links());
    let mut facts = facts.map_err(|error| CliError::new(CliError::NETWORK, error.to_string()))?;
    let links: Vec<Interface> = facts.survey.interfaces.iter().filter(|link| link.is_usable()).cloned().collect();
    if !servers.is_empty() && links.is_empty() {
        say("--probe: skipped, since no link can be used");
    }
    let mut probe_results = Vec::new();
    if !links.is_empty() {
        for server in &servers {
            probe_results.extend(doctor::probe(&links, server, facts.is_off()));
            facts.look_again();
        }
    }
    let report = doctor::examine(&facts, &probe_results);
    print_result(&if json { to_json(&report)? } else { render(&report) })?;
    if report.fit { Ok(()) } else { Err(CliError::silent(CliError::FAILED)) }
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    let width = report.findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    for finding in &report.findings {
        let mark = match finding.state {
            State::Ok => "ok   ",
            State::Note => "note ",
            State::Blocks => "WRONG",
        };
        text += &format!("{mark}  {:<width$}  {}\n", finding.name, printable(&finding.says));
        if !finding.remedy.is_empty() {
            text += &format!("{:width$}  remedy: {}\n", "", printable(&finding.remedy), width = width + 7);
        }
    }
    let mut probes = report.findings.iter().filter(|finding| finding.name == "probe").peekable();
    let is_probe_unsuccessful = probes.peek().is_some() && probes.all(|finding| finding.state != State::Ok);
    text += if report.fit && is_probe_unsuccessful {
        "\nThis host can run `marline paths`, but no probe has shown MPTCP over any link: see above.\n"
    } else if report.fit {
        "\nThis host can run `marline paths`.\n"
    } else {
        "\nThis host cannot run `marline paths`: fix the findings marked WRONG.\n"
    };
    text
}

#[cfg(test)]
mod tests {
    use marline_paths::doctor::Finding;

    use super::*;

    #[test]
    fn each_finding_has_a_line_followed_by_its_remedy() {
        let finding = |name, state, says: &str, remedy: &str| Finding {
            name,
            state,
            says: says.into(),
            remedy: remedy.into(),
        };
        let findings = vec![
            finding("kernel", State::Ok, "Linux 6.18", ""),
            finding("path manager", State::Blocks, "another one is active", "stop it"),
        ];
        assert_eq!(
            render(&Report { fit: false, findings }),
            "ok     kernel        Linux 6.18\n\
             WRONG  path manager  another one is active\n                     remedy: stop it\n\n\
             This host cannot run `marline paths`: fix the findings marked WRONG.\n"
        );
    }

    #[test]
    fn the_verdict_mentions_probes_if_all_of_them_failed() {
        let report = |states: &[State]| {
            let probe =
                |state: &State| Finding { name: "probe", state: *state, says: "x".into(), remedy: "y".into() };
            render(&Report { fit: true, findings: states.iter().map(probe).collect() })
        };
        assert!(
            report(&[State::Note, State::Note]).ends_with("no probe has shown MPTCP over any link: see above.\n")
        );
        for states in [&[State::Note, State::Ok][..], &[]] {
            assert!(report(states).ends_with("\nThis host can run `marline paths`.\n"));
        }
    }
}
