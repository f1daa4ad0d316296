//! What the simulated links carry.

use marline_core::units::DataSize;

use crate::link::Packet;
use crate::tcp::Segment;

/// A packet on a link.
#[derive(Clone, Debug)]
pub(super) enum LinkPayload {
    /// From a server, as a value.
    Segment { flow: usize, segment: Segment },
    /// From the client, as bytes.
    Packet(Vec<u8>),
    /// From the server of a mirrored connection.
    MirroredServer(Vec<u8>),
    /// A piece of a fetched range.
    Piece(Piece),
}

/// A piece of a fetched range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Piece {
    pub(super) fetch: u64,
    /// Its range within the fetch.
    pub(super) range: u32,
    /// Its index in the range.
    pub(super) at: u64,
    /// Its length.
    pub(super) bytes: u64,
}

impl Packet for LinkPayload {
    fn size(&self) -> DataSize {
        match self {
            Self::Segment { segment, .. } => segment.size(),
            Self::Packet(bytes) | Self::MirroredServer(bytes) => bytes.size(),
            Self::Piece(piece) => DataSize::from_bytes(piece.bytes + HEADERS),
        }
    }
}

/// IPv4 and TCP with timestamps.
const HEADERS: u64 = 52;
