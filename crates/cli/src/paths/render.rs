//! Renders the [`Status`] of the path manager as tables, once or updated every second.
//!
//! Reasons are sentences and are in the last column, so that a narrow terminal truncates them and not the figures.

use std::fmt::Write as _;

use marline_paths::status::{Connection, Explanation, Status, Subflow};
use marline_terminal::screen;
use marline_terminal::table::{Table, or_dash};

use crate::CliError;
use crate::progress::{rate, size, time};

/// Default for the number of connections that are shown. Our choice: more than a screen shows.
pub(super) const DEFAULT_MAX_CONNECTIONS: usize = 100;

/// The whole status as text.
pub(super) fn render_status(status: &Status, at_most: usize) -> String {
    let mut text = header(status);
    text += "\n";
    text += &link_table(status);
    text += "\n";
    text += &connection_table(status, at_most);
    for note in &status.notes {
        let _ = writeln!(text, "\nnote: {note}");
    }
    text
}

/// Shows the status that `query` returns every second, until it fails.
pub(super) fn watch(mut query: impl FnMut() -> Result<Box<Status>, CliError>) -> Result<(), CliError> {
    screen::watch(|| Ok(render_status(&*query()?, DEFAULT_MAX_CONNECTIONS)))
}

fn header(status: &Status) -> String {
    let mut text = format!(
        "marline paths {}, process {}, for {}: policy {}, goal {}, {}",
        status.version,
        status.pid,
        time(status.uptime_s),
        wire_name(&status.policy),
        wire_name(&status.goal),
        status.mode
    );
    if let (Some(model), Some(joules)) = (&status.energy_model, status.energy_j) {
        let _ = write!(text, "; {joules:.1} J on {model}");
    }
    let counts = &status.counts;
    let (count, verb) = match status.mode.as_str() {
        "kernel-pm" => (counts.managed, "managed together"),
        "dry-run" => (counts.managed + counts.unmanaged, "observed"),
        _ => (counts.managed, "managed"),
    };
    let _ = write!(text, "\n{count} connections {verb}, {} active", counts.active);
    let unmanaged = if status.mode == "dry-run" { 0 } else { counts.unmanaged };
    for (count, label) in [
        (counts.adopted, "adopted"),
        (unmanaged, "unmanaged"),
        (counts.plain_now, "plain TCP instead of MPTCP"),
        (counts.fallen_back, "fell back to TCP since the start"),
        (counts.refused, "commands refused"),
        (counts.resyncs, "times resynchronised"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {label}");
        }
    }
    if let Some(forwarder) = &status.forwarder {
        let _ = write!(
            text,
            "\nforwarded TCP connections: {} open, {} with MPTCP, {} with plain TCP, {} failed, {} transferred",
            forwarder.open,
            forwarder.mptcp,
            forwarder.fallen_back,
            forwarder.failed,
            size(forwarder.bytes)
        );
    }
    text + "\n"
}

fn link_table(status: &Status) -> String {
    let header = ["LINK", "KIND", "STATE", "SUBFLOWS", "DOWN", "RECEIVED", "SENT", "RADIO", "JOULES"];
    let mut table = Table::new(header);
    for link in &status.links {
        let subflows = match (link.active, link.suspended) {
            (active, 0) => active.to_string(),
            (active, suspended) => format!("{active} + {suspended} suspended"),
        };
        let mut state = if link.up { "up" } else { "down" }.to_owned();
        if link.metered {
            state += ", metered";
        }
        if let Some(left) = link.budget_left_bytes {
            let used = link.budget_used_bytes.unwrap_or(0);
            let _ = write!(state, ", {} of {} left", size(left), size(left.saturating_add(used)));
        }
        table.row([
            link.name.clone(),
            link.kind.name().to_owned(),
            state,
            subflows,
            rate(link.down_mbps * 1e6),
            size(link.received_bytes),
            size(link.sent_bytes),
            or_dash(link.radio.clone()),
            or_dash(link.energy_j.map(|joules| format!("{joules:.1}"))),
        ]);
    }
    table.to_string()
}

