//! Address ids that this host assigns in MPTCP connections.
//!
//! An id is derived from its address, so that a restarted driver arrives at the same ids.

use std::net::IpAddr;

/// Address id for an address that is not the connection's first: the same in every run. RFC 8684 section 3.4.1 has
/// one byte for it.
pub(super) fn default_address_id(address: IpAddr) -> u8 {
    let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME);
    let hash = match address {
        IpAddr::V4(v4) => v4.octets().into_iter().fold(FNV_BASIS, fold),
        IpAddr::V6(v6) => v6.octets().into_iter().fold(FNV_BASIS, fold),
    };
    1 + (hash % 255) as u8
}

/// The id to try after a collision with another address.
pub(super) fn next_address_id(id: u8) -> u8 {
    if id == u8::MAX { 1 } else { id + 1 }
}

/// FNV-1a, 32 bits (RFC 9923): distributes addresses that differ in one bit.
const FNV_BASIS: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;
