//! Entry points of the DNS message code for the fuzz targets, without the private types.

use std::net::IpAddr;

use super::message::{DnsResponse, Family, decode_response, encode_query};

/// Encodes a query for the addresses of `name`; `v6` selects AAAA. `None`: the name is not valid.
pub fn dns_query(id: u16, name: &str, v6: bool) -> Option<Vec<u8>> {
    encode_query(id, name, family(v6), true)
}

/// Decodes the response to that query. `Some(addresses)` or `Some(None)` for another result; `None`: it is not a
/// response to the query.
pub fn dns_reply(bytes: &[u8], id: u16, name: &str, v6: bool) -> Option<Option<Vec<IpAddr>>> {
    decode_response(bytes, id, name, family(v6)).map(|reply| match reply {
        DnsResponse::Addresses { addresses, .. } => Some(addresses),
        _ => None,
    })
}

fn family(v6: bool) -> Family {
    if v6 { Family::V6 } else { Family::V4 }
}
