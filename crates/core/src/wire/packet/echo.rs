//! Echo of ICMP and ICMPv6: what asks a gateway whether it is there.
//!
//! In: a packet, or a message without one, as sockets for it give them. Out: [`Echo`]; and the other way round.
//!
//! 1. RFC 792 for IPv4, RFC 4443 §4 for IPv6: both have an identifier, a sequence number, and data that comes back.
//! 2. A packet is made with its checksum. A message for a socket has one in IPv4; in IPv6 the kernel makes it, which
//!    knows the addresses (RFC 3542 §3.1), and the field is zero.

use alloc::vec::Vec;

use super::emit::{fill, fits, packet};
use super::sum::Sum;
use super::{Envelope, Packet, Pair, Refusal, protocol};

/// A question, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Echo<'a> {
    /// Whether it answers.
    pub is_reply: bool,
    /// Whose question it is.
    pub id: u16,
    /// Which of his it is.
    pub sequence: u16,
    /// What comes back as it went.
    pub data: &'a [u8],
}

impl<'a> Echo<'a> {
    /// Reads a packet's body. Its checksum is [`Packet::checksum`]'s to say.
    ///
    /// # Errors
    /// If it is not an echo.
    pub fn of(packet: Packet<'a>) -> Result<Self, Refusal> {
        let v6 = matches!(packet.pair(), Pair::V6(..));
        Self::of_message(packet.body_of(if v6 { protocol::ICMP_V6 } else { protocol::ICMP })?, v6)
    }

    /// Reads a message without its packet, of ICMPv6 or of ICMP.
    ///
    /// # Errors
    /// If it is not an echo.
    pub fn of_message(message: &'a [u8], v6: bool) -> Result<Self, Refusal> {
        let (&[kind, code, _, _, a, b, c, d], data) = message.split_first_chunk::<8>().ok_or(Refusal::Short)?;
        if code != 0 || (kind != request(v6) && kind != reply(v6)) {
            return Err(Refusal::Kind(kind));
        }
        let (id, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Ok(Self { is_reply: kind == reply(v6), id, sequence, data })
    }

    /// Whether it is the answer to that question.
    pub fn answers(&self, question: &Echo<'_>) -> bool {
        *self == Echo { is_reply: true, ..*question } && !question.is_reply
    }

    /// A message for a socket that adds the header of IP.
    pub fn message(&self, v6: bool) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.data.len());
        self.write(&mut bytes, v6);
        if !v6 {
            fill(&mut bytes, Sum::default(), Some(2));
        }
        bytes
    }

    /// The packet; `None` if the data is too long for one.
    pub fn emit(&self, pair: &Pair, envelope: Envelope) -> Option<Vec<u8>> {
        let v6 = matches!(pair, Pair::V6(..));
        let length = HEADER + self.data.len();
        let of = if v6 { protocol::ICMP_V6 } else { protocol::ICMP };
        fits(pair, length).then(|| packet(pair, envelope, of, length, |bytes| self.write(bytes, v6)))
    }

    fn write(&self, bytes: &mut Vec<u8>, v6: bool) {
        bytes.extend_from_slice(&[if self.is_reply { reply(v6) } else { request(v6) }, 0, 0, 0]);
        bytes.extend_from_slice(&self.id.to_be_bytes());
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        bytes.extend_from_slice(self.data);
    }
}

const HEADER: usize = 8;

const fn request(v6: bool) -> u8 {
    if v6 { 128 } else { 8 }
}

const fn reply(v6: bool) -> u8 {
    if v6 { 129 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: Echo<'_> = Echo { is_reply: false, id: 0x1234, sequence: 7, data: b"marline" };

    #[test]
    fn an_answer_has_all_of_its_question() {
        let pong = Echo { is_reply: true, ..PING };
        assert!(pong.answers(&PING));
        assert!(!PING.answers(&PING) && !PING.answers(&pong) && !pong.answers(&pong));
        assert!(!Echo { sequence: 8, ..pong }.answers(&PING) && !Echo { data: b"Marline", ..pong }.answers(&PING));
    }

    #[test]
    fn a_message_reads_back_in_its_own_family_only() {
        for v6 in [false, true] {
            for echo in [PING, Echo { is_reply: true, ..PING }] {
                let bytes = echo.message(v6);
                assert_eq!(Echo::of_message(&bytes, v6), Ok(echo));
                assert_eq!(Echo::of_message(&bytes, !v6), Err(Refusal::Kind(bytes[0])));
                for end in 0..HEADER {
                    assert_eq!(Echo::of_message(&bytes[..end], v6), Err(Refusal::Short));
                }
            }
        }
    }

    #[test]
    fn other_messages_are_named() {
        assert_eq!(Echo::of_message(&[3, 1, 0, 0, 0, 0, 0, 0], false), Err(Refusal::Kind(3)));
        assert_eq!(Echo::of_message(&[8, 1, 0, 0, 0, 0, 0, 0], false), Err(Refusal::Kind(8)), "a code of its own");
    }
}
