//! Snapshot of a run as plain values: the content of `marline paths status`, `watch` and `explain`.
//!
//! Sizes and times keep their types; `serde` represents them as bytes and nanoseconds.

use std::net::SocketAddr;
use std::time::Duration;

use marline_core::link::{LinkId, LinkKind};
use marline_core::paths::{ConnId, Counters, SubflowId};
use marline_core::units::{Bitrate, DataSize, Instant};
use serde::{Deserialize, Serialize};

/// State of a run at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time since the start of the driver.
    pub at: Instant,
    /// `userspace`, `kernel-pm` or `dry-run`.
    pub mode: String,
    /// The links, in the order of their ids.
    pub links: Vec<LinkState>,
    /// All known connections, ordered by token.
    pub connections: Vec<Connection>,
    /// Counters since the start.
    pub totals: Totals,
    /// Problems that changes by other programs cause, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// State of a link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LinkState {
    /// Id of the link.
    pub id: LinkId,
    /// Name of its interface.
    pub name: String,
    /// The access technology.
    pub kind: LinkKind,
    /// Whether it can carry subflows.
    pub up: bool,
    /// Bytes received over its interface since the start of the driver, of all programs.
    pub received: DataSize,
    /// Bytes sent over its interface since the start of the driver.
    pub sent: DataSize,
    /// Receive rate in the last second.
    pub rate: Bitrate,
    /// Used part of its budget, including earlier runs; none: no budget.
    pub budget_used: Option<DataSize>,
    /// Number of its subflows.
    pub subflows: u32,
}

/// State of a connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// Local token.
    pub id: ConnId,
    /// Server address and port of the first subflow, even after that has ended. The driver always sets it.
    pub server: Option<SocketAddr>,
    /// Whether it existed before the driver started.
    pub adopted: bool,
    /// Whether and how it is managed.
    pub management: Management,
    /// Time at which the driver first saw it.
    pub since: Instant,
    /// The policy's reason for its use of links; empty before the first decision.
    pub reason: String,
    /// Bytes that its program received, by MPTCP's own count, each byte once. If that is unknown, the sum over
    /// present and former subflows, in which retransmitted bytes may count twice.
    pub received: DataSize,
    /// Bytes that its program sent, counted in the same way.
    pub sent: DataSize,
    /// Its present subflows.
    pub subflows: Vec<SubflowState>,
}

/// Whether and how a connection is managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Management {
    /// Commands to the userspace path manager.
    Userspace,
    /// Not managed: its socket is older than the switch of the path manager and keeps the kernel's own.
    PredatesSwitch,
    /// Together with all others, through endpoints of the kernel's own path manager.
    KernelPm,
    /// Only observed: `--dry-run`.
    DryRun,
}

impl Management {
    /// Whether it is managed, separately or together with others.
    pub const fn is_managed(self) -> bool {
        matches!(self, Self::Userspace | Self::KernelPm)
    }
}

/// State of a subflow.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SubflowState {
    /// Id of the subflow.
    pub id: SubflowId,
    /// Its link; none: its interface is no link of the run.
    pub link: Option<LinkId>,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Whether it is the first subflow of its connection.
    pub initial: bool,
    /// The last counters.
    pub counters: Counters,
    /// Receive rate between the last two samples; none: fewer than two samples, or they are too old.
    pub rate: Option<Bitrate>,
    /// Age of `counters`.
    pub age: Option<Duration>,
}

/// A decision or action on a connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// Time of the decision.
    pub at: Instant,
    /// Description in one line.
    pub text: String,
}

/// Counters since the start of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Opened connections.
    pub opened: u64,
    /// Number of opened connections that existed before the driver started.
    pub adopted: u64,
    /// Closed connections.
    pub closed: u64,
    /// Open connections that cannot be managed.
    pub unmanaged: u64,
    /// Connections that requested MPTCP and fell back to plain TCP, in this network namespace, since the start of the
    /// driver (`MPCapableFallbackSYNACK`, `MPCapableDataFallback`, `MPFallbackTokenInit`, `DssFallback` and similar
    /// counters of client connections).
    pub fallen_back: u64,
    /// Sockets that requested MPTCP and are plain TCP, at the last dump of all open sockets.
    pub plain_now: u64,
    /// Commands that the kernel executed.
    pub commands: u64,
    /// Commands that failed: the kernel refused them, or the link has no suitable address.
    pub refused: u64,
    /// Number of resynchronizations after lost events.
    pub resyncs: u64,
    /// Queries of subflow sockets.
    pub subflow_polls: u64,
}
