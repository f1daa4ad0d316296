//! Verifies the checksums of a packet.
//!
//! 1. The checksum covers the whole body; for TCP, UDP and ICMPv6 also a pseudo header (RFC 9293 §3.1, RFC 768, RFC
//!    8200 §8.1, RFC 4443 §2.3); for ICMP the body alone (RFC 792).
//! 2. *Partial* is a state of its own. The kernel leaves the sum over the body to the last device (`CHECKSUM_PARTIAL`);
//!    until then the field holds the sum of the pseudo header. Locally sent packets have this state in packet sockets,
//!    in a packet queue that requested large segments (`NFQA_CFG_F_GSO`, marked by `NFQA_SKB_CSUMNOTREADY`), and on a
//!    TUN device that offered checksum offload (`TUN_F_CSUM`, marked by `VIRTIO_NET_HDR_F_NEEDS_CSUM`). In all other
//!    cases the kernel completes the checksum before.
//! 3. One in 65,535 complete checksums looks partial, and vice versa. If the kernel marks the packet, that mark
//!    decides.

use super::inet_checksum::InetSum;
use super::pseudo_header::{checksum_offset, pseudo_header_sum};
use super::{AddrPair, Datagram, Packet, protocol};

/// State of a packet's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checksum {
    /// The checksum is correct.
    Valid,
    /// The checksum covers the pseudo header alone; the sending device completes it.
    Partial,
    /// The checksum is wrong: the packet has been damaged.
    Invalid,
    /// There is no checksum, or none that can be verified: UDP over IPv4 may omit it, other protocols are not parsed.
    Missing,
}

impl Packet<'_> {
    /// Verifies the checksum of the body. Reads the whole body.
    pub fn checksum(&self) -> Checksum {
        let Some(at) = checksum_offset(self.protocol()) else { return Checksum::Missing };
        let mut body = self.body();
        if self.protocol() == protocol::UDP {
            match Datagram::of(*self) {
                Ok(datagram) if datagram.has_no_checksum() && matches!(self.addrs(), AddrPair::V4(..)) => {
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

    /// Whether the checksum of the IPv4 header is correct (RFC 791 §3.1). IPv6 headers have none, so the result is
    /// true.
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
