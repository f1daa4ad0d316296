//! The packet queue of netfilter (NFQUEUE): packets that wait for a word, and the words.
//!
//! In: messages of the kernel. Out: [`Queued`]; and the other way round requests that open a queue, and verdicts.
//!
//! 1. A packet is held by the kernel until its number gets a verdict; each number gets one.
//! 2. One request opens a queue with all that it is to have, because between two requests packets may come.
//! 3. Packets that leave as they came need no word each: one says so of all that wait up to a number ([`pass`]).
//! 4. The kernel completes checksums before it hands a packet over, as long as nobody asks it not to
//!    (`NFQA_CFG_F_GSO`, which is not asked for here).
//!
//! Numbers of messages and attributes are those of `linux/netfilter/nfnetlink_queue.h`; in this family of messages
//! integers are in network order.

use alloc::vec::Vec;

use super::{Attributes, Message, Request, family};

/// `NFNL_SUBSYS_QUEUE << 8`, and the kind of message below it.
const PACKET: u16 = 3 << 8;
const VERDICT: u16 = PACKET | 1;
const CONFIG: u16 = PACKET | 2;
const VERDICT_BATCH: u16 = PACKET | 3;
/// `struct nfgenmsg`.
const FIXED_LEN: usize = 4;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;

/// A packet that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfqPacket<'a> {
    /// The number of its queue.
    pub queue: u16,
    /// Its number in its queue.
    pub id: u32,
    /// All of it, from its IP header on; nothing of one that is longer than what is handed over.
    pub packet: &'a [u8],
}

impl<'a> NfqPacket<'a> {
    /// Reads it; `None` for anything else.
    pub fn parse(message: &Message<'a>) -> Option<Self> {
        const PACKET_HDR: u16 = 1;
        const PAYLOAD: u16 = 10;
        /// The real length of one that was cut.
        const CAP_LEN: u16 = 13;
        if message.kind != PACKET {
            return None;
        }
        // `struct nfgenmsg`: family, version, number of the queue.
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
    /// Opens queue `number` for packets of at most `longest` bytes; `waiting` of them may wait, and what comes beyond that
    /// passes untouched.
    pub fn open_queue(number: u16, copy_range: u32, max_len: u32) -> Self {
        const CMD: u16 = 1;
        const PARAMS: u16 = 2;
        const MAXLEN: u16 = 3;
        const MASK: u16 = 4;
        const FLAGS: u16 = 5;
        const BIND: u8 = 1;
        const COPY_PACKET: u8 = 2;
        /// A full queue lets packets pass instead of dropping them.
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

/// Writes the verdict on packet `id` of queue `number` behind `bytes`: gone (`None`), as it came (an empty packet), or
/// changed into this one.
pub fn verdict(bytes: &mut Vec<u8>, number: u16, id: u32, replacement: Option<&[u8]>) {
    let verdict = if replacement.is_some() { NF_ACCEPT } else { NF_DROP };
    write_verdict(bytes, VERDICT, number, (verdict, id), replacement.filter(|packet| !packet.is_empty()));
}

/// Writes one word behind `bytes` for all packets of queue `number` that wait and whose numbers are not above `id`: they go on as
/// they came.
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

/// `struct nfgenmsg`: family, version, number of the queue.
const fn header(number: u16) -> [u8; FIXED_LEN] {
    let [high, low] = number.to_be_bytes();
    [family::UNSPECIFIED, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::messages;

    /// What the kernel sends for a packet of these bytes.
    fn kernel_packet(id: u32, packet: &[u8]) -> Vec<u8> {
        let mut request = Request::new(PACKET, 0, &header(7));
        let [a, b, c, d] = id.to_be_bytes();
        request.attribute(1, &[a, b, c, d, 8, 0, 3]);
        request.attribute(6, &[0, 0, 0, 2]);
        request.attribute(10, packet);
        request.finish(0)
    }

    #[test]
    fn a_packet_has_its_number_and_its_bytes() {
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
            "one without a number cannot be answered"
        );
    }

    #[test]
    fn verdicts_stand_one_behind_the_other() {
        let mut bytes = Vec::new();
        verdict(&mut bytes, 7, 1, None);
        verdict(&mut bytes, 7, 2, Some(&[]));
        verdict(&mut bytes, 7, 3, Some(b"other"));
        let read = |message: Message<'_>| {
            let attributes = Attributes::after(message.body, FIXED_LEN);
            attributes.map(|attribute| (attribute.kind, attribute.value.to_vec())).collect::<Vec<_>>()
        };
        let all: Vec<_> = messages(&bytes).inspect(|message| assert_eq!(message.kind, 0x301)).map(read).collect();
        let verdict_attribute = |word: u8, id: u8| (2, alloc::vec![0, 0, 0, word, 0, 0, 0, id]);
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
    fn one_word_for_all_that_wait_has_their_last_number() {
        let mut bytes = Vec::new();
        accept_up_to(&mut bytes, 7, 0x0a0b_0c0d);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!((all.len(), all[0].kind), (1, 0x303));
        let attributes: Vec<_> =
            Attributes::after(all[0].body, FIXED_LEN).map(|word| (word.kind, word.value.to_vec())).collect();
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
