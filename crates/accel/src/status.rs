//! Status of a running accelerator: the response of its control socket (`docs/json.md`).

use std::time::Duration;

use marline_core::accel::{FlowStatus, InactiveReason, LinkStatus, Mechanism, MirroredConnStatus};
use marline_core::units::Instant;
use serde::{Deserialize, Serialize};

use crate::links::AccelLink;

/// The whole status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// marline's version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Which flows are accelerated.
    pub flow_filter: String,
    /// The enabled mechanisms.
    pub mechanisms: Vec<Mechanism>,
    /// How packets are reached: `nfqueue` or `bpf`.
    pub driver: String,
    /// The links, the primary one first.
    pub links: Vec<Link>,
    /// The tracked flows, in the order of their addresses.
    pub flows: Vec<Flow>,
    /// What the driver has done.
    pub counts: Counts,
}

/// A link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Its interface.
    pub name: String,
    /// `primary` or `secondary`.
    pub role: String,
    /// The address that is probed.
    pub gateway: Option<std::net::IpAddr>,
    /// Whether it is down.
    pub down: bool,
    /// Its gateway was probed several times and has never replied: only its carrier shows outages.
    #[serde(default)]
    pub unresponsive: bool,
    /// Outages so far.
    pub outages: u64,
    /// Total duration of the outages, in seconds.
    pub outage_s: f64,
    /// The last round trip to its gateway.
    pub rtt_ms: Option<f64>,
    /// The rate at which may be sent over it, where that is limited.
    pub send_limit_mbps: Option<f64>,
    /// The rate that it delivers, where known.
    pub receive_rate_mbps: Option<f64>,
    /// Bytes of the accelerator's own that were sent over it.
    pub sent_bytes: u64,
    /// Bytes that were fetched over it.
    pub fetched_bytes: u64,
}

/// A flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// The local end.
    pub local: String,
    /// The server.
    pub remote: String,
    /// `down`: its data comes to this host; `up`: it goes to the server.
    pub direction: String,
    /// Seconds since it is known.
    pub age_s: f64,
    /// The mechanisms that act on it now.
    pub active: Vec<Mechanism>,
    /// Mechanisms that are enabled and of no use for it, and why.
    pub inactive: Vec<InactiveReason>,
    /// Why nothing is done for it, if nothing is.
    pub inactive_reason: Option<String>,
    /// Bytes received since it is known; of an upload, those that the server has acknowledged.
    pub received_bytes: u64,
    /// Goodput of the last two seconds.
    pub goodput_mbps: f64,
    /// What plain TCP would reach, by a model; none while there is no loss.
    pub plain_tcp_mbps: Option<f64>,
    /// The one divided by the other; none as long as nothing was done for it.
    pub gain: Option<f64>,
    /// Losses.
    pub holes: u64,
    /// Of these, classified as random.
    pub random_losses: u64,
    /// Congestion window reductions that the sender was made to undo.
    pub undone_reductions: u64,
    /// Bytes acknowledged before they arrived.
    pub early_acked_bytes: u64,
    /// Of these, still missing.
    pub missing_bytes: u64,
    /// Pure ACKs of the local stack; of an upload, of the server.
    pub acks: u64,
    /// Of these, sent over another link.
    pub offloaded: u64,
    /// Of these, dropped because a newer one supersedes them.
    pub replaced: u64,
    /// Outages after which the sender was restarted.
    pub restarts: u64,
    /// Its mirrored connections; null: there was none.
    #[serde(default)]
    pub mirrored_conn: Option<MirroredConn>,
    /// How long packets queue, beyond the minimum delay.
    pub queueing_delay_ms: Option<f64>,
    /// The round-trip time as measured here.
    pub rtt_ms: Option<f64>,
}

