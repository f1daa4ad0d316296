//! UDP datagrams (RFC 768): ports and payload.

use super::{FourTuple, Packet, ParseError, protocol};

/// A UDP datagram in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    packet: Packet<'a>,
    fixed: [u8; 8],
    bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Parses the body of a packet.
    ///
    /// # Errors
    /// If it is not UDP, or its length does not fit in the packet.
    pub fn of(packet: Packet<'a>) -> Result<Self, ParseError> {
        let body = packet.body_of(protocol::UDP)?;
        let fixed = *body.first_chunk::<8>().ok_or(ParseError::Truncated)?;
        let length = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        if length < fixed.len() {
            return Err(ParseError::Malformed);
        }
        Ok(Self { packet, fixed, bytes: body.get(..length).ok_or(ParseError::Truncated)? })
    }

    /// Addresses and ports.
    pub const fn four_tuple(&self) -> FourTuple {
        let [a, b, c, d, ..] = self.fixed;
        FourTuple {
            addrs: self.packet.addrs(),
            source_port: u16::from_be_bytes([a, b]),
            destination_port: u16::from_be_bytes([c, d]),
        }
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.fixed.len()..).unwrap_or(&[])
    }

    /// Whether the sender omitted the checksum.
    pub const fn has_no_checksum(&self) -> bool {
        self.fixed[6] == 0 && self.fixed[7] == 0
    }

    /// Header and payload.
    pub(super) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}
