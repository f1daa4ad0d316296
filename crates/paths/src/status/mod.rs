//! Status of `marline paths` as the control socket sends it and `status`, `watch` and `explain` print it.
//!
//! It combines a snapshot of the driver, the policy's state of radios and budgets, and the options of the run
//! ([`RunInfo`]) into JSON that reads back as the same values.
//!
//! 1. Names contain their unit, as everywhere in JSON (`docs/json.md`). `None` means "unknown" or "never", never
//!    zero.
//! 2. Times are ages or durations, not timestamps, because the reader has another clock.
//! 3. The busiest connections come first, so that a truncated list shows those that matter.
//! 4. The reader has the same version or a newer one: missing fields have defaults, and unknown fields are ignored.
//!
//! The driver's own values are not serialized for this: the status is a stable interface for programs, and the
//! driver's values must be free to change.

mod from_snapshot;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use marline_core::link::LinkKind;
use marline_core::paths::{Goal, Policy};
use serde::{Deserialize, Serialize};

use super::{Management, transparent};

/// Options of a run that a status shows.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// The policy that decides on paths.
    pub policy: Policy,
    /// The goal of the policy.
    pub goal: Goal,
    /// Device of the energy model, whose radios stand for the links; none: no model.
    pub energy_model: Option<String>,
    /// Problems found at the start, one sentence each.
    pub notes: Vec<String>,
    /// Counters of the forwarder of plain TCP; none: it does not run.
    pub forwarder: Option<Arc<transparent::ForwarderCounters>>,
}

/// The whole status at one moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// How long it has run.
    pub uptime_s: f64,
    /// Management mode: `userspace` (each connection separately), `kernel-pm` (all together) or `dry-run` (none).
    pub mode: String,
    /// The policy that decides on paths.
    pub policy: Policy,
    /// The goal of the policy.
    pub goal: Goal,
    /// Device of the energy model, whose radios stand for the links; none: no model.
    pub energy_model: Option<String>,
    /// Energy of that device's radios since the start, for all traffic of the links; none: the model has none of the
    /// radios.
    pub energy_j: Option<f64>,
    /// The links of the run, in the order of their ids.
    pub links: Vec<Link>,
    /// Numbers of connections and commands.
    pub counts: StatusCounts,
    /// Forwarding of plain TCP of this host's programs; none: it is off.
    #[serde(default)]
    pub forwarder: Option<ForwarderStatus>,
    /// The connections, the busiest first, up to the requested number.
    pub connections: Vec<Connection>,
    /// Present problems, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Numbers of connections and commands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusCounts {
    /// Managed connections, separately or all together.
    pub managed: u64,
    /// Connections that receive data now.
    pub active: u64,
    /// Open connections that existed before the daemon started.
    pub adopted: u64,
    /// Unmanaged MPTCP connections: opened before the switch of the path manager, or only observed.
    pub unmanaged: u64,
    /// Connections since the start that requested MPTCP and fell back to plain TCP, because the server or a middlebox
    /// does not support it.
    pub fallen_back: u64,
    /// Sockets that requested MPTCP and are plain TCP, at the last dump of all open sockets.
    pub plain_now: u64,
    /// Commands that the kernel executed.
    pub commands: u64,
    /// Commands that failed: the kernel refused them, or the link has no suitable address.
    pub refused: u64,
    /// Number of resynchronizations after lost kernel events.
    pub resyncs: u64,
}

/// Forwarding of plain TCP of this host's programs as MPTCP (`--transparent`), since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ForwarderStatus {
    /// Connections that are open now.
    pub open: u64,
    /// Connections whose server uses MPTCP.
    pub mptcp: u64,
    /// Connections without MPTCP, because the server or a middlebox does not support it.
    pub fallen_back: u64,
    /// Connections whose server could not be reached.
    pub failed: u64,
    /// Forwarded bytes in both directions.
    pub bytes: u64,
}

impl ForwarderStatus {
    fn from_counters(counts: &transparent::ForwarderCounters) -> Self {
        Self {
            open: counts.open(),
            mptcp: counts.mptcp(),
            fallen_back: counts.fallen_back(),
            failed: counts.failed(),
            bytes: counts.bytes(),
        }
    }
}

