//! What the links of this world carry.

use marline_core::units::DataSize;

use crate::link::Packet;
use crate::tcp::Segment;

/// A packet on a link.
#[derive(Clone, Debug)]
pub(super) enum LinkPayload {
    /// From a server, as a value.
    Segment {
        /// Which flow.
        flow: usize,
        /// What.
        segment: Segment,
    },
    /// From the client, as it left.
    Packet(Vec<u8>),
    /// From a server that the accelerator has called.
    MirroredServer(Vec<u8>),
    /// A piece of a fetched range.
    Piece(Piece),
}

/// A piece of a fetched range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Piece {
    /// Of which fetch.
    pub(super) fetch: u64,
    /// Of which range.
    pub(super) range: u32,
    /// Which, from zero.
    pub(super) at: u64,
    /// How many bytes.
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
