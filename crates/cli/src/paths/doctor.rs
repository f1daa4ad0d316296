//! `marline paths doctor`: checks the host and prints the findings as a list or as JSON.

use std::path::Path;

use marline_core::finding::{Report, Severity};
use marline_net::links::Interface;
use marline_paths::doctor::{self, RequestedLink};
use marline_terminal::findings;

use super::print_notice;
use super::run::{configured_links, configured_scope};
use crate::args::{JsonArgs, LinkOption};
use crate::{CliError, ConfigFile, energy};

/// Checks the host for a run with this configuration. Fails if `marline paths run` would reject the configuration.
pub(super) fn run(probe: &[String], run_dir: &Path, file: &ConfigFile, format: JsonArgs) -> Result<(), CliError> {
    energy::select_model(None, file.energy_model.as_deref())?;
    configured_scope(&file.paths)?;
    let expected_link =
        |option: LinkOption| RequestedLink { name: option.link.name, is_optional: option.is_optional };
    let expected_links = configured_links(&file.paths).map(expected_link).collect();
    let servers: Vec<_> = probe
        .iter()
        .map(|server| doctor::resolve_server(server))
        .collect::<Result<_, _>>()
        .map_err(CliError::usage)?;
    let facts = doctor::gather_facts(run_dir, expected_links, &file.described_links());
    let mut facts = facts.map_err(|error| CliError::new(CliError::NETWORK, error.to_string()))?;
    let links: Vec<Interface> = facts.survey.interfaces.iter().filter(|link| link.is_usable()).cloned().collect();
    if !servers.is_empty() && links.is_empty() {
        print_notice("--probe: skipped, since no link can be used");
    }
    let mut probe_results = Vec::new();
    if !links.is_empty() {
        for server in &servers {
            probe_results.extend(doctor::probe_links(&links, server, facts.is_mptcp_off()));
            facts.refresh();
        }
    }
    let report = doctor::examine_host(&facts, &probe_results);
    format.print(&report, render)?;
    if report.ok { Ok(()) } else { Err(CliError::without_message(CliError::FAILED)) }
}

fn render(report: &Report) -> String {
    let mut text = findings::render(&report.findings);
    let mut probes = report.findings.iter().filter(|finding| finding.name == "probe").peekable();
    let is_probe_unsuccessful = probes.peek().is_some() && probes.all(|finding| finding.severity != Severity::Ok);
    text += if report.ok && is_probe_unsuccessful {
        "\nThis host can run `marline paths`, but no probe has shown MPTCP over any link: see above.\n"
    } else if report.ok {
        "\nThis host can run `marline paths`.\n"
    } else {
        "\nThis host cannot run `marline paths`: fix the findings marked WRONG.\n"
    };
    text
}

#[cfg(test)]
mod tests {
    use marline_core::finding::Finding;

    use super::*;

    #[test]
    fn the_verdict_mentions_probes_if_all_of_them_failed() {
        let report = |states: &[Severity]| {
            let probe = |state: &Severity| Finding { severity: *state, ..Finding::note("probe", "x", "y") };
            render(&Report::new(states.iter().map(probe).collect()))
        };
        assert!(
            report(&[Severity::Note, Severity::Note])
                .ends_with("no probe has shown MPTCP over any link: see above.\n")
        );
        for states in [&[Severity::Note, Severity::Ok][..], &[]] {
            assert!(report(states).ends_with("\nThis host can run `marline paths`.\n"));
        }
    }
}
