//! NFQUEUE, netfilter's packet queue: packets that await a verdict, and the verdicts.
//!
//! Kernel messages parse into [`NfqPacket`]s. Requests open a queue and give verdicts.
//!
//! 1. The kernel holds a packet until its id gets a verdict. Each id gets exactly one.
//! 2. One request opens a queue with all its parameters, because packets may arrive between two requests.
//! 3. Unchanged packets need no verdict of their own: one message accepts all packets up to an id ([`accept_up_to`]).
//! 4. The kernel completes checksums before it passes a packet on, unless `NFQA_CFG_F_GSO` is set, which marline does
//!    not do.
//!
//! Numbers of messages and attributes are those of `linux/netfilter/nfnetlink_queue.h`. In this message family integers
//! are in network order.

use alloc::vec::Vec;

use super::{Attributes, Message, Request, family};

/// `NFNL_SUBSYS_QUEUE << 8`, combined with the kind of message.
const PACKET: u16 = 3 << 8;
const VERDICT: u16 = PACKET | 1;
const CONFIG: u16 = PACKET | 2;
const VERDICT_BATCH: u16 = PACKET | 3;
/// `struct nfgenmsg`.
const FIXED_LEN: usize = 4;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;

/// A queued packet that awaits its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfqPacket<'a> {
    /// Number of its queue.
    pub queue: u16,
    /// Id of the packet in its queue.
    pub id: u32,
    /// The whole packet from its IP header on; empty if it was longer than the copy range and therefore truncated.
    pub packet: &'a [u8],
}

impl<'a> NfqPacket<'a> {
    /// Parses a queued packet; `None` for any other message.
    pub fn parse(message: &Message<'a>) -> Option<Self> {
        const PACKET_HDR: u16 = 1;
        const PAYLOAD: u16 = 10;
        /// Original length of a truncated packet.
        const CAP_LEN: u16 = 13;
        if message.kind != PACKET {
            return None;
        }
        // `struct nfgenmsg`: family, version, queue number.
        let [_, _, high, low] = *message.body.first_chunk()?;
        let (mut id, mut packet, mut is_complete) = (None, None, true);
        for attribute in Attributes::after(message.body, FIXED_LEN) {
            match attribute.kind {
                PACKET_HDR => id = attribute.value.first_chunk().map(|id| u32::from_be_bytes(*id)),
                PAYLOAD => packet = Some(attribute.value),
                CAP_LEN => is_complete = false,
                _ => {}
            }
        }
        let queue = u16::from_be_bytes([high, low]);
        Some(Self { queue, id: id?, packet: packet.filter(|_| is_complete).unwrap_or_default() })
    }
}

impl Request {
    /// Opens queue `number` for packets of at most `copy_range` bytes. At most `max_len` packets are queued; further
    /// ones pass unchanged.
    pub fn open_queue(number: u16, copy_range: u32, max_len: u32) -> Self {
        const CMD: u16 = 1;
        const PARAMS: u16 = 2;
        const MAXLEN: u16 = 3;
        const MASK: u16 = 4;
        const FLAGS: u16 = 5;
        const BIND: u8 = 1;
        const COPY_PACKET: u8 = 2;
        /// A full queue accepts packets instead of dropping them.
        const FAIL_OPEN: u32 = 1;
        let mut request = Self::new(CONFIG, Self::CHANGE, &header(number));
        request.attribute(CMD, &[BIND, 0, 0, 0]);
        let [a, b, c, d] = copy_range.to_be_bytes();
        request.attribute(PARAMS, &[a, b, c, d, COPY_PACKET]);
        request.attribute(MAXLEN, &max_len.to_be_bytes());
        request.attribute(FLAGS, &FAIL_OPEN.to_be_bytes());
        request.attribute(MASK, &FAIL_OPEN.to_be_bytes());
        request
    }
}

/// Appends the verdict on packet `id` of queue `number` to `bytes`: drop it (`None`), accept it unchanged (an empty
/// packet), or replace it by this packet.
pub fn verdict(bytes: &mut Vec<u8>, number: u16, id: u32, replacement: Option<&[u8]>) {
    let verdict = if replacement.is_some() { NF_ACCEPT } else { NF_DROP };
    write_verdict(bytes, VERDICT, number, (verdict, id), replacement.filter(|packet| !packet.is_empty()));
}

