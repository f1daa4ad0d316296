//! Presents a run: a short table for people, one JSON object for programs.

use std::fmt::Write as _;

use marline_core::units::{DataSize, Duration};
use marline_sim::link::DirectionStats;
use serde_json::{Value, json};

use crate::{CommandRun, CongestionReport, EmulationReport, LinkReport, MpPrioRequest};

/// The table that `marline-lab exec` prints.
pub(crate) fn run_table(run: &CommandRun, congestion: &CongestionReport) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{:<12} {:>9} {:>9} {:>12} {:>9} {:>10} {:>10}",
        "link", "down", "up", "rate down", "dropped", "of these", "max queue"
    );
    for link in &run.emulation.links {
        let dropped = link.downlink.dropped() + link.uplink.dropped();
        let _ = writeln!(
            text,
            "{:<12} {:>9} {:>9} {:>12} {:>9} {:>10} {:>10}",
            link.name,
            link.downlink.delivered.bytes.to_string(),
            link.uplink.delivered.bytes.to_string(),
            downlink_rate(link).to_string(),
            dropped.packets,
            drop_causes(link),
            format!("{:.1}ms", link.downlink.max_queue_delay.as_secs_f64() * 1e3),
        );
    }
    let lateness = &run.emulation.lateness;
    let _ = writeln!(
        text,
        "time {:.3}s, cpu {:.3}s, memory {}; lateness p50 {:.3}ms p99 {:.3}ms max {:.3}ms; congestion control {}",
        run.wall.as_secs_f64(),
        (run.user + run.system).as_secs_f64(),
        run.peak_memory,
        lateness.p50.as_secs_f64() * 1e3,
        lateness.p99.as_secs_f64() * 1e3,
        lateness.max.as_secs_f64() * 1e3,
        congestion_line(congestion),
    );
    if let Some(reason) = run.emulation.unreliable_reason() {
        let _ = writeln!(text, "suspect: {reason}");
    }
    text
}

/// Describes the congestion control in use.
fn congestion_line(report: &CongestionReport) -> String {
    if report.is_granted() {
        return report.requested.to_string();
    }
    format!("{} was refused by this kernel: client {}, server {}", report.requested, report.client, report.server)
}

/// Lists the causes of dropped packets with their counts: full queue, CoDel, policer, loss, link down, too large.
fn drop_causes(link: &LinkReport) -> String {
    let counts_of = |s: &DirectionStats| {
        [
            s.dropped_queue_full,
            s.dropped_codel,
            s.dropped_policer,
            s.dropped_loss,
            s.dropped_down,
            s.dropped_oversize,
        ]
    };
    let names = ["queue", "codel", "police", "loss", "down", "large"];
    let counts =
        counts_of(&link.downlink).into_iter().zip(counts_of(&link.uplink)).map(|(down, up)| (down + up).packets);
    let parts: Vec<_> =
        names.iter().zip(counts).filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    if parts.is_empty() { "-".into() } else { parts.join(" ") }
}

/// Rate of the downlink: delivered IP bytes divided by the time between the first and the last packet.
fn downlink_rate(link: &LinkReport) -> marline_core::units::Bitrate {
    let (first, last) = link.down_span.unwrap_or_default();
    if last > first { link.downlink.delivered.bytes / (last - first) } else { marline_core::units::Bitrate::ZERO }
}

impl CommandRun {
    /// The run as one JSON value: times in seconds, sizes in bytes.
    pub fn to_json(&self) -> Value {
        json!({
            "exit": self.status.code(),
            "timed_out": self.timed_out,
            "seconds": self.wall.as_secs_f64(),
            "user_s": self.user.as_secs_f64(),
            "system_s": self.system.as_secs_f64(),
            "peak_rss_bytes": self.peak_memory.bytes(),
            "unreliable_reason": self.emulation.unreliable_reason(),
            "lateness_s": {
                "packets": self.emulation.lateness.packets,
                "p50": self.emulation.lateness.p50.as_secs_f64(),
                "p99": self.emulation.lateness.p99.as_secs_f64(),
                "max": self.emulation.lateness.max.as_secs_f64(),
            },
            "emulator_cpu_s": self.emulation.cpu_time.as_secs_f64(),
            "real_time": self.emulation.is_real_time,
            "slot_s": EmulationReport::SLOT.as_secs_f64(),
            "links": self.emulation.links.iter().map(link_json).collect::<Vec<_>>(),
        })
    }
}

fn link_json(link: &LinkReport) -> Value {
    let slots = |all: &[DataSize]| all.iter().map(|slot| slot.bytes()).collect::<Vec<_>>();
    let seconds = |time: Duration| time.as_secs_f64();
    json!({
        "name": link.name,
        "kind": link.kind.name(),
        "down": stats_json(&link.downlink),
        "up": stats_json(&link.uplink),
        "first_byte_s": link.down_span.map(|(first, _)| seconds(first)),
        "last_byte_s": link.down_span.map(|(_, last)| seconds(last)),
        "unseen_packets": link.dropped_before_emulator,
        "down_timeline_bytes": slots(&link.down_timeline),
        "up_timeline_bytes": slots(&link.up_timeline),
        "payload_timeline_bytes": payload_timeline(link),
        "priorities": link.mp_prio_requests.iter().map(mp_prio_json).collect::<Vec<_>>(),
    })
}

/// TCP payload of both directions per slot of [`EmulationReport::SLOT`].
fn payload_timeline(link: &LinkReport) -> Vec<u64> {
    let mut slots = Vec::new();
    for sample in &link.traffic_samples {
        let slot = usize::try_from(sample.at.as_nanos() / EmulationReport::SLOT.as_nanos()).unwrap_or(0);
        slots.resize(slots.len().max(slot + 1), 0);
        if let Some(slot) = slots.get_mut(slot) {
            *slot += u64::from(sample.payload);
        }
    }
    slots
}

/// JSON of one MP_PRIO request of the client.
fn mp_prio_json(request: &MpPrioRequest) -> Value {
    json!({"at_s": request.at.as_secs_f64(), "backup": request.backup, "lost": request.is_dropped})
}

fn stats_json(stats: &DirectionStats) -> Value {
    json!({
        "bytes": stats.delivered.bytes.bytes(),
        "packets": stats.delivered.packets,
        "offered_packets": stats.offered.packets,
        "dropped_packets": {
            "queue": stats.dropped_queue_full.packets,
            "codel": stats.dropped_codel.packets,
            "police": stats.dropped_policer.packets,
            "loss": stats.dropped_loss.packets,
            "down": stats.dropped_down.packets,
            "large": stats.dropped_oversize.packets,
        },
        "max_queue_delay_s": stats.max_queue_delay.as_secs_f64(),
        "airtime_s": stats.airtime.as_secs_f64(),
    })
}
