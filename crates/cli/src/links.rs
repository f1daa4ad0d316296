//! `marline links`: lists every interface of this host, whether `marline get` would use it, and why not.
//!
//! It combines a list of the interfaces with the configuration file and prints a table for people or a JSON array for
//! programs. No packet is sent.
//!
//! The verdict is not computed here: it is that of the link selection of `get`, so that the two cannot disagree.

use std::path::Path;

use clap::Args;
use marline_core::link::LinkProfile;
use marline_net::links::{
    Interface, InterfaceList, LinkSelection, LinksError, MeteredHints, Usability, choose_links, list_interfaces,
};
use marline_terminal::table::{Table, or_dash};
use serde::Serialize;

use crate::args::{JsonArgs, VpnArgs};
use crate::{CliError, ConfigFile};

/// End of the output of `marline links --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline links
  marline links --json | jq -r '.[] | select(.verdict == \"usable\") | .name'";

/// `marline links`.
#[derive(Debug, Args)]
#[command(mut_arg("json", |arg| arg.help("Print one JSON array")))]
#[command(mut_arg("bypass_vpn", |arg| arg.help("Show the links below an active VPN, as `marline get --bypass-vpn` would use them")))]
pub struct LinksArgs {
    /// Format of the result.
    #[command(flatten)]
    pub format: JsonArgs,
    /// Whether links below a VPN are shown.
    #[command(flatten)]
    pub vpn: VpnArgs,
}

/// One interface of the output. Serialises to one element of `--json` (see `docs/json.md`).
#[derive(Serialize)]
struct LinkRow {
    /// Properties that the system reports.
    #[serde(flatten)]
    interface: Interface,
    /// Whether `marline get` would select the link now. By default, a metered one carries data only while no other works.
    used: bool,
    /// Why the link is not used, or the condition under which it is; may be empty.
    explanation: String,
    /// Most bytes that one run of `marline get` may carry over the link, from the configuration file.
    budget_bytes: Option<u64>,
    /// Rate limit of the link from the configuration file, in 10^6 bit/s.
    rate_limit_mbps: Option<f64>,
}

/// Prints the links.
pub(crate) fn run(args: &LinksArgs, config: Option<&Path>) -> Result<(), CliError> {
    let file = ConfigFile::read(config)?;
    let interfaces = list_interfaces().map_err(|error| CliError::new(CliError::NETWORK, error.to_string()))?;
    let choice = LinkSelection::Auto { bypass_vpn: args.vpn.bypass_vpn, configured: file.described_links() };
    let (selected, vpn) = match choose_links(&interfaces, &choice, &MeteredHints::query(&interfaces)) {
        Ok(selection) => (selection.links, selection.vpn_note),
        // Without a usable link the table still lists all interfaces and their reasons.
        Err(LinksError::NoLink { .. }) => (Vec::new(), None),
        Err(error) => return Err(CliError::new(CliError::NETWORK, error.to_string())),
    };
    let rows = rows(&interfaces, &selected);
    let vpn_note = vpn.map_or_else(String::new, |note| format!("\n{note}\n"));
    args.format.print(&rows, |rows| table(rows) + &vpn_note)
}

/// Rows of the output: the selected links in their order of use, then the other interfaces in the order of the kernel.
fn rows(interfaces: &InterfaceList, selected: &[(Interface, LinkProfile)]) -> Vec<LinkRow> {
    let mut rows = Vec::new();
    for (interface, profile) in selected {
        rows.push(LinkRow {
            explanation: if profile.metered {
                "metered: only when all others have failed".into()
            } else {
                String::new()
            },
            interface: interface.clone(),
            used: true,
            budget_bytes: profile.budget.map(|budget| budget.bytes()),
            rate_limit_mbps: profile.rate_limit.map(|limit| limit.as_mbps_f64()),
        });
    }
    // `Usable` interfaces that were not selected can only be the VPN that is bypassed.
    for interface in &interfaces.interfaces {
        if selected.iter().any(|(selected_interface, _)| selected_interface.index == interface.index) {
            continue;
        }
        let explanation = match &interface.usability {
            Usability::Usable => "it is the VPN that --bypass-vpn bypasses".into(),
            Usability::Unused(reason) => reason.to_string(),
        };
        rows.push(LinkRow {
            interface: interface.clone(),
            used: false,
            explanation,
            budget_bytes: None,
            rate_limit_mbps: None,
        });
    }
    rows
}

/// Formats the rows as a table. The reason is the last column because it is a sentence.
fn table(rows: &[LinkRow]) -> String {
    let mut table = Table::new(["LINK", "KIND", "METERED", "ADDRESS", "USED"]);
    for row in rows {
        let interface = &row.interface;
        let is_metered = interface.metered.as_ref().map(|status| if status.metered { "yes" } else { "no" });
        let usage = match (row.used, row.explanation.as_str()) {
            (true, "") => "yes".into(),
            (true, condition) => format!("yes, {condition}"),
            (false, reason) => format!("no: {reason}"),
        };
        table.row([
            interface.name.clone(),
            interface.kind.name().into(),
            or_dash(is_metered),
            or_dash(interface.addresses.first()),
            usage,
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::link::LinkKind;
    use marline_net::links::{MeteredSource, MeteredStatus, UnusedReason};
    use marline_net::testing::test_interface;

    fn interface(name: &str, index: u32, verdict: Usability) -> Interface {
        Interface {
            kind: LinkKind::Wifi,
            addresses: vec!["192.0.2.7".parse().unwrap()],
            usability: verdict,
            ..test_interface(name, index)
        }
    }

    fn example() -> Vec<LinkRow> {
        let mut modem = interface("wwan0", 3, Usability::Usable);
        modem.metered = Some(MeteredStatus { metered: true, source: MeteredSource::User });
        let mut profile = LinkProfile::new("wwan0", LinkKind::Lte);
        profile.metered = true;
        profile.budget = Some("2GB".parse().unwrap());
        let survey = InterfaceList {
            interfaces: vec![interface("docker0", 2, Usability::Unused(UnusedReason::Bridge)), modem.clone()],
            vpn: None,
        };
        rows(&survey, &[(modem, profile)])
    }

    #[test]
    fn the_table_has_a_line_with_the_reason_for_each_interface() {
        assert_eq!(
            table(&example()),
            "LINK     KIND  METERED  ADDRESS    USED\n\
             wwan0    wifi  yes      192.0.2.7  yes, metered: only when all others have failed\n\
             docker0  wifi  -        192.0.2.7  no: it is a bridge to containers or virtual machines\n"
        );
    }

    #[test]
    fn the_json_output_has_the_same_links() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json[0]["name"], "wwan0");
        assert_eq!(json[0]["used"], true);
        assert_eq!(json[0]["budget_bytes"], 2_000_000_000_u64);
        assert_eq!(json[1]["verdict"], "unused");
        assert_eq!(json[1]["reason"], "bridge");
        assert_eq!(json[1]["explanation"], "it is a bridge to containers or virtual machines");
        assert_eq!(json[1]["rate_limit_mbps"], serde_json::Value::Null);
    }
}
