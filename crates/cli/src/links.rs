//! `marline links`: every interface of this machine, what `marline get` would do with it, and why.
//!
//! A survey and the configuration file go in; a table for people or a JSON array for programs comes out on standard
//! output. No packet is sent.
//!
//! The verdict shown is not computed here: it is the one by which `get` chooses, so that the two cannot disagree.

use std::path::Path;

use marline_core::link::LinkProfile;
use marline_net::links::{Choice, Interface, LinksError, MeteredHints, Survey, Verdict, choose, survey};
use marline_net::printable::printable;
use serde::Serialize;

use crate::args::LinksArgs;
use crate::output::print;
use crate::{ConfigFile, Exit};

/// One interface, as shown. Serialises to one element of `--json` (see `docs/json.md`).
#[derive(Serialize)]
struct Row {
    /// What the system says.
    #[serde(flatten)]
    interface: Interface,
    /// Whether `marline get` would use it now.
    used: bool,
    /// Why it is not used, or under which condition it is; empty when there is nothing to say.
    why: String,
    /// The most bytes of one run, from the configuration.
    budget_bytes: Option<u64>,
    /// The most per second, from the configuration, in 10^6 bit/s.
    limit_mbps: Option<f64>,
}

/// Shows the links.
pub(crate) fn run(args: &LinksArgs, config: Option<&Path>) -> Result<(), Exit> {
    let file = ConfigFile::read(config)?;
    let survey = survey().map_err(|error| Exit::new(Exit::NETWORK, error.to_string()))?;
    let choice = Choice::Auto { bypass_vpn: args.bypass_vpn, known: file.known() };
    let (chosen, vpn) = match choose(&survey, &choice, &MeteredHints::ask(&survey)) {
        Ok(chosen) => (chosen.links, chosen.vpn),
        // That there is none is what the table then shows.
        Err(LinksError::NoLink { .. }) => (Vec::new(), None),
        Err(error) => return Err(Exit::new(Exit::NETWORK, error.to_string())),
    };
    let rows = rows(&survey, &chosen);
    if args.json {
        let text = serde_json::to_string_pretty(&rows)
            .map_err(|error| Exit::failed(format!("the links cannot be written as JSON: {error}")))?;
        print(&(text + "\n"))?;
    } else {
        let mut text = table(&rows);
        if let Some(vpn) = vpn {
            text += &format!("\n{vpn}\n");
        }
        print(&text)?;
    }
    Ok(())
}

/// The chosen ones first, in the order of their use; then the others, in the kernel's.
fn rows(survey: &Survey, chosen: &[(Interface, LinkProfile)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (interface, profile) in chosen {
        rows.push(Row {
            why: if profile.metered { "metered: only when all others have failed".into() } else { String::new() },
            interface: interface.clone(),
            used: true,
            budget_bytes: profile.budget.map(|budget| budget.bytes()),
            limit_mbps: profile.rate_limit.map(|limit| limit.as_mbps_f64()),
        });
    }
    for interface in &survey.interfaces {
        if chosen.iter().any(|(other, _)| other.index == interface.index) {
            continue;
        }
        let why = match &interface.verdict {
            Verdict::Usable => "it is the VPN that is bypassed".into(),
            Verdict::Unused(reason) => reason.to_string(),
        };
        rows.push(Row { interface: interface.clone(), used: false, why, budget_bytes: None, limit_mbps: None });
    }
    rows
}

/// Columns as wide as their widest word, the reason last because it is a sentence.
fn table(rows: &[Row]) -> String {
    let mut cells: Vec<[String; 5]> = vec![["LINK", "KIND", "METERED", "ADDRESS", "USED"].map(Into::into)];
    for row in rows {
        let link = &row.interface;
        let metered = match &link.metered {
            Some(m) if m.metered => "yes",
            Some(_) => "no",
            None => "-",
        };
        let address = link.addresses.first().map_or_else(|| "-".into(), ToString::to_string);
        let used = match (row.used, row.why.as_str()) {
            (true, "") => "yes".into(),
            (true, why) => format!("yes, {why}"),
            (false, why) => format!("no: {why}"),
        };
        cells.push([printable(&link.name).into_owned(), link.kind.name().into(), metered.into(), address, used]);
    }
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3)];
    let mut text = String::new();
    for [name, kind, metered, address, used] in &cells {
        let [a, b, c, d] = widths;
        text += &format!("{name:<a$}  {kind:<b$}  {metered:<c$}  {address:<d$}  {used}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::link::LinkKind;
    use marline_net::links::{Metered, MeteredSource, Reason};

    fn interface(name: &str, index: u32, verdict: Verdict) -> Interface {
        Interface {
            name: name.into(),
            index,
            kind: LinkKind::Wifi,
            addresses: vec!["192.0.2.7".parse().unwrap()],
            passing: Vec::new(),
            networks: Vec::new(),
            v4: None,
            v6: None,
            metered: None,
            mtu: 1500,
            emulated: false,
            verdict,
        }
    }

    fn example() -> Vec<Row> {
        let mut modem = interface("wwan0", 3, Verdict::Usable);
        modem.metered = Some(Metered { metered: true, source: MeteredSource::User });
        let mut profile = LinkProfile::new("wwan0", LinkKind::Lte);
        profile.metered = true;
        profile.budget = Some("2GB".parse().unwrap());
        let survey = Survey {
            interfaces: vec![interface("docker0", 2, Verdict::Unused(Reason::Bridge)), modem.clone()],
            vpn: None,
        };
        rows(&survey, &[(modem, profile)])
    }

    #[test]
    fn each_interface_has_a_line_with_the_reason() {
        assert_eq!(
            table(&example()),
            "LINK     KIND  METERED  ADDRESS    USED\n\
             wwan0    wifi  yes      192.0.2.7  yes, metered: only when all others have failed\n\
             docker0  wifi  -        192.0.2.7  no: it is a bridge to containers or virtual machines\n"
        );
    }

    #[test]
    fn the_json_says_the_same_as_data() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json[0]["name"], "wwan0");
        assert_eq!(json[0]["used"], true);
        assert_eq!(json[0]["budget_bytes"], 2_000_000_000_u64);
        assert_eq!(json[1]["verdict"], "unused");
        assert_eq!(json[1]["limit_mbps"], serde_json::Value::Null);
    }
}
