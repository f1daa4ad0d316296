//! What the accelerator is told, and what it asks for.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::accel::early_ack::fetch::{Fetch, FetchId};
use crate::accel::fast_fetch::pool::ConnId;
use crate::link::LinkId;

/// The bytes of a packet from its IP header on; in a log they stand as hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PacketBytes(pub Vec<u8>);

/// What the driver reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// The own stack sends this over the primary link. It is held: exactly one [`Output::Leave`] or [`Output::Hold`] of the
    /// same drain says what becomes of it.
    Outgoing(PacketBytes),
    /// This came over the primary link for the own stack, and is held likewise: pure ACKs, for what the own stack sends.
    Incoming(PacketBytes),
    /// This packet passed the primary link, either way, and was not held. It may be cut after [`super::SIGHT`] bytes
    /// unless whole ones were asked for.
    Captured {
        /// Its beginning.
        packet: PacketBytes,
        /// How long it really is.
        length: u32,
    },
    /// The answer to [`Output::Call`]: once for each.
    PortReserved {
        /// Which.
        conn: ConnId,
        /// The address and the port here; none: there is none to be had.
        local: Option<SocketAddr>,
        /// The sequence number to begin with, which nobody else can guess (RFC 6528).
        isn: u32,
    },
    /// This has come for the port of a call.
    ConnPacket {
        /// Which.
        conn: ConnId,
        /// The whole packet.
        packet: PacketBytes,
    },
    /// How many packets a link has brought so far: the answer to [`Output::Count`].
    PacketCount {
        /// Which link.
        link: LinkId,
        /// Since it exists.
        packets: u64,
    },
    /// A link's gateway answers [`Output::Ask`].
    ProbeReply {
        /// Which link.
        link: LinkId,
        /// Which question.
        sequence: u16,
    },
    /// A link's carrier came or went.
    Carrier {
        /// Which link.
        link: LinkId,
        /// Whether it is there now.
        is_up: bool,
    },
    /// What became of a part of [`Output::Fetch`]: each of its ranges is answered once.
    Fetched {
        /// Which fetch.
        fetch: FetchId,
        /// Which of its ranges, from zero.
        range: u32,
        /// The bytes; none: they cannot be had.
        bytes: Option<PacketBytes>,
    },
}

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// The packet that was handed in goes on, perhaps changed: over the primary link, or into the own stack.
    Forward(PacketBytes),
    /// The packet that was handed in does not go on. What it says goes later, or in another packet.
    Suppress,
    /// A packet more, over this link, whatever the routes say.
    Send {
        /// Which link.
        link: LinkId,
        /// The packet.
        packet: PacketBytes,
    },
    /// A packet for the own stack, as if it had come.
    Deliver(PacketBytes),
    /// How many packets has this link brought?
    CountPackets {
        /// Which link.
        link: LinkId,
    },
    /// Ask this link's gateway whether it is there.
    Probe {
        /// Which link.
        link: LinkId,
        /// Comes back with the answer.
        sequence: u16,
    },
    /// Show the packets of the primary link that are not held, from now on, or no more.
    Capture(CaptureLevel),
    /// Hold a port of TCP for a connection of the machine's own, over this link and with its address, and show what comes for
    /// it from this server ([`Input::Heard`]). The own stack neither sees nor answers that. What is said in it is sent as
    /// any other packet.
    ReservePort {
        /// Which.
        conn: ConnId,
        /// Which link.
        link: LinkId,
        /// The other end.
        server: SocketAddr,
    },
    /// The port is not needed any more.
    ReleasePort(ConnId),
    /// Get these bytes of a resource.
    Fetch(Fetch),
    /// Give this fetch up: no answer is wanted any more.
    Cancel(FetchId),
}

/// How much of the packets that pass is to be shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureLevel {
    /// Nothing.
    #[default]
    None,
    /// The first [`super::SIGHT`] bytes of each.
    Headers,
    /// All of each.
    Full,
}

/// Why the machine wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// A flow has something to say that it kept.
    Flow,
    /// The second link has room again.
    SendCredit,
    /// A link is to be looked at.
    LinkProbe,
    /// A fetch is late.
    Fetch,
    /// Nothing that passes need be shown any more.
    CaptureEnd,
}

impl fmt::Debug for PacketBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What it says may be a secret, and this goes to logs.
        write!(f, "{} bytes", self.0.len())
    }
}

/// Two digits for each byte.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for PacketBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for PacketBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("a packet: expected pairs of hexadecimal digits");
        let digit = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(wrong());
        }
        let byte = |[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
        pairs.iter().map(byte).collect::<Option<Vec<u8>>>().map(PacketBytes).ok_or_else(wrong)
    }
}
