//! How an accelerator that runs stands: the answer of its control socket (`docs/json.md`).
//!
//! In: what the machine says of flows and links, and what the driver has counted. Out: values with names in place of
//! numbers.

use std::time::Duration;

use marline_core::accel::{FlowStatus, InactiveReason, LinkStatus, Mechanism, MirroredConnStatus};
use marline_core::units::Instant;
use serde::{Deserialize, Serialize};

use crate::links::AccelLink;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// marline's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Which flows are meant.
    pub flow_filter: String,
    /// What may be done.
    pub mechanisms: Vec<Mechanism>,
    /// How packets are reached: `nfqueue` or `bpf`.
    pub driver: String,
    /// The links, the primary one first.
    pub links: Vec<Link>,
    /// The flows that are known, in the order of their addresses.
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
    /// Who is asked whether it is alive.
    pub gateway: Option<std::net::IpAddr>,
    /// Whether it is dark.
    pub down: bool,
    /// Its gateway was asked several times and has never answered: of its blackouts only the carrier tells.
    #[serde(default)]
    pub unresponsive: bool,
    /// Blackouts so far.
    pub outages: u64,
    /// Their time together, in seconds.
    pub outage_s: f64,
    /// The last round trip to its gateway.
    pub rtt_ms: Option<f64>,
    /// What may be sent over it, where that is limited.
    pub send_limit_mbps: Option<f64>,
    /// What it brings, where that is known.
    pub receive_rate_mbps: Option<f64>,
    /// Bytes of the accelerator's own that went over it.
    pub sent_bytes: u64,
    /// Bytes that were fetched over it.
    pub fetched_bytes: u64,
}

/// A flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// This end.
    pub local: String,
    /// The server.
    pub remote: String,
    /// `down`: its data comes to here; `up`: it goes to the server.
    pub direction: String,
    /// Seconds since it is known.
    pub age_s: f64,
    /// The mechanisms in force for it now.
    pub active: Vec<Mechanism>,
    /// Mechanisms that may be used and are of no use for it, and why.
    pub inactive: Vec<InactiveReason>,
    /// Why nothing is done for it, if nothing is.
    pub inactive_reason: Option<String>,
    /// Bytes received since it is known; of an upload, those that the server has acknowledged.
    pub received_bytes: u64,
    /// What it brought in the last seconds.
    pub goodput_mbps: f64,
    /// What plain TCP would bring, by the model; none while there is no loss.
    pub plain_tcp_mbps: Option<f64>,
    /// The one divided by the other; none as long as nothing was done for it.
    pub gain: Option<f64>,
    /// Holes seen.
    pub holes: u64,
    /// Of these, called random.
    pub random_losses: u64,
    /// Reductions that the sender was told to take back.
    pub undone_reductions: u64,
    /// Bytes acknowledged before they were here.
    pub early_acked_bytes: u64,
    /// Of these, still missing.
    pub missing_bytes: u64,
    /// Pure ACKs of the own stack; of an upload, of the server.
    pub acks: u64,
    /// Of these, sent over another link.
    pub offloaded: u64,
    /// Of these, left out because a newer one says all of them.
    pub replaced: u64,
    /// Restarts after a blackout.
    pub restarts: u64,
    /// The connections that were replayed for it; null: there was none.
    #[serde(default)]
    pub mirrored_conn: Option<MirroredConn>,
    /// How long packets wait on their way, beyond the least seen.
    pub queueing_delay_ms: Option<f64>,
    /// The round trip as seen from here.
    pub rtt_ms: Option<f64>,
}

/// The connections that were replayed for a flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MirroredConn {
    /// Whether there is one now.
    pub open: bool,
    /// Holes that were filled from it.
    pub filled_holes: u64,
    /// Their bytes.
    pub filled_bytes: u64,
    /// What came over the second link for that, packets' heads included.
    pub received_bytes: u64,
    /// What the server was told to have come, so that it sent on.
    pub skipped_bytes: u64,
    /// Why the last one has ended, unless it has done its work.
    pub failure: Option<String>,
}

/// What the driver has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Packets that waited for a word.
    pub queued: u64,
    /// Of these, of those that came: acknowledgements of uploads.
    #[serde(default)]
    pub incoming: u64,
    /// How often some of them were taken at once.
    #[serde(default)]
    pub batches: u64,
    /// Of those that waited, changed.
    pub rewritten: u64,
    /// Of those that waited, not let on.
    pub suppressed: u64,
    /// Packets of our own, over a link.
    pub sent: u64,
    /// Packets for the own stack.
    pub delivered: u64,
    /// Packets of either kind that could not be sent.
    pub failed: u64,
    /// Packets seen as they passed.
    pub captured: u64,
    /// Packets that passed and had no room to be seen.
    pub capture_drops: u64,
    /// Questions to gateways.
    pub probes: u64,
    /// Their answers.
    pub probe_replies: u64,
    /// Processor time of the packets' thread, in seconds.
    pub cpu_s: f64,
}

impl Link {
    pub(super) fn of(road: &AccelLink, view: Option<&LinkStatus>) -> Self {
        let role = if road.link.0 == 0 { "primary" } else { "secondary" };
        let plain =
            Self { name: road.name.clone(), role: role.to_owned(), gateway: Some(road.gateway), ..Self::default() };
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