fn connection_table(status: &Status, at_most: usize) -> String {
    if status.connections.is_empty() {
        return "No MPTCP connection is open. Use `marline run -- COMMAND` to run a command with MPTCP.\n".into();
    }
    let mut table = Table::new(["TOKEN", "SERVER", "DOWN", "RECEIVED", "LINKS", "REASON"]);
    for connection in status.connections.iter().take(at_most) {
        table.row([
            format!("{:08x}", connection.token),
            server_text(connection),
            rate(connection.down_mbps * 1e6),
            size(connection.received_bytes),
            subflow_list(connection),
            connection.reason.clone(),
        ]);
    }
    let mut text = table.to_string();
    let total = status.counts.managed + status.counts.unmanaged;
    let shown_count = status.connections.len().min(at_most) as u64;
    if total > shown_count {
        let _ = writeln!(text, "and {} more", total - shown_count);
    }
    text
}

/// Links of a connection's subflows, such as `wlan0, wwan0 (suspended)`.
fn subflow_list(connection: &Connection) -> String {
    let describe = |subflow: &Subflow| {
        let link = subflow.link.as_deref().unwrap_or("?");
        match subflow.state.name() {
            "active" => link.to_owned(),
            state => format!("{link} ({state})"),
        }
    };
    let subflows: Vec<String> = connection.subflows.iter().map(describe).collect();
    if subflows.is_empty() { "-".to_owned() } else { subflows.join(", ") }
}

/// One connection with its subflows and the decisions on it.
pub(super) fn render_explanation(explained: &Explanation) -> String {
    let connection = &explained.connection;
    let adopted = if connection.adopted { ", adopted from before the daemon's start" } else { "" };
    let mut text = format!(
        "{:08x} to {}, known for {}{adopted}: {} received, {} sent, {} now\n\n",
        connection.token,
        server_text(connection),
        time(connection.age_s),
        size(connection.received_bytes),
        size(connection.sent_bytes),
        rate(connection.down_mbps * 1e6)
    );
    let mut subflows = Table::new(["LINK", "FROM", "TO", "STATE", "DOWN", "RECEIVED", "RTT"]);
    for subflow in &connection.subflows {
        let suffix = if subflow.initial { ", the first" } else { "" };
        subflows.row([
            subflow.link.clone().unwrap_or_else(|| "?".into()),
            subflow.local.to_string(),
            subflow.remote.to_string(),
            format!("{}{suffix}", subflow.state.name()),
            or_dash(subflow.down_mbps.map(|mbps| rate(mbps * 1e6))),
            size(subflow.received_bytes),
            or_dash(subflow.rtt_ms.map(|rtt| format!("{rtt:.1} ms"))),
        ]);
    }
    text += &format!("{subflows}\n");
    if explained.decisions.is_empty() {
        text += "There is no decision on this connection yet.\n";
    }
    let mut decisions = Table::without_header();
    for decision in &explained.decisions {
        decisions.row([format!("{} ago", time(decision.age_s)), decision.text.clone()]);
    }
    text + &decisions.to_string()
}

fn server_text(connection: &Connection) -> String {
    connection.server.map_or_else(|| "?".to_owned(), |server| server.to_string())
}

