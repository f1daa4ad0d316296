//! How an accelerator stands, and what it needs, for people.

use std::fmt::Write as _;

use marline_accel::Need;
use marline_accel::status::{Flow, Link, Status};

use crate::energy::render_table;
use crate::progress::{rate, size, time};

/// Everything, for a terminal.
pub(super) fn status(status: &Status) -> String {
    let mechanisms: Vec<String> = status.mechanisms.iter().map(ToString::to_string).collect();
    let counts = &status.counts;
    let mut text = format!(
        "marline accel {}, process {}, for {}: {} by {}; {}\n{} packets asked about, {} changed, {} held; {} sent, {} delivered, {} \
         failed; {} seen\n\n",
        status.version,
        status.pid,
        time(status.up_s),
        status.meant,
        status.driver,
        mechanisms.join(", "),
        counts.queued,
        counts.changed,
        counts.held,
        counts.sent,
        counts.delivered,
        counts.failed,
        counts.seen
    );
    text += &links(status);
    text += "\n";
    text += &if status.driver == "bpf" { LED.to_owned() } else { flows(&status.flows) };
    text
}

/// What is said in place of flows that nobody keeps a table of.
const LED: &str =
    "Its program leads acknowledgements and keeps no table of flows; `sent` counts those it has led.\n";

fn links(status: &Status) -> String {
    let head = ["LINK", "ROLE", "STATE", "BLACKOUTS", "DARK", "GATEWAY", "RTT", "UP", "DOWN", "SENT", "FETCHED"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for link in &status.links {
        rows.push(vec![
            link.name.clone(),
            link.role.clone(),
            state(link).to_owned(),
            link.blackouts.to_string(),
            time(link.dark_s),
            link.gateway.map_or_else(none, |gateway| gateway.to_string()),
            millis(link.rtt_ms),
            mbps(link.up_mbps),
            mbps(link.down_mbps),
            size(link.sent_bytes),
            size(link.fetched_bytes),
        ]);
    }
    render_table(&rows)
}

fn state(link: &Link) -> &'static str {
    match (link.dark, link.deaf) {
        (true, _) => "dark",
        (false, true) => "unasked",
        (false, false) => "bright",
    }
}

fn flows(flows: &[Flow]) -> String {
    if flows.is_empty() {
        return "No flow is known yet.\n".to_owned();
    }
    let head = [
        "SERVER",
        "FROM",
        "WAY",
        "IN FORCE",
        "RATE",
        "GAIN",
        "HOLES",
        "UNDONE",
        "HIDDEN",
        "ACKS",
        "OFFLOADED",
        "KICKS",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for flow in flows {
        let in_force: Vec<String> = flow.in_force.iter().map(ToString::to_string).collect();
        let in_force = match &flow.left_alone {
            Some(why) => format!("left alone: {why}"),
            None if in_force.is_empty() => none(),
            None => in_force.join(", ") + &not_in_force(flow),
        };
        rows.push(vec![
            flow.remote.clone(),
            flow.local.clone(),
            flow.direction.clone(),
            in_force,
            mbps(Some(flow.goodput_mbps)),
            flow.gain.map_or_else(none, |gain| format!("{gain:.1} x")),
            format!("{} ({} random)", flow.holes, flow.random),
            flow.undone.to_string(),
            size(flow.hidden_bytes),
            flow.acks.to_string(),
            format!("{} ({} replaced)", flow.offloaded, flow.replaced),
            flow.kicks.to_string(),
        ]);
    }
    let replays: String = flows.iter().filter_map(replay).collect();
    if replays.is_empty() { render_table(&rows) } else { render_table(&rows) + "\n" + &replays }
}

/// What a replayed connection has brought, a line.
fn replay(flow: &Flow) -> Option<String> {
    let replay = flow.replay.as_ref()?;
    let state = match (&replay.failure, replay.on) {
        (_, true) => "it goes on".to_owned(),
        (Some(why), false) => format!("it was given up: {why}"),
        (None, false) => "it is done".to_owned(),
    };
    Some(format!(
        "{}: a replayed connection has filled {} holes ({}); {} came for that over the second link, {} were passed over; {state}\n",
        flow.remote,
        replay.filled,
        size(replay.got_bytes),
        size(replay.came_bytes),
        size(replay.passed_bytes)
    ))
}

/// ` (not undo: it has no timestamps; not hide, fast-fetch: its answer has no strong validator)`, or nothing.
fn not_in_force(flow: &Flow) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for excuse in &flow.not_in_force {
        match reasons.iter_mut().find(|(why, _)| *why == excuse.why) {
            Some((_, names)) => names.push(excuse.mechanism.name()),
            None => reasons.push((&excuse.why, vec![excuse.mechanism.name()])),
        }
    }
    let each: Vec<String> = reasons.iter().map(|(why, names)| format!("not {}: {why}", names.join(", "))).collect();
    if each.is_empty() { String::new() } else { format!(" ({})", each.join("; ")) }
}