/// The mirrored connections of a flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MirroredConn {
    /// Whether there is one now.
    pub open: bool,
    /// Holes that were filled from it.
    pub filled_holes: u64,
    /// Bytes of these holes.
    pub filled_bytes: u64,
    /// What came over the second link for that, headers included.
    pub received_bytes: u64,
    /// What was acknowledged without having arrived, so that the server sent on.
    pub skipped_bytes: u64,
    /// Why the last one has ended, unless it was finished.
    pub failure: Option<String>,
}

/// What the driver has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Packets that were held.
    pub queued: u64,
    /// Of these, incoming ones: acknowledgements of uploads.
    #[serde(default)]
    pub incoming: u64,
    /// How often a batch of them was taken.
    #[serde(default)]
    pub batches: u64,
    /// Of the held packets, rewritten.
    pub rewritten: u64,
    /// Of the held packets, dropped.
    pub suppressed: u64,
    /// Packets of our own that were sent over a link.
    pub sent: u64,
    /// Packets that were injected into the local stack.
    pub delivered: u64,
    /// Packets of either kind that could not be sent.
    pub failed: u64,
    /// Captured packets.
    pub captured: u64,
    /// Packets that passed and were not captured for want of buffer.
    pub capture_drops: u64,
    /// Probes of gateways.
    pub probes: u64,
    /// Their replies.
    pub probe_replies: u64,
    /// Processor time of the packet thread, in seconds.
    pub cpu_s: f64,
}

impl Link {
    pub(super) fn of(link: &AccelLink, view: Option<&LinkStatus>) -> Self {
        let role = if link.link.0 == 0 { "primary" } else { "secondary" };
        let plain =
            Self { name: link.name.clone(), role: role.to_owned(), gateway: Some(link.gateway), ..Self::default() };
        let Some(view) = view else { return plain };
        Self {
            down: view.is_down,
            unresponsive: view.is_unresponsive,
            outages: view.outages,
            outage_s: view.outage_time.as_secs_f64(),
            rtt_ms: view.rtt.map(millis),
            send_limit_mbps: view.send_limit.map(|rate| rate.as_mbps_f64()),
            receive_rate_mbps: view.receive_rate.map(|rate| rate.as_mbps_f64()),
            sent_bytes: view.sent.bytes(),
            fetched_bytes: view.fetched.bytes(),
            ..plain
        }
    }
}

impl Flow {
    pub(super) fn of(view: FlowStatus, now: Instant) -> Self {
        let goodput = view.goodput.as_mbps_f64();
        let plain = view.plain_tcp.map(|rate| rate.as_mbps_f64());
        let gain = plain.filter(|plain| *plain > 0.0 && view.is_accelerated()).map(|plain| goodput / plain);
        let (local, remote) = (view.flow.source(), view.flow.destination());
        Self {
            local: local.to_string(),
            remote: remote.to_string(),
            direction: if view.is_upload { "up" } else { "down" }.to_owned(),
            age_s: now.since(view.opened).as_secs_f64(),
            inactive_reason: view.inactive_reason(),
            active: view.active,
            inactive: view.inactive,
            received_bytes: view.received.bytes(),
            goodput_mbps: goodput,
            plain_tcp_mbps: plain,
            gain,
            holes: view.holes,
            random_losses: view.random_losses,
            undone_reductions: view.undone_reductions,
            early_acked_bytes: view.early_acked.bytes(),
            missing_bytes: view.missing.bytes(),
            acks: view.acks,
            offloaded: view.offloaded,
            replaced: view.replaced,
            restarts: view.restarts,
            mirrored_conn: view.mirrored_conn.map(MirroredConn::of),
            queueing_delay_ms: view.queueing_delay.map(millis),
            rtt_ms: view.rtt.map(millis),
        }
    }
}

impl MirroredConn {
    fn of(view: MirroredConnStatus) -> Self {
        Self {
            open: view.is_open,
            filled_holes: view.filled_holes,
            filled_bytes: view.filled_bytes.bytes(),
            received_bytes: view.received.bytes(),
            skipped_bytes: view.skipped.bytes(),
            failure: view.failure,
        }
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
