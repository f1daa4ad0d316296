//! Status and requirements as text for a terminal.

use marline_accel::Requirement;
use marline_accel::status::{Flow, Link, Status};
use marline_core::finding::{Finding, Report, Severity};
use marline_terminal::findings;
use marline_terminal::table::{Table, or_dash};

use crate::progress::{rate, size, time};

/// The status of one accelerator: counters of packets, a table of links, and a table of flows.
pub(super) fn status(status: &Status) -> String {
    let mechanisms: Vec<String> = status.mechanisms.iter().map(ToString::to_string).collect();
    let counts = &status.counts;
    let mut text = format!(
        "marline accel {}, process {}, for {}: {} by {}; {}\n{} packets queued, {} rewritten, {} suppressed; {} sent, {} delivered, {} \
         failed; {} captured\n\n",
        status.version,
        status.pid,
        time(status.uptime_s),
        status.flow_filter,
        status.driver,
        mechanisms.join(", "),
        counts.queued,
        counts.rewritten,
        counts.suppressed,
        counts.sent,
        counts.delivered,
        counts.failed,
        counts.captured
    );
    text += &links(status);
    text += "\n";
    text += &if status.driver == "bpf" { BPF_NOTE.to_owned() } else { flows(&status.flows) };
    text
}

/// Shown in place of flows while the BPF driver runs.
const BPF_NOTE: &str =
    "The BPF driver offloads ACKs in the kernel and keeps no table of flows; `sent` counts offloaded ACKs.\n";

fn links(status: &Status) -> String {
    let header =
        ["LINK", "ROLE", "STATE", "OUTAGES", "DOWN FOR", "GATEWAY", "RTT", "UP", "DOWN", "SENT", "FETCHED"];
    let mut table = Table::new(header);
    for link in &status.links {
        table.row([
            link.name.clone(),
            link.role.clone(),
            state(link).to_owned(),
            link.outages.to_string(),
            time(link.outage_s),
            or_dash(link.gateway),
            millis(link.rtt_ms),
            mbps(link.send_limit_mbps),
            mbps(link.receive_rate_mbps),
            size(link.sent_bytes),
            size(link.fetched_bytes),
        ]);
    }
    table.to_string()
}

fn state(link: &Link) -> &'static str {
    match (link.down, link.unresponsive) {
        (true, _) => "down",
        (false, true) => "unresponsive",
        (false, false) => "up",
    }
}

fn flows(flows: &[Flow]) -> String {
    if flows.is_empty() {
        return "No flow is known yet.\n".to_owned();
    }
    let header = [
        "SERVER",
        "LOCAL",
        "DIRECTION",
        "ACTIVE",
        "RATE",
        "GAIN",
        "HOLES",
        "UNDONE",
        "EARLY-ACKED",
        "ACKS",
        "OFFLOADED",
        "RESTARTS",
    ];
    let mut table = Table::new(header);
    for flow in flows {
        let active: Vec<String> = flow.active.iter().map(ToString::to_string).collect();
        let active = match &flow.inactive_reason {
            Some(reason) => format!("left alone: {reason}"),
            None if active.is_empty() => or_dash(None::<String>),
            None => active.join(", ") + &inactive(flow),
        };
        table.row([
            flow.remote.clone(),
            flow.local.clone(),
            flow.direction.clone(),
            active,
            mbps(Some(flow.goodput_mbps)),
            or_dash(flow.gain.map(|gain| format!("{gain:.1} x"))),
            format!("{} ({} random)", flow.holes, flow.random_losses),
            flow.undone_reductions.to_string(),
            size(flow.early_acked_bytes),
            flow.acks.to_string(),
            format!("{} ({} replaced)", flow.offloaded, flow.replaced),
            flow.restarts.to_string(),
        ]);
    }
    let mirrored: String = flows.iter().filter_map(mirrored_conn).collect();
    if mirrored.is_empty() { table.to_string() } else { format!("{table}\n{mirrored}") }
}