/// Appends a message to `bytes` that accepts all packets of queue `number` with ids up to `id`, unchanged.
pub fn accept_up_to(bytes: &mut Vec<u8>, number: u16, id: u32) {
    write_verdict(bytes, VERDICT_BATCH, number, (NF_ACCEPT, id), None);
}

fn write_verdict(
    bytes: &mut Vec<u8>,
    kind: u16,
    number: u16,
    (verdict, id): (u32, u32),
    replacement: Option<&[u8]>,
) {
    const VERDICT_HDR: u16 = 2;
    const PAYLOAD: u16 = 10;
    let [[a, b, c, d], [e, f, g, h]] = [verdict, id].map(u32::to_be_bytes);
    let mut request = Request::new(kind, Request::QUERY, &header(number));
    request.attribute(VERDICT_HDR, &[a, b, c, d, e, f, g, h]);
    if let Some(packet) = replacement {
        request.attribute(PAYLOAD, packet);
    }
    bytes.extend_from_slice(&request.finish(0));
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// `struct nfgenmsg`: family, version, queue number.
const fn header(number: u16) -> [u8; FIXED_LEN] {
    let [high, low] = number.to_be_bytes();
    [family::UNSPECIFIED, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::messages;

    /// The message that the kernel sends for a packet of these bytes.
    fn kernel_packet(id: u32, packet: &[u8]) -> Vec<u8> {
        let mut request = Request::new(PACKET, 0, &header(7));
        let [a, b, c, d] = id.to_be_bytes();
        request.attribute(1, &[a, b, c, d, 8, 0, 3]);
        request.attribute(6, &[0, 0, 0, 2]);
        request.attribute(10, packet);
        request.finish(0)
    }

    #[test]
    fn a_packet_has_its_id_and_its_bytes() {
        let bytes = kernel_packet(0x0102_0304, b"whole");
        let message = messages(&bytes).next().unwrap();
        assert_eq!(NfqPacket::parse(&message), Some(NfqPacket { queue: 7, id: 0x0102_0304, packet: b"whole" }));
        for cut in 0..message.body.len() {
            let _ = NfqPacket::parse(&Message { body: &message.body[..cut], ..message });
        }
        assert_eq!(NfqPacket::parse(&Message { kind: 2, ..message }), None);
        assert_eq!(
            NfqPacket::parse(&Message { body: &[], ..message }),
            None,
            "a packet without an id cannot get a verdict"
        );
    }

    #[test]
    fn verdicts_are_appended_one_after_the_other() {
        let mut bytes = Vec::new();
        verdict(&mut bytes, 7, 1, None);
        verdict(&mut bytes, 7, 2, Some(&[]));
        verdict(&mut bytes, 7, 3, Some(b"other"));
        let read = |message: Message<'_>| {
            let attributes = Attributes::after(message.body, FIXED_LEN);
            attributes.map(|attribute| (attribute.kind, attribute.value.to_vec())).collect::<Vec<_>>()
        };
        let all: Vec<_> = messages(&bytes).inspect(|message| assert_eq!(message.kind, 0x301)).map(read).collect();
        let verdict_attribute = |verdict: u8, id: u8| (2, alloc::vec![0, 0, 0, verdict, 0, 0, 0, id]);
        assert_eq!(
            all,
            [
                alloc::vec![verdict_attribute(0, 1)],
                alloc::vec![verdict_attribute(1, 2)],
                alloc::vec![verdict_attribute(1, 3), (10, b"other".to_vec())]
            ]
        );
    }

    #[test]
    fn a_batch_verdict_has_the_last_accepted_id() {
        let mut bytes = Vec::new();
        accept_up_to(&mut bytes, 7, 0x0a0b_0c0d);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!((all.len(), all[0].kind), (1, 0x303));
        let attributes: Vec<_> = Attributes::after(all[0].body, FIXED_LEN)
            .map(|attribute| (attribute.kind, attribute.value.to_vec()))
            .collect();
        assert_eq!(attributes, [(2, alloc::vec![0, 0, 0, 1, 10, 11, 12, 13])]);
    }

    #[test]
    fn a_queue_is_opened_by_one_message() {
        let bytes = Request::open_queue(0x1234, 2048, 8192).finish(1);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!((all.len(), all[0].kind), (1, 0x302));
        assert_eq!(all[0].body[..4], [0, 0, 0x12, 0x34]);
        let kinds: Vec<u16> = Attributes::after(all[0].body, FIXED_LEN).map(|attribute| attribute.kind).collect();
        assert_eq!(kinds, [1, 2, 3, 5, 4]);
    }
}
