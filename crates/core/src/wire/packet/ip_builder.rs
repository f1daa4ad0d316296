//! Around what is made here: the header of IP, and the checksum of what lies in it.
//!
//! In: addresses, an [`Envelope`], a body. Out: the packet.
//!
//! 1. IPv4 without options, whole and not to be fragmented, so that its identification may be zero (RFC 6864 §4.1);
//!    IPv6 without extension headers.
//! 2. A body that is too long has no packet; [`fits`] is asked before.

use alloc::vec::Vec;

use super::AddrPair;
use super::checksum::{checksum_offset, pseudo_header_sum};
use super::inet_checksum::InetSum;

/// What of IP's header is neither address nor length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpParams {
    /// Differentiated services and ECN (RFC 2474, RFC 3168): IPv4's second byte, IPv6's traffic class.
    pub traffic_class: u8,
    /// Time to live, hop limit.
    pub hop_limit: u8,
    /// IPv6's flow label (RFC 6437), of 20 bits; 0 in IPv4. Routers may balance by it: a packet that is to take a
    /// flow's way has the flow's label.
    pub flow_label: u32,
}

impl IpParams {
    /// The largest flow label.
    pub const FLOW_LABEL_MAX: u32 = 0xf_ffff;
}

impl Default for IpParams {
    /// Nothing special, 64 hops (IANA's default since RFC 1700).
    fn default() -> Self {
        Self { traffic_class: 0, hop_limit: 64, flow_label: 0 }
    }
}

/// Whether a body of so many bytes fits into a packet between these.
pub(super) fn fits_in_packet(addrs: &AddrPair, body: usize) -> bool {
    let header = match addrs {
        AddrPair::V4(..) => 20,
        AddrPair::V6(..) => 0,
    };
    body <= usize::from(u16::MAX) - header
}

/// A packet around a body of so many bytes, which `write` appends with a checksum of zero. It must fit.
pub(super) fn build_packet(
    addrs: &AddrPair,
    ip_params: IpParams,
    protocol: u8,
    length: usize,
    write: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40 + length);
    write_header(&mut bytes, addrs, ip_params, protocol, length);
    let start = bytes.len();
    write(&mut bytes);
    let body = bytes.get_mut(start..).unwrap_or_default();
    fill_checksum(body, pseudo_header_sum(addrs, protocol, length), checksum_offset(protocol));
    bytes
}

/// Writes the checksum of `body` into it.
pub(super) fn fill_checksum(body: &mut [u8], pseudo_header: InetSum, at: Option<usize>) {
    let Some(at) = at else { return };
    overwrite(body, at, &[0, 0]);
    let checksum = !pseudo_header.add(body).fold();
    overwrite(body, at, &checksum.to_be_bytes());
}

/// Writes `new` over what stands at `at`, if that is within `bytes`.
pub(super) fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    if let Some(old) = bytes.get_mut(at..at + new.len()) {
        old.copy_from_slice(new);
    }
}

fn write_header(bytes: &mut Vec<u8>, addrs: &AddrPair, ip_params: IpParams, protocol: u8, body: usize) {
    let length = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    match addrs {
        AddrPair::V4(from, to) => {
            bytes.extend_from_slice(&[0x45, ip_params.traffic_class]);
            bytes.extend_from_slice(&length(20 + body));
            // Identification; do not fragment; the checksum's place.
            bytes.extend_from_slice(&[0, 0, 0x40, 0, ip_params.hop_limit, protocol, 0, 0]);
            bytes.extend_from_slice(&from.octets());
            bytes.extend_from_slice(&to.octets());
            fill_checksum(bytes, InetSum::default(), Some(10));
        }
        AddrPair::V6(from, to) => {
            let label = ip_params.flow_label & IpParams::FLOW_LABEL_MAX;
            bytes.extend_from_slice(&(6 << 28 | u32::from(ip_params.traffic_class) << 20 | label).to_be_bytes());
            bytes.extend_from_slice(&length(body));
            bytes.extend_from_slice(&[protocol, ip_params.hop_limit]);
            bytes.extend_from_slice(&from.octets());
            bytes.extend_from_slice(&to.octets());
        }
    }
}