/// What a mirrored connection has contributed, in one line.
fn mirrored_conn(flow: &Flow) -> Option<String> {
    let conn = flow.mirrored_conn.as_ref()?;
    let state = match (&conn.failure, conn.open) {
        (_, true) => "it is open".to_owned(),
        (Some(reason), false) => format!("it was closed: {reason}"),
        (None, false) => "it has ended".to_owned(),
    };
    Some(format!(
        "{}: a mirrored connection has filled {} holes ({}); {} were received over the second link, {} skipped; {state}\n",
        flow.remote,
        conn.filled_holes,
        size(conn.filled_bytes),
        size(conn.received_bytes),
        size(conn.skipped_bytes)
    ))
}

/// ` (not eifel-undo: it has no timestamps; not early-ack, fast-fetch: the server supports no ranges)`, or nothing.
fn inactive(flow: &Flow) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for entry in &flow.inactive {
        match reasons.iter_mut().find(|(reason, _)| *reason == entry.reason) {
            Some((_, names)) => names.push(entry.mechanism.name()),
            None => reasons.push((&entry.reason, vec![entry.mechanism.name()])),
        }
    }
    let each: Vec<String> =
        reasons.iter().map(|(reason, names)| format!("not {}: {reason}", names.join(", "))).collect();
    if each.is_empty() { String::new() } else { format!(" ({})", each.join("; ")) }
}

/// The requirements of this machine as findings of a check.
pub(super) fn requirement_report(requirements: Vec<Requirement>) -> Report {
    let finding = |requirement: Requirement| Finding {
        name: requirement.name,
        severity: match (requirement.is_met, requirement.is_required) {
            (true, _) => Severity::Ok,
            (false, false) => Severity::Note,
            (false, true) => Severity::Blocks,
        },
        message: requirement.finding,
        remedy: requirement.remedy.to_owned(),
    };
    Report::new(requirements.into_iter().map(finding).collect())
}

/// The findings, and whether `marline accel` can run.
pub(super) fn requirements(report: &Report) -> String {
    let verdict = if report.ok {
        "`marline accel` can run on this machine."
    } else {
        "`marline accel` cannot run on this machine: see WRONG."
    };
    format!("{}\n{verdict}\n", findings::render(&report.findings))
}

fn mbps(mbps: Option<f64>) -> String {
    or_dash(mbps.map(|mbps| rate(mbps * 1e6)))
}

fn millis(millis: Option<f64>) -> String {
    or_dash(millis.map(|millis| format!("{millis:.1} ms")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_accel::status::MirroredConn;
    use marline_core::accel::{InactiveReason, Mechanism};

    #[test]
    fn mirrored_connections_are_listed_after_the_table() {
        let conn = MirroredConn {
            filled_holes: 3,
            filled_bytes: 4200,
            failure: Some("x".into()),
            ..MirroredConn::default()
        };
        let mut flow = Flow { remote: "192.0.2.1:80".into(), mirrored_conn: Some(conn), ..Flow::default() };
        let text = flows(std::slice::from_ref(&flow));
        let line = text.lines().last().unwrap_or_default();
        assert!(line.starts_with("192.0.2.1:80: a mirrored connection has filled 3 holes"), "{text}");
        assert!(line.ends_with("it was closed: x"), "{text}");
        flow.mirrored_conn = None;
        assert!(!flows(&[flow]).contains("mirrored"));
    }

    #[test]
    fn active_mechanisms_are_listed_before_inactive_ones_and_their_reasons() {
        let not = |mechanism, reason: &str| InactiveReason { mechanism, reason: reason.into() };
        let mut flow = Flow {
            active: vec![Mechanism::EifelUndo, Mechanism::WithheldAck],
            inactive: vec![
                not(Mechanism::AckOffload, "a"),
                not(Mechanism::EarlyAck, "b"),
                not(Mechanism::FastFetch, "b"),
            ],
            ..Flow::default()
        };
        let text = flows(std::slice::from_ref(&flow));
        assert!(
            text.contains("eifel-undo, withheld-ack (not ack-offload: a; not early-ack, fast-fetch: b)"),
            "{text}"
        );
        (flow.active, flow.inactive_reason) = (Vec::new(), Some("a; b".into()));
        assert!(flows(&[flow]).contains("left alone: a; b"));
    }
}
