//! What the driver tells the policy, and what the policy asks of the driver.
//!
//! The driver's duties, beside the machine contract:
//!
//! 1. A connection is told of with [`Input::Opened`] when it can be joined (the kernel's ESTABLISHED event), then each
//!    of its subflows with [`Input::SubflowUp`]. A restarted driver tells of those that run already in the same way,
//!    with `adopted` set. Connections that fell back to plain TCP, and those that this host serves, are not told of.
//! 2. Each [`Output::Look`] is answered by one [`Input::Seen`] for each subflow of the connection that the kernel still
//!    knows, soon; subflows that are gone are told of as [`Input::SubflowDown`].
//! 3. Each [`Output::Do`] is answered by one [`Input::Done`] when the kernel has answered. For a join that means that the
//!    SYN is on its way; the subflow itself follows as [`Input::SubflowUp`], or never.
//! 4. A link that the configuration does not name is told of with [`Input::Link`] before anything else is said of it.
//! 5. An [`Output::Mtu`] is carried out before the commands behind it.
//! 6. [`Input::Traffic`] comes about once a second for each link that is up, and tells of all that passed its interface,
//!    whoever sent it. Without it other programs' traffic does not count for the state of its radio.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::LinkConfig;
use crate::link::LinkId;
use crate::units::DataSize;

/// A connection: its local token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnId(pub u32);

/// A subflow, by a number that the driver gives out and never again in this run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SubflowId(pub u64);

/// A command, by a number that the machine gives out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommandId(pub u64);

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum Input {
    /// There is a further link: an interface that has come and is to be used. It is down until [`Input::LinkUp`]. Nothing
    /// happens for a number that is known already; a link that went and came back is the same one.
    LinkAdded {
        /// Its number, and on what terms it may be used.
        config: LinkConfig,
    },
    /// The link can carry subflows from now on. While it is up: it has an address of a family that it had none of.
    LinkUp {
        /// Which.
        link: LinkId,
    },
    /// It can no longer: no carrier, no address, or gone.
    LinkDown {
        /// Which.
        link: LinkId,
    },
    /// What the link's interface is. Before the first one it is taken for Ethernet with IPv4.
    Interface {
        /// Which link.
        link: LinkId,
        /// Its MTU, in bytes.
        mtu: u16,
        /// Whether it has an address of IPv4.
        has_ipv4: bool,
    },
    /// All that has passed the link's interface since the driver saw it first. Less than before says that its counters began
    /// anew, from zero.
    InterfaceCounters {
        /// Which link.
        link: LinkId,
        /// Bytes that came.
        received: DataSize,
        /// Bytes that went.
        sent: DataSize,
    },
    /// There is a connection that can be joined.
    Opened {
        /// Which.
        conn: ConnId,
        /// It ran before the driver did.
        adopted: bool,
        /// The server lets no further subflow join the address of the first one: only addresses that it announced.
        deny_join_id0: bool,
    },
    /// The server has announced an address of its own that further subflows may join; the driver joins that one from now
    /// on, if the first one is not open to them.
    AddressAnnounced {
        /// Whose server.
        conn: ConnId,
    },
    /// It is over.
    Closed {
        /// Which.
        conn: ConnId,
    },
    /// A subflow carries data, or may.
    SubflowUp {
        /// Whose.
        conn: ConnId,
        /// What it is.
        subflow: EstablishedSubflow,
    },
    /// It is gone.
    SubflowDown {
        /// Whose.
        conn: ConnId,
        /// Which.
        subflow: SubflowId,
        /// Why.
        reason: CloseReason,
    },
    /// The answer to a look.
    Counters {
        /// Whose.
        conn: ConnId,
        /// Which subflow.
        subflow: SubflowId,
        /// What the kernel counts.
        counters: Counters,
    },
    /// The answer to a command.
    CommandDone {
        /// Which.
        command: CommandId,
        /// What came of it.
        error: Option<CommandError>,
    },
}

