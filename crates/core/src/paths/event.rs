//! Inputs and outputs of the path management, and the duties of its driver.
//!
//! In addition to the machine contract, the driver must do the following:
//!
//! 1. Report a connection with [`Input::Opened`] when it can be joined (the kernel's ESTABLISHED event), then each
//!    of its subflows with [`Input::SubflowUp`]. A restarted driver reports existing connections in the same way,
//!    with `adopted` set. Connections that fell back to plain TCP and connections that this host serves are not
//!    reported.
//! 2. Respond to each [`Output::Poll`] soon with one [`Input::Counters`] for each subflow of the connection that
//!    still exists in the kernel; report subflows that are gone as [`Input::SubflowDown`].
//! 3. Respond to each [`Output::Command`] with one [`Input::CommandDone`] when the kernel has responded. For a join
//!    this means only that the SYN was sent; the subflow itself follows as [`Input::SubflowUp`], or never.
//! 4. Report a link that is not in the configuration with [`Input::LinkAdded`] before any other input about it.
//! 5. Execute an [`Output::SetMtu`] before the commands behind it.
//! 6. Report [`Input::InterfaceCounters`] about once per second for each link that is up, with all traffic of its
//!    interface. Without it, other programs' traffic does not count for the state of the radio.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::LinkConfig;
use crate::link::LinkId;
use crate::units::DataSize;

/// Identifies a connection by its local MPTCP token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnId(pub u32);

/// Identifies a subflow by a number that the driver uses only once per run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SubflowId(pub u64);

/// Identifies a command by a number that the machine assigns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommandId(pub u64);

/// Event or result that the driver reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum Input {
    /// A further link exists: an interface that has appeared and may be used. It is down until [`Input::LinkUp`]. A
    /// number that is already known is ignored; a link that disappeared and came back is the same link.
    LinkAdded {
        /// Number of the link and the limits of its use.
        config: LinkConfig,
    },
    /// The link can carry subflows from now on. For a link that is already up: it has got an address of a further
    /// family.
    LinkUp {
        /// The link that is up.
        link: LinkId,
    },
    /// The link can no longer carry subflows: no carrier, no address, or the interface is gone.
    LinkDown {
        /// The link that is down.
        link: LinkId,
    },
    /// Properties of the link's interface. Before the first report, Ethernet with IPv4 is assumed.
    Interface {
        /// The link.
        link: LinkId,
        /// Its MTU, in bytes.
        mtu: u16,
        /// Whether it has an IPv4 address.
        has_ipv4: bool,
    },
    /// Total traffic of the link's interface since the driver first saw it. Values below the previous ones mean
    /// that the counters have restarted at zero.
    InterfaceCounters {
        /// The link.
        link: LinkId,
        /// Bytes received.
        received: DataSize,
        /// Bytes sent.
        sent: DataSize,
    },
    /// A connection exists that can be joined.
    Opened {
        /// The connection.
        conn: ConnId,
        /// Whether it existed before the driver started.
        adopted: bool,
        /// Whether the server accepts further subflows only at announced addresses, not at that of the initial
        /// subflow (flag C of RFC 8684, section 3.1).
        deny_join_id0: bool,
    },
    /// The server has announced an address for further subflows (ADD_ADDR). From now on the driver joins that
    /// address if the first one does not accept joins.
    AddressAnnounced {
        /// The connection.
        conn: ConnId,
    },
    /// The connection is closed.
    Closed {
        /// The connection.
        conn: ConnId,
    },
    /// A subflow was established.
    SubflowUp {
        /// Its connection.
        conn: ConnId,
        /// Its properties.
        subflow: EstablishedSubflow,
    },
    /// A subflow is gone.
    SubflowDown {
        /// Its connection.
        conn: ConnId,
        /// The subflow.
        subflow: SubflowId,
        /// The cause.
        reason: CloseReason,
    },
    /// Counters of one subflow, in response to [`Output::Poll`].
    Counters {
        /// Its connection.
        conn: ConnId,
        /// The subflow.
        subflow: SubflowId,
        /// The kernel's counters.
        counters: Counters,
    },
    /// Result of a command.
    CommandDone {
        /// The command.
        command: CommandId,
        /// Why it failed; `None`: it was executed.
        error: Option<CommandError>,
    },
}

