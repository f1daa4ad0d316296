//! ICMP and ICMPv6 echo messages, used to check whether a gateway is reachable.
//!
//! An [`IcmpEcho`] is parsed from a packet, or from a message without IP header as ICMP sockets deliver it, and built
//! in both forms.
//!
//! 1. RFC 792 for IPv4, RFC 4443 §4 for IPv6: both have an identifier, a sequence number, and data that is returned.
//! 2. A packet is built with its checksum. A message for a socket has a checksum in IPv4. In IPv6 the field is zero,
//!    because the kernel, which knows the addresses, computes it (RFC 3542 §3.1).

use alloc::vec::Vec;

use super::inet_checksum::InetSum;
use super::ip_builder::{build_packet, fill_checksum, fits_in_packet};
use super::{AddrPair, IpParams, Packet, ParseError, protocol};

/// An echo request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IcmpEcho<'a> {
    /// Whether it is a reply.
    pub is_reply: bool,
    /// Identifier of the sender of the request.
    pub id: u16,
    /// Sequence number of the request.
    pub sequence: u16,
    /// Payload, which a reply returns unchanged.
    pub data: &'a [u8],
}

impl<'a> IcmpEcho<'a> {
    /// Parses the body of a packet. Does not verify the checksum; see [`Packet::checksum`].
    ///
    /// # Errors
    /// If it is not an echo message.
    pub fn of(packet: Packet<'a>) -> Result<Self, ParseError> {
        let v6 = matches!(packet.addrs(), AddrPair::V6(..));
        Self::parse_message(packet.body_of(if v6 { protocol::ICMP_V6 } else { protocol::ICMP })?, v6)
    }

    /// Parses a message without IP header, of ICMPv6 or of ICMP.
    ///
    /// # Errors
    /// If it is not an echo message.
    pub fn parse_message(message: &'a [u8], v6: bool) -> Result<Self, ParseError> {
        let (&[kind, code, _, _, a, b, c, d], data) =
            message.split_first_chunk::<8>().ok_or(ParseError::Truncated)?;
        if code != 0 || (kind != request_type(v6) && kind != reply_type(v6)) {
            return Err(ParseError::WrongIcmpType(kind));
        }
        let (id, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Ok(Self { is_reply: kind == reply_type(v6), id, sequence, data })
    }

    /// Whether it is the reply to that request.
    pub fn is_reply_to(&self, request: &IcmpEcho<'_>) -> bool {
        *self == IcmpEcho { is_reply: true, ..*request } && !request.is_reply
    }

    /// The message for a socket that adds the IP header.
    pub fn emit_message(&self, v6: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + self.data.len());
        self.write(&mut bytes, v6);
        if !v6 {
            fill_checksum(&mut bytes, InetSum::default(), Some(2));
        }
        bytes
    }

    /// The packet; `None` if the data is too long.
    pub fn emit(&self, addrs: &AddrPair, ip_params: IpParams) -> Option<Vec<u8>> {
        let v6 = matches!(addrs, AddrPair::V6(..));
        let length = HEADER_LEN + self.data.len();
        let protocol_number = if v6 { protocol::ICMP_V6 } else { protocol::ICMP };
        fits_in_packet(addrs, length)
            .then(|| build_packet(addrs, ip_params, protocol_number, length, |bytes| self.write(bytes, v6)))
    }

    fn write(&self, bytes: &mut Vec<u8>, v6: bool) {
        bytes.extend_from_slice(&[if self.is_reply { reply_type(v6) } else { request_type(v6) }, 0, 0, 0]);
        bytes.extend_from_slice(&self.id.to_be_bytes());
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        bytes.extend_from_slice(self.data);
    }
}

const HEADER_LEN: usize = 8;

const fn request_type(v6: bool) -> u8 {
    if v6 { 128 } else { 8 }
}

const fn reply_type(v6: bool) -> u8 {
    if v6 { 129 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: IcmpEcho<'_> = IcmpEcho { is_reply: false, id: 0x1234, sequence: 7, data: b"marline" };

    #[test]
    fn a_reply_matches_its_request_completely() {
        let pong = IcmpEcho { is_reply: true, ..PING };
        assert!(pong.is_reply_to(&PING));
        assert!(!PING.is_reply_to(&PING) && !PING.is_reply_to(&pong) && !pong.is_reply_to(&pong));
        assert!(
            !IcmpEcho { sequence: 8, ..pong }.is_reply_to(&PING)
                && !IcmpEcho { data: b"Marline", ..pong }.is_reply_to(&PING)
        );
    }

    #[test]
    fn an_echo_reads_back_in_its_own_family_only() {
        for v6 in [false, true] {
            for echo in [PING, IcmpEcho { is_reply: true, ..PING }] {
                let bytes = echo.emit_message(v6);
                assert_eq!(IcmpEcho::parse_message(&bytes, v6), Ok(echo));
                assert_eq!(IcmpEcho::parse_message(&bytes, !v6), Err(ParseError::WrongIcmpType(bytes[0])));
                for end in 0..HEADER_LEN {
                    assert_eq!(IcmpEcho::parse_message(&bytes[..end], v6), Err(ParseError::Truncated));
                }
            }
        }
    }

    #[test]
    fn other_icmp_messages_are_rejected_with_their_type() {
        assert_eq!(IcmpEcho::parse_message(&[3, 1, 0, 0, 0, 0, 0, 0], false), Err(ParseError::WrongIcmpType(3)));
        assert_eq!(
            IcmpEcho::parse_message(&[8, 1, 0, 0, 0, 0, 0, 0], false),
            Err(ParseError::WrongIcmpType(8)),
            "a code other than zero"
        );
    }
}