/// Status of one link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Link {
    /// Name of the interface.
    pub name: String,
    /// Assumed access technology.
    pub kind: LinkKind,
    /// Whether its bytes cost money.
    pub metered: bool,
    /// Whether it can carry subflows now.
    pub up: bool,
    /// Whether a liveness probe got no reply and no data has arrived since.
    #[serde(default)]
    pub silent: bool,
    /// Number of subflows that may carry data.
    pub active: u64,
    /// Number of its other subflows, which this host or the peer has made backups.
    pub suspended: u64,
    /// Bytes received over the interface since the start, of all programs.
    pub received_bytes: u64,
    /// Bytes sent over the interface since the start.
    pub sent_bytes: u64,
    /// Receive rate in the last second.
    pub down_mbps: f64,
    /// Used part of its budget, including earlier runs; none: no budget.
    #[serde(default)]
    pub budget_used_bytes: Option<u64>,
    /// Remaining part of its budget; none: no budget.
    #[serde(default)]
    pub budget_left_bytes: Option<u64>,
    /// Radio state: `idle`, `promotion`, `active` or `tail`; none: the model has no such radio.
    #[serde(default)]
    pub radio: Option<String>,
    /// Energy of that radio from the start until now, for all traffic of the link.
    #[serde(default)]
    pub energy_j: Option<f64>,
}

/// Status of one connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// Its local token, in hexadecimal, as used by `explain` and `ss -M`.
    #[serde(with = "hexadecimal")]
    pub token: u32,
    /// The address and port of the server.
    pub server: Option<SocketAddr>,
    /// Time since the daemon first saw it.
    pub age_s: f64,
    /// Whether it existed before the daemon started.
    pub adopted: bool,
    /// Management: `userspace`, `kernel_pm` (together with all others), `predates_switch` (unmanaged: opened before the
    /// path manager was switched) or `dry_run`.
    pub management: Management,
    /// Bytes that its program received, each counted once if the kernel reports that; otherwise the sum of its subflows.
    pub received_bytes: u64,
    /// Bytes that its program sent.
    pub sent_bytes: u64,
    /// Present receive rate.
    pub down_mbps: f64,
    /// State in short: `waiting`, `idle`, or the names of the links that carry it; empty before a decision.
    #[serde(default)]
    pub state: String,
    /// The policy's reason for its use of links; empty before the first decision.
    pub reason: String,
    /// Its subflows.
    pub subflows: Vec<Subflow>,
}

/// Status of one subflow.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Subflow {
    /// Its link; none: its interface is no link of the run.
    pub link: Option<String>,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Whether it is the first subflow of its connection.
    pub initial: bool,
    /// Whether it may carry data.
    pub state: SubflowState,
    /// Received bytes.
    pub received_bytes: u64,
    /// Sent bytes.
    pub sent_bytes: u64,
    /// Present receive rate; none: fewer than two recent samples.
    pub down_mbps: Option<f64>,
    /// RTT; the receiver's estimate if there is one.
    pub rtt_ms: Option<f64>,
}

/// Whether a subflow may carry data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubflowState {
    /// It may carry data: neither side has made it a backup.
    Active,
    /// It was made a backup and still receives data: bytes in flight, or the MP_PRIO option was lost.
    Draining,
    /// It is a backup.
    Suspended,
    /// The peer has made it a backup.
    PeerBackup,
}

impl SubflowState {
    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Suspended => "suspended",
            Self::PeerBackup => "peer's backup",
        }
    }
}

/// A decision or action on a connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// Age of the decision.
    pub age_s: f64,
    /// Description in one line.
    pub text: String,
}

/// The newest decisions about one connection, oldest first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Its present status.
    pub connection: Connection,
    /// The decisions; the driver keeps a few dozen.
    pub decisions: Vec<Decision>,
}

/// A token as eight hexadecimal digits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(token: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{token:08x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        u32::from_str_radix(&String::deserialize(deserializer)?, 16).map_err(D::Error::custom)
    }
}
