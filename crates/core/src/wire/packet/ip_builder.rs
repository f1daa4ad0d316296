//! Builds packets: IP header, body, and the checksum of the body.
//!
//! 1. IPv4 without options and with the don't fragment bit, so that the identification may be zero (RFC 6864 §4.1).
//!    IPv6 without extension headers.
//! 2. The body must fit into a packet; callers check this with [`fits_in_packet`] before.

use alloc::vec::Vec;

use super::AddrPair;
use super::inet_checksum::InetSum;
use super::pseudo_header::{checksum_offset, pseudo_header_sum};

/// Fields of an IP header other than addresses and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpParams {
    /// Differentiated services and ECN (RFC 2474, RFC 3168): the second byte in IPv4, the traffic class in IPv6.
    pub traffic_class: u8,
    /// Time to live in IPv4, hop limit in IPv6.
    pub hop_limit: u8,
    /// IPv6 flow label (RFC 6437) of 20 bits; 0 in IPv4. Routers may use it for load balancing, so a packet that must
    /// take the path of a flow needs the label of that flow.
    pub flow_label: u32,
}

impl IpParams {
    /// The largest flow label: 20 bits.
    pub const FLOW_LABEL_MAX: u32 = 0xf_ffff;
}

impl Default for IpParams {
    /// Best effort, 64 hops (IANA's default since RFC 1700), no flow label.
    fn default() -> Self {
        Self { traffic_class: 0, hop_limit: 64, flow_label: 0 }
    }
}

/// Whether a body of this length fits into a packet of this address family.
pub(super) fn fits_in_packet(addrs: &AddrPair, body: usize) -> bool {
    let header = match addrs {
        AddrPair::V4(..) => 20,
        AddrPair::V6(..) => 0,
    };
    body <= usize::from(u16::MAX) - header
}

/// Builds a packet with a body of this length, which `write` appends with a zero checksum. The body must fit.
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

/// Writes the checksum of `body` into `body` at offset `at`.
pub(super) fn fill_checksum(body: &mut [u8], pseudo_header: InetSum, at: Option<usize>) {
    let Some(at) = at else { return };
    overwrite(body, at, &[0, 0]);
    let checksum = !pseudo_header.add(body).fold();
    overwrite(body, at, &checksum.to_be_bytes());
}

/// Overwrites the bytes at `at` with `new`, if that range lies within `bytes`.
pub(super) fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    if let Some(target) = bytes.get_mut(at..at + new.len()) {
        target.copy_from_slice(new);
    }
}

fn write_header(bytes: &mut Vec<u8>, addrs: &AddrPair, ip_params: IpParams, protocol: u8, body: usize) {
    let length = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    match addrs {
        AddrPair::V4(from, to) => {
            bytes.extend_from_slice(&[0x45, ip_params.traffic_class]);
            bytes.extend_from_slice(&length(20 + body));
            // Identification; don't fragment; hop limit, protocol; zero checksum.
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
