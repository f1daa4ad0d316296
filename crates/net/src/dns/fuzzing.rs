//! DNS messages for the fuzz targets: text and bytes in, what was understood out, without the private types.

use std::net::IpAddr;

use super::message::{Family, Reply, question, reply};

/// The question for the addresses of `name`; `v6` asks for AAAA. None: it cannot be asked.
pub fn dns_question(id: u16, name: &str, v6: bool) -> Option<Vec<u8>> {
    question(id, name, family(v6), true)
}

/// What the bytes answer to that question: the addresses, or none where the answer is another one. None: nothing.
pub fn dns_reply(bytes: &[u8], id: u16, name: &str, v6: bool) -> Option<Option<Vec<IpAddr>>> {
    reply(bytes, id, name, family(v6)).map(|reply| match reply {
        Reply::Addresses { addresses, .. } => Some(addresses),
        _ => None,
    })
}

fn family(v6: bool) -> Family {
    if v6 { Family::V6 } else { Family::V4 }
}
