//! Whether the checksums of a packet are right, and what they are over.
//!
//! In: a [`Packet`]. Out: [`Checksum`], of what lies in it.
//!
//! 1. Over the whole body, and with TCP, UDP and ICMPv6 over a pseudo header as well (RFC 9293 §3.1, RFC 768,
//!    RFC 8200 §8.1, RFC 4443 §2.3); with ICMP over the body alone (RFC 792).
//! 2. *Not filled in yet* is a state of its own: the kernel leaves the body's sum to the last device on the way
//!    (`CHECKSUM_PARTIAL`), and until then the field holds the sum of the pseudo header. What was sent on this machine
//!    looks so to packet sockets, to a packet queue that has asked for large segments (`NFQA_CFG_F_GSO`, told by
//!    `NFQA_SKB_CSUMNOTREADY`), and on a TUN device that has offered to do it (`TUN_F_CSUM`, told by
//!    `VIRTIO_NET_HDR_F_NEEDS_CSUM`). Where none of these was asked for, the kernel fills it in before.
//! 3. One in 65,535 filled ones looks unfilled, and the other way round: who has the kernel's word believes that, not
//!    this.

use super::inet_checksum::InetSum;
use super::{AddrPair, Datagram, Packet, protocol};

/// What a checksum says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checksum {
    /// It fits the bytes.
    Valid,
    /// It is that of the pseudo header alone: the rest is left to whoever sends the packet out.
    Partial,
    /// It fits nothing: something has been damaged.
    Invalid,
    /// There is none, or none that is known here: UDP over IPv4 may go without, other protocols are not read.
    Missing,
}

impl Packet<'_> {
    /// Of the body. Reads all of it.
    pub fn checksum(&self) -> Checksum {
        let Some(at) = checksum_offset(self.protocol()) else { return Checksum::Missing };
        let mut body = self.body();
        if self.protocol() == protocol::UDP {
            match Datagram::of(*self) {
                Ok(datagram) if datagram.is_unchecked() && matches!(self.addrs(), AddrPair::V4(..)) => {
                    return Checksum::Missing;
                }
                Ok(datagram) => body = datagram.bytes(),
                Err(_) => return Checksum::Invalid,
            }
        }
        let Some(&[high, low]) = body.get(at..at + 2) else { return Checksum::Invalid };
        let pseudo_header = pseudo_header_sum(&self.addrs(), self.protocol(), body.len());
        if pseudo_header.add(body).fold() == 0xffff {
            Checksum::Valid
        } else if self.protocol() != protocol::ICMP && u16::from_be_bytes([high, low]) == pseudo_header.fold() {
            Checksum::Partial
        } else {
            Checksum::Invalid
        }
    }

    /// Whether the checksum of IPv4's header is right (RFC 791 §3.1). IPv6 has none: nothing to be wrong.
    pub fn has_valid_header_checksum(&self) -> bool {
        match self.addrs() {
            AddrPair::V4(..) => {
                let header = self.bytes().get(..self.offsets.body).unwrap_or(&[]);
                InetSum::default().add(header).fold() == 0xffff
            }
            AddrPair::V6(..) => true,
        }
    }
}

/// Where in a body the checksum is.
pub(super) const fn checksum_offset(protocol_number: u8) -> Option<usize> {
    match protocol_number {
        protocol::TCP => Some(16),
        protocol::UDP => Some(6),
        protocol::ICMP | protocol::ICMP_V6 => Some(2),
        _ => None,
    }
}

/// The sum of what stands before the body for the checksum: nothing for ICMP.
pub(super) fn pseudo_header_sum(addrs: &AddrPair, protocol_number: u8, body: usize) -> InetSum {
    if protocol_number == protocol::ICMP {
        return InetSum::default();
    }
    addrs.inet_sum().add_word(protocol_number.into()).add_word(u32::try_from(body).unwrap_or(u32::MAX))
}