/// Name of a value in options and JSON.
pub(super) fn wire_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = r#"{
        "version": "0.1.0", "pid": 7, "uptime_s": 125.0, "mode": "userspace", "policy": "wifi-first", "goal": "energy",
        "energy_model": "typical", "energy_j": 12.34,
        "links": [
            {"name": "wlan0", "kind": "wifi", "metered": false, "up": true, "active": 2, "suspended": 0,
             "received_bytes": 41200000, "sent_bytes": 1000, "down_mbps": 12.3, "budget_left_bytes": null,
             "radio": "active", "energy_j": 3.2},
            {"name": "wwan0", "kind": "lte", "metered": true, "up": true, "active": 0, "suspended": 1,
             "received_bytes": 0, "sent_bytes": 0, "down_mbps": 0.0, "budget_used_bytes": 500000000, "budget_left_bytes": 1500000000,
             "radio": null, "energy_j": null}],
        "counts": {"managed": 2, "active": 1, "plain_now": 3},
        "connections": [
            {"token": "7b9c2f7a", "server": "192.0.2.1:443", "age_s": 3.0, "adopted": false, "management": "userspace",
             "received_bytes": 41200000, "sent_bytes": 0, "down_mbps": 12.3, "state": "wlan0 only",
             "reason": "wlan0 alone costs less",
             "subflows": [
                {"link": "wlan0", "local": "10.1.0.2:5000", "remote": "192.0.2.1:443", "initial": true,
                 "state": "active", "received_bytes": 1, "sent_bytes": 0, "down_mbps": 12.3, "rtt_ms": 21.5},
                {"link": "wwan0", "local": "10.2.0.2:5000", "remote": "192.0.2.1:443", "initial": false,
                 "state": "suspended", "received_bytes": 0, "sent_bytes": 0, "down_mbps": null, "rtt_ms": null}]}],
        "notes": []}"#;

    fn example() -> Status {
        serde_json::from_str(STATUS).unwrap()
    }

    #[test]
    fn a_status_has_a_header_links_and_connections() {
        let text = render_status(&example(), 10);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "marline paths 0.1.0, process 7, for 2 min 5 s: policy wifi-first, goal energy, userspace; 12.3 J on typical"
        );
        assert_eq!(lines[1], "2 connections managed, 1 active, 3 plain TCP instead of MPTCP");
        assert!(lines[4].starts_with("wlan0  wifi  up") && lines[4].contains("12.3 Mbit/s"), "{}", lines[4]);
        assert!(lines[5].contains("up, metered, 1.5GB of 2.0GB left  0 + 1 suspended"), "{}", lines[5]);
        assert_eq!(
            lines[8],
            "7b9c2f7a  192.0.2.1:443  12.3 Mbit/s  41.2MB    wlan0, wwan0 (suspended)  wlan0 alone costs less"
        );
        assert_eq!(lines[9], "and 1 more");
    }

    #[test]
    fn the_header_names_the_mode_of_management() {
        let second = |mode: &str, managed, unmanaged| {
            let counts =
                marline_paths::status::StatusCounts { managed, unmanaged, active: 1, ..Default::default() };
            let text = render_status(&Status { mode: mode.into(), counts, ..example() }, 10);
            text.lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(second("kernel-pm", 2, 0), "2 connections managed together, 1 active");
        assert_eq!(second("dry-run", 0, 2), "2 connections observed, 1 active");
        assert_eq!(second("userspace", 1, 1), "1 connections managed, 1 active, 1 unmanaged");
    }

    #[test]
    fn the_forwarder_has_a_line_and_negative_zero_is_printed_as_zero() {
        let forwarder =
            marline_paths::status::ForwarderStatus { open: 3, mptcp: 2, bytes: 41_200_000, ..Default::default() };
        let mut with = Status { forwarder: Some(forwarder), ..example() };
        with.connections[0].down_mbps = -0.0;
        let text = render_status(&with, 10);
        let line = text.lines().nth(2).unwrap();
        assert_eq!(
            line,
            "forwarded TCP connections: 3 open, 2 with MPTCP, 0 with plain TCP, 0 failed, 41.2MB transferred"
        );
        assert!(text.contains("  0 kbit/s") && !text.contains("-0 "), "{text}");
    }

    #[test]
    fn without_connections_the_status_names_a_command_that_makes_one() {
        let text = render_status(&Status { connections: Vec::new(), ..example() }, 10);
        assert!(text.contains("`marline run -- COMMAND`"), "{text}");
    }

    #[test]
    fn an_explanation_has_the_subflows_and_the_decisions_in_their_order() {
        let mut connections = example().connections;
        let decision = |ago_s, text: &str| marline_paths::status::Decision { age_s: ago_s, text: text.into() };
        let decisions = vec![decision(3.0, "join wwan0 as a backup"), decision(0.5, "wlan0 alone costs less")];
        let text = render_explanation(&Explanation { connection: connections.remove(0), decisions });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("7b9c2f7a to 192.0.2.1:443, known for 3.0 s: 41.2MB received"), "{text}");
        assert!(lines[3].contains("active, the first") && lines[3].ends_with("21.5 ms"), "{text}");
        assert_eq!(lines[6], "3.0 s ago  join wwan0 as a backup");
        assert_eq!(lines[7], "0.5 s ago  wlan0 alone costs less");
    }
}