/// A subflow when it is established.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EstablishedSubflow {
    /// Number of the subflow.
    pub id: SubflowId,
    /// The link that it uses; `None`: an unknown link.
    pub link: Option<LinkId>,
    /// Whether it is the connection's initial subflow (address id 0).
    pub initial: bool,
    /// Whether this host has requested it as a backup.
    pub backup: bool,
    /// RTT of its handshake; `None`: no longer known.
    pub rtt: Option<Duration>,
}

/// The kernel's counters of a subflow since its start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Payload bytes received in order.
    pub received: DataSize,
    /// Payload bytes sent and acknowledged.
    pub sent: DataSize,
    /// Bytes in the send queue, sent or not, that are not acknowledged.
    pub outstanding: DataSize,
    /// Smoothed RTT of the data sent by this host; during a download it keeps the value of the handshake.
    pub rtt: Option<Duration>,
    /// RTT as estimated by the receiver.
    pub receiver_rtt: Option<Duration>,
    /// Consecutive retransmission timeouts without a response.
    pub timeouts: u8,
    /// Whether this host has requested it as a backup.
    pub backup: bool,
    /// Whether the peer has requested it as a backup.
    pub peer_backup: bool,
    /// Position in the connection's data after the last byte received over this subflow, by MPTCP's data sequence
    /// numbers (RFC 8684, section 3.3). Data before it may have arrived over other subflows or may still be
    /// missing. `None`: nothing was received, or the kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_seq: Option<DataSize>,
}

/// Cause of a subflow's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// Closed regularly, or destroyed by this host.
    Closed,
    /// Refused or reset by the peer.
    Reset,
    /// Timed out without a response.
    TimedOut,
    /// The network reported that the destination is unreachable, or the link is gone.
    Unreachable,
    /// Any other cause, or an unknown one.
    Other,
}

/// Request to the driver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "out")]
pub enum Output {
    /// Read the counters of all subflows of a connection.
    Poll {
        /// The connection.
        conn: ConnId,
    },
    /// Execute a command.
    Command {
        /// Number for the response.
        id: CommandId,
        /// The connection.
        conn: ConnId,
        /// The command.
        command: Command,
    },
    /// Set the MTU of subflows over a link that are established from now on, for both directions. Must be done
    /// before the commands that follow; there is no response.
    SetMtu {
        /// The link.
        link: LinkId,
        /// MTU in bytes, including the IP header. Values below 1280, which IPv6 does not allow, apply to IPv4 only.
        /// `None`: the interface's own MTU.
        mtu: Option<u16>,
        /// Line for the log; `None`: a step is being tried, or its trial ended without a result.
        reason: Option<alloc::string::String>,
    },
    /// No action, only information for people: why the connection is carried as it is from now on.
    Note {
        /// The connection.
        conn: ConnId,
        /// The reason, in one sentence.
        reason: alloc::string::String,
    },
}

/// Command for the kernel's path manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Command {
    /// Establish a subflow over this link. On a link that already has one, it is a second subflow, which proves
    /// that the path works, or replaces the first one.
    Join {
        /// The link.
        link: LinkId,
        /// Whether it is a backup from the start.
        backup: bool,
    },
    /// Ask the peer (MP_PRIO) to use a subflow, or to use it only as a backup. Repeating the present value sends
    /// the option again.
    SetBackup {
        /// The subflow.
        subflow: SubflowId,
        /// Whether it becomes a backup.
        backup: bool,
    },
    /// Close a subflow; its undelivered data is sent over the others.
    Destroy {
        /// The subflow.
        subflow: SubflowId,
    },
}

/// Why a command failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandError {
    /// The connection does not exist, no longer exists, or is not managed by marline.
    NoConnection,
    /// The subflow does not exist or no longer exists.
    NoSubflow,
    /// The connection cannot be joined yet.
    NotYet,
    /// One direction of the connection is closed. The kernel adds no further subflows, so a closed subflow could
    /// not be replaced. The first command to destroy one is rejected with this error, so that the machine can
    /// decide again.
    HalfClosed,
    /// The link has no address or no route to the server.
    NoAddress,
    /// The link has only addresses of this family, and no address of the server in that family is known.
    NotAnnounced(IpFamily),
    /// The link has only addresses of this family, and the program's socket accepts only the other one.
    SocketFamily(IpFamily),
    /// The kernel denied permission.
    NotPermitted,
    /// Any other error, by the kernel's error number.
    Other(i32),
}

/// A version of the Internet Protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// The family of an address.
    pub const fn of(address: core::net::IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The other family: IPv6 for IPv4, and the reverse.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

impl core::fmt::Display for IpFamily {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}
