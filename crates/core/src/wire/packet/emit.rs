//! Around what is made here: the header of IP, and the checksum of what lies in it.
//!
//! In: addresses, an [`Envelope`], a body. Out: the packet.
//!
//! 1. IPv4 without options, whole and not to be fragmented, so that its identification may be zero (RFC 6864 §4.1);
//!    IPv6 without extension headers.
//! 2. A body that is too long has no packet; [`fits`] is asked before.

use alloc::vec::Vec;

use super::Pair;
use super::checksum::{place, pseudo};
use super::sum::Sum;

/// What of IP's header is neither address nor length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Differentiated services and ECN (RFC 2474, RFC 3168): IPv4's second byte, IPv6's traffic class.
    pub class: u8,
    /// Time to live, hop limit.
    pub hops: u8,
    /// IPv6's flow label (RFC 6437), of 20 bits; 0 in IPv4. Routers may balance by it: a packet that is to take a
    /// flow's way has the flow's label.
    pub label: u32,
}

impl Envelope {
    /// The largest flow label.
    pub const LABEL_MAX: u32 = 0xf_ffff;
}

impl Default for Envelope {
    /// Nothing special, 64 hops (IANA's default since RFC 1700).
    fn default() -> Self {
        Self { class: 0, hops: 64, label: 0 }
    }
}

/// Whether a body of so many bytes fits into a packet between these.
pub(super) fn fits(pair: &Pair, body: usize) -> bool {
    let header = match pair {
        Pair::V4(..) => 20,
        Pair::V6(..) => 0,
    };
    body <= usize::from(u16::MAX) - header
}

/// A packet around a body of so many bytes, which `write` appends with a checksum of zero. It must fit.
pub(super) fn packet(
    pair: &Pair,
    envelope: Envelope,
    protocol: u8,
    length: usize,
    write: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40 + length);
    header(&mut bytes, pair, envelope, protocol, length);
    let start = bytes.len();
    write(&mut bytes);
    let body = bytes.get_mut(start..).unwrap_or_default();
    fill(body, pseudo(pair, protocol, length), place(protocol));
    bytes
}

/// Writes the checksum of `body` into it.
pub(super) fn fill(body: &mut [u8], before: Sum, at: Option<usize>) {
    let Some(at) = at else { return };
    put(body, at, &[0, 0]);
    let checksum = !before.add(body).fold();
    put(body, at, &checksum.to_be_bytes());
}

/// Writes `new` over what stands at `at`, if that is within `bytes`.
pub(super) fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    if let Some(old) = bytes.get_mut(at..at + new.len()) {
        old.copy_from_slice(new);
    }
}

fn header(bytes: &mut Vec<u8>, pair: &Pair, envelope: Envelope, protocol: u8, body: usize) {
    let length = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    match pair {
        Pair::V4(from, to) => {
            bytes.extend_from_slice(&[0x45, envelope.class]);
            bytes.extend_from_slice(&length(20 + body));
            // Identification; do not fragment; the checksum's place.
            bytes.extend_from_slice(&[0, 0, 0x40, 0, envelope.hops, protocol, 0, 0]);
            bytes.extend_from_slice(&from.octets());
            bytes.extend_from_slice(&to.octets());
            fill(bytes, Sum::default(), Some(10));
        }
        Pair::V6(from, to) => {
            let label = envelope.label & Envelope::LABEL_MAX;
            bytes.extend_from_slice(&(6 << 28 | u32::from(envelope.class) << 20 | label).to_be_bytes());
            bytes.extend_from_slice(&length(body));
            bytes.extend_from_slice(&[protocol, envelope.hops]);
            bytes.extend_from_slice(&from.octets());
            bytes.extend_from_slice(&to.octets());
        }
    }
}