/// A subflow as it comes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EstablishedSubflow {
    /// Its number.
    pub id: SubflowId,
    /// The link that it goes over; none: one that nobody told of.
    pub link: Option<LinkId>,
    /// Whether it is the connection's first one (address id 0).
    pub initial: bool,
    /// Whether this end has asked for it to be a backup.
    pub backup: bool,
    /// The round trip of its handshake; none: not known any more.
    pub rtt: Option<Duration>,
}

/// What the kernel counts of a subflow, from its beginning on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Bytes of payload that came in order.
    pub received: DataSize,
    /// Bytes of payload that went and were acknowledged.
    pub sent: DataSize,
    /// Bytes that wait to be sent or to be acknowledged.
    pub outstanding: DataSize,
    /// The smoothed round trip of what this end sent; on a download it stays as the handshake left it.
    pub rtt: Option<Duration>,
    /// The receiver's own estimate of the round trip.
    pub receiver_rtt: Option<Duration>,
    /// Retransmission timeouts in a row without an answer.
    pub timeouts: u8,
    /// This end has asked for it to be a backup.
    pub backup: bool,
    /// The other end has asked for it to be a backup.
    pub peer_backup: bool,
    /// How far the connection's data reach behind the last byte that came over it, by MPTCP's data sequence numbers (RFC 8684,
    /// section 3.3): what came before it over other subflows, or is still to come, is included. None: nothing has come, or
    /// the kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_seq: Option<DataSize>,
}

/// Why a subflow is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// It was closed in order, or this end destroyed it.
    Closed,
    /// The other end refused or reset it.
    Reset,
    /// Nothing came back.
    TimedOut,
    /// The network said that it cannot be reached, or the link is gone.
    Unreachable,
    /// Anything else, or the kernel did not say.
    Other,
}

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "out")]
pub enum Output {
    /// Read the counters of all the connection's subflows.
    Poll {
        /// Whose.
        conn: ConnId,
    },
    /// Carry out a command.
    Command {
        /// Its number, for the answer.
        id: CommandId,
        /// Whose subflows.
        conn: ConnId,
        /// What.
        command: Command,
    },
    /// The largest packets that subflows over a link are to send and accept if they begin from now on. To be done before the
    /// commands that follow; there is no answer.
    SetMtu {
        /// Which.
        link: LinkId,
        /// In bytes, with the IP header; what IPv6 does not allow (below 1280) is for IPv4 alone. None: the interface's own.
        mtu: Option<u16>,
        /// A line for the log; none: a step is tried, or its trial ends without a result.
        reason: Option<alloc::string::String>,
    },
    /// Nothing to do: why the connection is carried as it is from now on, for people.
    Note {
        /// Which connection.
        conn: ConnId,
        /// The reason, one sentence.
        reason: alloc::string::String,
    },
}

/// A command to the path manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Command {
    /// Make a subflow over this link, at once as a backup or not. On a link that has one already it is a second one,
    /// which proves that the path works.
    Join {
        /// Over which link.
        link: LinkId,
        /// Whether as a backup.
        backup: bool,
    },
    /// Ask the other end (MP_PRIO) to use a subflow, or to use it only when no other works. Again for one that is asked
    /// already sends the option again.
    SetBackup {
        /// Which.
        subflow: SubflowId,
        /// A backup.
        backup: bool,
    },
    /// End a subflow; what it has not delivered goes over the others.
    Destroy {
        /// Which.
        subflow: SubflowId,
    },
}

/// Why a command was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandError {
    /// There is no such connection (any more), or it is not ours to manage.
    NoConnection,
    /// There is no such subflow (any more).
    NoSubflow,
    /// The connection cannot be joined yet.
    NotYet,
    /// One direction of the connection is closed: the kernel adds no subflow any more, so a subflow that was ended could not be replaced.
    /// The first command to end one is refused with this reason, so that the machine can decide again.
    HalfClosed,
    /// The link has no address, or no way to the server.
    NoAddress,
    /// The link has addresses of this family alone, and no address of the server of that family is known.
    NotAnnounced(IpFamily),
    /// The link has addresses of this family alone, and the program's socket is for the other one alone.
    SocketFamily(IpFamily),
    /// Not permitted.
    NotPermitted,
    /// Anything else, by the kernel's number.
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

    /// IPv6 for IPv4, and the reverse.
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
