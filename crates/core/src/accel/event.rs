//! Inputs and outputs of the accelerator.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::link::LinkId;
use crate::units::DataSize;

/// The bytes of a packet from its IP header on; hexadecimal in logs.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PacketBytes(pub Vec<u8>);

/// What the driver reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// The local stack sends this packet over the primary link, and the driver holds it: exactly one
    /// [`Output::Forward`] or [`Output::Suppress`] of the same drain decides about it.
    Outgoing(PacketBytes),
    /// This packet came over the primary link for the local stack, and is held likewise: pure ACKs, for what the local
    /// stack sends.
    Incoming(PacketBytes),
    /// This packet passed the primary link, in either direction, and was not held. It may be cut after
    /// [`super::SNAP_LENGTH`] bytes unless full packets were requested.
    Captured {
        /// The captured bytes: the packet, or its first [`super::SNAP_LENGTH`] bytes.
        packet: PacketBytes,
        /// Length of the whole packet in bytes.
        length: u32,
    },
    /// The answer to [`Output::ReservePort`]: once for each.
    PortReserved {
        /// Which connection.
        conn: ConnId,
        /// The local address and port; none: it could not be reserved.
        local: Option<SocketAddr>,
        /// The initial sequence number, which cannot be guessed (RFC 6528).
        isn: u32,
    },
    /// A packet came for a reserved port.
    ConnPacket {
        /// Which connection.
        conn: ConnId,
        /// The whole packet.
        packet: PacketBytes,
    },
    /// How many packets a link has received: the answer to [`Output::CountPackets`].
    PacketCount {
        /// Which link.
        link: LinkId,
        /// The interface's counter of received packets, which begins with the interface.
        packets: u64,
    },
    /// A link's gateway replied to [`Output::Probe`].
    ProbeReply {
        /// Which link.
        link: LinkId,
        /// Number of the probe, from [`Output::Probe`].
        sequence: u16,
    },
    /// A link's carrier was lost or returned.
    Carrier {
        /// Which link.
        link: LinkId,
        /// Whether it has a carrier now.
        is_up: bool,
    },
    /// The result of a range of [`Output::Fetch`]: each range is answered once.
    Fetched {
        /// The fetch of [`Output::Fetch`].
        fetch: FetchId,
        /// Which of its ranges, from zero.
        range: u32,
        /// The bytes; none: they could not be fetched.
        bytes: Option<PacketBytes>,
    },
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Forwards the packet that is held, perhaps rewritten: over the primary link, or to the local stack.
    Forward(PacketBytes),
    /// Drops the packet that is held. Its content is sent later, or in another packet.
    Suppress,
    /// Sends a packet over this link, whatever the routes say.
    Send {
        /// Which link.
        link: LinkId,
        /// The packet.
        packet: PacketBytes,
    },
    /// Gives a packet to the local stack as if it had been received.
    Deliver(PacketBytes),
    /// Reads how many packets this link has received.
    CountPackets {
        /// Which link.
        link: LinkId,
    },
    /// Probes the gateway of this link.
    Probe {
        /// Which link.
        link: LinkId,
        /// Number of the probe, which [`Input::ProbeReply`] repeats.
        sequence: u16,
    },
    /// Captures the packets of the primary link that are not held, from now on, or stops.
    Capture(CaptureLevel),
    /// Reserves a TCP port for a connection of the accelerator's own, over this link and with its address, and captures
    /// what comes for it from this server ([`Input::ConnPacket`]). The local stack neither sees nor answers that.
    /// Packets of the connection are sent like any other.
    ReservePort {
        /// Which connection.
        conn: ConnId,
        /// Which link.
        link: LinkId,
        /// Address and port of the server.
        server: SocketAddr,
    },
    /// The port is not needed any more.
    ReleasePort(ConnId),
    /// Fetches these ranges of a resource.
    Fetch(Fetch),
    /// Gives this fetch up: no result is needed any more.
    Cancel(FetchId),
}

/// Identifies a fetch: counted from one, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FetchId(pub u64);

/// Ranges of a resource to be fetched over another connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Which fetch.
    pub id: FetchId,
    /// Over which link.
    pub link: LinkId,
    /// The server of the flow.
    pub server: SocketAddr,
    /// The request of the application, without fields of ranges, conditions, codings and connections: a request line
    /// and fields, each ended by CR LF, and no empty line. The fetch adds `Range` and `If-Range`.
    pub request: String,
    /// The strong validator that the response must still have (RFC 9110 section 8.8.3), quotes included.
    pub etag: String,
    /// The length of the resource.
    pub length: DataSize,
    /// First byte, and one past the last.
    pub ranges: Vec<(u64, u64)>,
}

impl fmt::Debug for Fetch {
    /// Without the request: it may contain secrets, and this text goes to logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, link, server, length, ranges, .. } = self;
        write!(f, "{id:?} of {ranges:?} in {length:?} from {server} over {link:?}")
    }
}

/// Identifies a connection of the accelerator's own: counted from one, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnId(pub u64);

/// How much of each captured packet is reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureLevel {
    /// No packet is captured.
    #[default]
    None,
    /// The first [`super::SNAP_LENGTH`] bytes.
    Headers,
    /// The whole packet.
    Full,
}

/// Why the machine wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// A flow has a delayed packet or a timer.
    Flow,
    /// A secondary link has capacity again.
    SendCredit,
    /// A link is to be probed.
    LinkProbe,
    /// A fetch has reached its deadline.
    Fetch,
    /// No flow needs captured packets any more, so the capture ends.
    CaptureEnd,
}

impl fmt::Debug for PacketBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content may be secret, and this text goes to logs.
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
        let (pairs, remaining) = text.as_bytes().as_chunks::<2>();
        if !remaining.is_empty() {
            return Err(wrong());
        }
        let byte = |[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
        pairs.iter().map(byte).collect::<Option<Vec<u8>>>().map(PacketBytes).ok_or_else(wrong)
    }
}
