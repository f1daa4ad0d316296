//! How an accelerator that runs stands: the answer of its control socket (`docs/json.md`).
//!
//! In: what the machine says of flows and links, and what the driver has counted. Out: values with names in place of
//! numbers.

use std::time::Duration;

use marline_core::accel::{Excuse, FlowView, LinkView, Mechanism, ReplayView};
use marline_core::units::Instant;
use serde::{Deserialize, Serialize};

use crate::links::Road;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// marline's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// Seconds since its start.
    pub up_s: f64,
    /// Which flows are meant.
    pub meant: String,
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
    pub dark: bool,
    /// Its gateway was asked several times and has never answered: of its blackouts only the carrier tells.
    #[serde(default)]
    pub deaf: bool,
    /// Blackouts so far.
    pub blackouts: u64,
    /// Their time together, in seconds.
    pub dark_s: f64,
    /// The last round trip to its gateway.
    pub rtt_ms: Option<f64>,
    /// What may be sent over it, where that is limited.
    pub up_mbps: Option<f64>,
    /// What it brings, where that is known.
    pub down_mbps: Option<f64>,
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
    pub in_force: Vec<Mechanism>,
    /// Mechanisms that may be used and are of no use for it, and why.
    pub not_in_force: Vec<Excuse>,
    /// Why nothing is done for it, if nothing is.
    pub left_alone: Option<String>,
    /// Bytes received since it is known; of an upload, those that the server has acknowledged.
    pub received_bytes: u64,
    /// What it brought in the last seconds.
    pub goodput_mbps: f64,
    /// What plain TCP would bring, by the model; none while there is no loss.
    pub plain_mbps: Option<f64>,
    /// The one divided by the other; none as long as nothing was done for it.
    pub gain: Option<f64>,
    /// Holes seen.
    pub holes: u64,
    /// Of these, called random.
    pub random: u64,
    /// Reductions that the sender was told to take back.
    pub undone: u64,
    /// Bytes acknowledged before they were here.
    pub hidden_bytes: u64,
    /// Of these, still missing.
    pub missing_bytes: u64,
    /// Pure ACKs of the own stack; of an upload, of the server.
    pub acks: u64,
    /// Of these, sent over another link.
    pub offloaded: u64,
    /// Of these, left out because a newer one says all of them.
    pub replaced: u64,
    /// Restarts after a blackout.
    pub kicks: u64,
    /// The connections that were replayed for it; null: there was none.
    #[serde(default)]
    pub replay: Option<Replay>,
    /// How long packets wait on their way, beyond the least seen.
    pub queue_ms: Option<f64>,
    /// The round trip as seen from here.
    pub rtt_ms: Option<f64>,
}

/// The connections that were replayed for a flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// Whether there is one now.
    pub on: bool,
    /// Holes that were filled from it.
    pub filled: u64,
    /// Their bytes.
    pub got_bytes: u64,
    /// What came over the second link for that, packets' heads included.
    pub came_bytes: u64,
    /// What the server was told to have come, so that it sent on.
    pub passed_bytes: u64,
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
    pub arriving: u64,
    /// How often some of them were taken at once.
    #[serde(default)]
    pub batches: u64,
    /// Of those that waited, changed.
    pub changed: u64,
    /// Of those that waited, not let on.
    pub held: u64,
    /// Packets of our own, over a link.
    pub sent: u64,
    /// Packets for the own stack.
    pub delivered: u64,
    /// Packets of either kind that could not be sent.
    pub failed: u64,
    /// Packets seen as they passed.
    pub seen: u64,
    /// Packets that passed and had no room to be seen.
    pub unseen: u64,
    /// Questions to gateways.
    pub asked: u64,
    /// Their answers.
    pub answered: u64,
    /// Processor time of the packets' thread, in seconds.
    pub cpu_s: f64,
}

impl Link {
    pub(super) fn of(road: &Road, view: Option<&LinkView>) -> Self {
        let role = if road.link.0 == 0 { "primary" } else { "secondary" };
        let plain =
            Self { name: road.name.clone(), role: role.to_owned(), gateway: Some(road.gateway), ..Self::default() };
        let Some(view) = view else { return plain };
        Self {
            dark: view.is_dark,
            deaf: view.is_deaf,
            blackouts: view.blackouts,
            dark_s: view.dark.as_secs_f64(),
            rtt_ms: view.rtt.map(millis),
            up_mbps: view.up.map(|rate| rate.as_mbps_f64()),
            down_mbps: view.down.map(|rate| rate.as_mbps_f64()),
            sent_bytes: view.sent.bytes(),
            fetched_bytes: view.fetched.bytes(),
            ..plain
        }
    }
}

impl Flow {
    pub(super) fn of(view: FlowView, now: Instant) -> Self {
        let goodput = view.goodput.as_mbps_f64();
        let plain = view.plain.map(|rate| rate.as_mbps_f64());
        let gain = plain.filter(|plain| *plain > 0.0 && view.is_helped()).map(|plain| goodput / plain);
        let (local, remote) = (view.flow.source(), view.flow.destination());
        Self {
            local: local.to_string(),
            remote: remote.to_string(),
            direction: if view.is_upload { "up" } else { "down" }.to_owned(),
            age_s: now.since(view.opened).as_secs_f64(),
            left_alone: view.left_alone(),
            in_force: view.in_force,
            not_in_force: view.not_in_force,
            received_bytes: view.received.bytes(),
            goodput_mbps: goodput,
            plain_mbps: plain,
            gain,
            holes: view.holes,
            random: view.random,
            undone: view.undone,
            hidden_bytes: view.hidden.bytes(),
            missing_bytes: view.missing.bytes(),
            acks: view.acks,
            offloaded: view.offloaded,
            replaced: view.replaced,
            kicks: view.kicks,
            replay: view.replay.map(Replay::of),
            queue_ms: view.queue.map(millis),
            rtt_ms: view.rtt.map(millis),
        }
    }
}

impl Replay {
    fn of(view: ReplayView) -> Self {
        Self {
            on: view.is_on,
            filled: view.filled,
            got_bytes: view.got.bytes(),
            came_bytes: view.came.bytes(),
            passed_bytes: view.passed.bytes(),
            failure: view.failure,
        }
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
