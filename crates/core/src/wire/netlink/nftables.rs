//! Generation of the nftables ruleset: a number that grows with each change by any program.
//!
//! Numbers of messages and attributes are those of `linux/netfilter/nf_tables.h`. In this message family integers are
//! in network order.

use super::{Attributes, Message, Request};

/// `NFNL_SUBSYS_NFTABLES << 8`, combined with the kind of message.
const NEW_GENERATION: u16 = (10 << 8) | 15;
const GET_GENERATION: u16 = (10 << 8) | 16;
/// `struct nfgenmsg`.
const FIXED_LEN: usize = 4;
/// `NFTA_GEN_ID`.
const GENERATION_ID: u16 = 1;

/// The request for the generation. The reply is one message for [`generation`].
pub fn generation_request() -> Request {
    Request::new(GET_GENERATION, Request::QUERY, &[0; FIXED_LEN])
}

/// The generation in a reply; `None` for any other message.
pub fn generation(message: &Message<'_>) -> Option<u32> {
    if message.kind != NEW_GENERATION {
        return None;
    }
    let id = Attributes::after(message.body, FIXED_LEN).find(|attribute| attribute.kind == GENERATION_ID)?;
    id.value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::messages;

    #[test]
    fn only_a_generation_message_has_a_generation() {
        // A reply of Linux 6.18: generation 7, process 4242, name `nft`.
        let mut request = Request::new(NEW_GENERATION, 0, &[0; FIXED_LEN]);
        request.attribute(GENERATION_ID, &7_u32.to_be_bytes());
        request.attribute(2, &4242_u32.to_be_bytes());
        let bytes = request.finish(1);
        assert_eq!(generation(&messages(&bytes).next().unwrap()), Some(7));
        let bytes = generation_request().finish(1);
        let message = messages(&bytes).next().unwrap();
        assert_eq!((message.kind, generation(&message)), (0xa10, None));
        let short = Message { kind: NEW_GENERATION, flags: 0, sequence: 0, body: &[0, 0, 0, 0, 6, 0, 1, 0, 7, 7] };
        assert_eq!(generation(&short), None);
    }
}