/// What is needed, a line each.
pub(super) fn needs(needs: &[Need]) -> String {
    let mut text = String::new();
    let width = needs.iter().map(|need| need.name.len()).max().unwrap_or(0);
    for need in needs {
        let mark = match (need.there, need.must) {
            (true, _) => "ok   ",
            (false, false) => "note ",
            (false, true) => "WRONG",
        };
        let _ = writeln!(text, "{mark}  {:<width$}  {}", need.name, need.says);
        if !need.remedy.is_empty() {
            let _ = writeln!(text, "{:width$}  what helps: {}", "", need.remedy, width = width + 7);
        }
    }
    let fit = needs.iter().all(|need| need.there || !need.must);
    text += if fit {
        "\nNothing stands in the way of `marline accel`.\n"
    } else {
        "\nWhat is marked WRONG stands in the way of `marline accel`.\n"
    };
    text
}

fn mbps(mbps: Option<f64>) -> String {
    mbps.map_or_else(none, |mbps| rate(mbps * 1e6))
}

fn millis(millis: Option<f64>) -> String {
    millis.map_or_else(none, |millis| format!("{millis:.1} ms"))
}

fn none() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_accel::status::Replay;
    use marline_core::accel::{Excuse, Mechanism};

    #[test]
    fn what_a_replayed_connection_has_brought_stands_behind_the_table() {
        let replay = Replay { filled: 3, got_bytes: 4200, failure: Some("x".into()), ..Replay::default() };
        let mut flow = Flow { remote: "192.0.2.1:80".into(), replay: Some(replay), ..Flow::default() };
        let text = flows(std::slice::from_ref(&flow));
        let line = text.lines().last().unwrap_or_default();
        assert!(line.starts_with("192.0.2.1:80: a replayed connection has filled 3 holes"), "{text}");
        assert!(line.ends_with("it was given up: x"), "{text}");
        flow.replay = None;
        assert!(!flows(&[flow]).contains("replayed"));
    }

    #[test]
    fn what_is_in_force_stands_before_what_is_not_and_why() {
        let not = |mechanism, why: &str| Excuse { mechanism, why: why.into() };
        let mut flow = Flow {
            in_force: vec![Mechanism::Undo, Mechanism::Reserve],
            not_in_force: vec![
                not(Mechanism::Offload, "a"),
                not(Mechanism::Hide, "b"),
                not(Mechanism::FastFetch, "b"),
            ],
            ..Flow::default()
        };
        let text = flows(std::slice::from_ref(&flow));
        assert!(text.contains("undo, reserve (not offload: a; not hide, fast-fetch: b)"), "{text}");
        (flow.in_force, flow.left_alone) = (Vec::new(), Some("a; b".into()));
        assert!(flows(&[flow]).contains("left alone: a; b"));
    }
}
