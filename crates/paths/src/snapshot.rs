//! How everything stands, as plain values: what `marline paths status`, `watch` and `explain` show.
//!
//! Sizes and times keep their types; with `serde` they are bytes and nanoseconds.

use std::net::SocketAddr;
use std::time::Duration;

use marline_core::link::{LinkId, LinkKind};
use marline_core::paths::{ConnId, Counters, SubflowId};
use marline_core::units::{Bitrate, DataSize, Instant};
use serde::{Deserialize, Serialize};

/// Everything at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Since the driver began.
    pub at: Instant,
    /// `userspace`, `kernel-pm` or `dry-run`.
    pub mode: String,
    /// The links, in the order of their numbers.
    pub links: Vec<LinkState>,
    /// All connections that are known, by token.
    pub connections: Vec<Connection>,
    /// What happened so far.
    pub totals: Totals,
    /// What somebody else has changed and that stands in the way of something, a sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LinkState {
    /// Its number.
    pub id: LinkId,
    /// Its interface.
    pub name: String,
    /// The access technology.
    pub kind: LinkKind,
    /// It can carry subflows.
    pub up: bool,
    /// All that came over its interface since the driver began.
    pub received: DataSize,
    /// All that went.
    pub sent: DataSize,
    /// What came in the last second.
    pub rate: Bitrate,
    /// What of its budget was used, by earlier runs as well; none: it has none.
    pub budget_used: Option<DataSize>,
    /// Subflows over it.
    pub subflows: u32,
}

/// A connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// Its token.
    pub id: ConnId,
    /// Its server, as the first subflow reaches it; none: that subflow is gone.
    pub server: Option<SocketAddr>,
    /// It ran before the driver did.
    pub adopted: bool,
    /// Whether its subflows can be told what to do.
    pub management: Management,
    /// Since the driver knows of it.
    pub since: Instant,
    /// Why it is carried as it is; empty before the first decision.
    pub reason: String,
    /// What its program received, by MPTCP's own count, each byte once; where that is not known, what came over all subflows
    /// that it has or had, among it bytes that came over two.
    pub received: DataSize,
    /// What its program sent, in the same way.
    pub sent: DataSize,
    /// Its subflows.
    pub subflows: Vec<SubflowState>,
}

/// Whether a connection's subflows can be told what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Management {
    /// They can.
    Userspace,
    /// Its socket was made before the path manager was switched over, and keeps the kernel's own.
    PredatesSwitch,
    /// With all others alike: the kernel's own path manager and its endpoints.
    KernelPm,
    /// They are only looked at: `--dry-run`.
    DryRun,
}

impl Management {
    /// Whether they are told what to do, by themselves or together.
    pub const fn is_managed(self) -> bool {
        matches!(self, Self::Userspace | Self::KernelPm)
    }
}

/// A subflow.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SubflowState {
    /// Its number.
    pub id: SubflowId,
    /// Its link; none: over an interface that the configuration does not name.
    pub link: Option<LinkId>,
    /// This end.
    pub local: SocketAddr,
    /// The other.
    pub remote: SocketAddr,
    /// The connection's first one.
    pub initial: bool,
    /// As they were seen last.
    pub counters: Counters,
    /// What it received between the last two looks; none: fewer than two, or they are long past.
    pub rate: Option<Bitrate>,
    /// How old `counters` are.
    pub age: Option<Duration>,
}

/// What was decided or done for a connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// When.
    pub at: Instant,
    /// One line.
    pub text: String,
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Connections that opened.
    pub opened: u64,
    /// Of them, those that ran before the driver did.
    pub adopted: u64,
    /// Connections that closed.
    pub closed: u64,
    /// Connections that cannot be told what to do.
    pub unmanaged: u64,
    /// Connections that asked for MPTCP and are plain TCP now, in this network namespace, since the driver began
    /// (`MPCapableFallbackSYNACK`, `MPCapableFallbackACK`, `MPFallbackTokenInit`, `DssFallback` and the like).
    pub fallen_back: u64,
    /// Of the sockets that asked for MPTCP and are open now, those that are plain TCP.
    pub plain_now: u64,
    /// Commands that the kernel carried out.
    pub commands: u64,
    /// Commands that it refused.
    pub refused: u64,
    /// Times that events were lost and everything was read again.
    pub resyncs: u64,
    /// Looks at subflows.
    pub subflow_polls: u64,
}
