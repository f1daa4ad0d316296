//! Packets of a kernel (Linux 6.18), byte for byte, and what no reading, changing or making may do to them.
//!
//! The client is 10.1.0.1 and fd01::1, the server 10.1.0.2 and fd01::2 with TCP port 5001; of what they sent over a TUN
//! device some segments were lost and one came twice. Those called unfilled were seen by a packet socket on the
//! loopback device. What a kernel does not send is put together by hand where it is needed.

mod changes;
mod made;
mod random;

use alloc::vec::Vec;

use super::sum::tests::slow;
use super::{
    Checksum, Datagram, Echo, Flags, Packet, Pair, Refusal, Segment, Seq, Span, Stamp, TcpOption, protocol,
};

const V4_SYN: &[u8] = include_bytes!("v4-syn.bin");
const V4_SYN_ACK: &[u8] = include_bytes!("v4-syn-ack.bin");
const V4_DATA: &[u8] = include_bytes!("v4-data.bin");
const V4_ACK: &[u8] = include_bytes!("v4-ack.bin");
const V4_DSACK: &[u8] = include_bytes!("v4-dsack.bin");
const V4_SACK3: &[u8] = include_bytes!("v4-sack3.bin");
const V4_SACK4: &[u8] = include_bytes!("v4-sack4.bin");
const V4_FIN: &[u8] = include_bytes!("v4-fin.bin");
const V6_SYN: &[u8] = include_bytes!("v6-syn.bin");
const V6_DATA: &[u8] = include_bytes!("v6-data.bin");
const V6_ACK: &[u8] = include_bytes!("v6-ack.bin");
const V6_SACK: &[u8] = include_bytes!("v6-sack.bin");
const V4_UNFILLED: &[u8] = include_bytes!("v4-unfilled.bin");
const V4_UNFILLED_ACK: &[u8] = include_bytes!("v4-unfilled-ack.bin");
const V6_UNFILLED: &[u8] = include_bytes!("v6-unfilled.bin");
const V4_PING: &[u8] = include_bytes!("v4-ping.bin");
const V4_PONG: &[u8] = include_bytes!("v4-pong.bin");
const V6_PING: &[u8] = include_bytes!("v6-ping.bin");
const V6_PONG: &[u8] = include_bytes!("v6-pong.bin");
const V4_UDP: &[u8] = include_bytes!("v4-udp.bin");
const V6_UDP: &[u8] = include_bytes!("v6-udp.bin");

/// Segments whose checksum is there.
const FILLED: [&[u8]; 12] =
    [V4_SYN, V4_SYN_ACK, V4_DATA, V4_ACK, V4_DSACK, V4_SACK3, V4_SACK4, V4_FIN, V6_SYN, V6_DATA, V6_ACK, V6_SACK];
const UNFILLED: [&[u8]; 3] = [V4_UNFILLED, V4_UNFILLED_ACK, V6_UNFILLED];
const OTHERS: [&[u8]; 6] = [V4_PING, V4_PONG, V6_PING, V6_PONG, V4_UDP, V6_UDP];

fn all() -> impl Iterator<Item = &'static [u8]> {
    FILLED.into_iter().chain(UNFILLED).chain(OTHERS)
}

fn segment(bytes: &[u8]) -> Segment<'_> {
    Segment::parse(bytes).unwrap()
}

fn packet(bytes: &[u8]) -> Packet<'_> {
    Packet::parse(bytes).unwrap()
}

fn blocks(bytes: &[u8]) -> Vec<(u32, u32)> {
    segment(bytes).sacks().blocks().iter().map(|block| (block.start.number(), block.end.number())).collect()
}

/// What the checksum of a packet's body should be, word by word.
fn checksum_by_hand(bytes: &[u8]) -> u16 {
    let packet = packet(bytes);
    let mut summed = Vec::new();
    match packet.pair() {
        Pair::V4(from, to) => summed.extend_from_slice(&[from.octets(), to.octets()].concat()),
        Pair::V6(from, to) => summed.extend_from_slice(&[from.octets(), to.octets()].concat()),
    }
    summed.extend_from_slice(&u32::try_from(packet.body().len()).unwrap().to_be_bytes());
    summed.extend_from_slice(&[0, packet.protocol()]);
    let mut body = packet.body().to_vec();
    let at = match packet.protocol() {
        protocol::TCP => 16,
        protocol::UDP => 6,
        protocol::ICMP => {
            summed.clear();
            2
        }
        _ => 2,
    };
    body[at..at + 2].fill(0);
    summed.extend_from_slice(&body);
    !slow(&summed)
}

/// What stands there instead.
fn checksum_field(bytes: &[u8]) -> u16 {
    let packet = packet(bytes);
    let at = match packet.protocol() {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => 2,
    };
    u16::from_be_bytes([packet.body()[at], packet.body()[at + 1]])
}

/// Makes the checksum of a segment right.
fn fill(bytes: &mut [u8]) {
    let (at, checksum) = (packet(bytes).layout.body + 16, checksum_by_hand(bytes));
    bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn a_syn_offers_what_the_connection_will_use() {
    let syn = segment(V4_SYN);
    assert_eq!((syn.flow().source_port, syn.flow().destination_port), (52676, 5001));
    assert_eq!(syn.flow().pair, Pair::V4([10, 1, 0, 1].into(), [10, 1, 0, 2].into()));
    assert_eq!((syn.flags(), syn.ack(), syn.window()), (Flags::SYN, None, 64480));
    assert_eq!(syn.span(), Span::at(Seq::new(4_216_954_559), 1));
    let options: Vec<_> = syn.options().collect();
    assert!(matches!(
        options[..],
        [
            TcpOption::Mss(1240),
            TcpOption::SackPermitted,
            TcpOption::Timestamps(_),
            TcpOption::Nop,
            TcpOption::WindowScale(10)
        ]
    ));
    let answer = segment(V4_SYN_ACK);
    assert_eq!((answer.flow(), answer.ack()), (syn.flow().reversed(), Some(syn.span().end)));
    assert_eq!(answer.timestamps().unwrap().echo, syn.timestamps().unwrap().value);
    let v6 = segment(V6_SYN);
    assert_eq!(v6.flow().source().ip(), "fd01::1".parse::<core::net::IpAddr>().unwrap());
    assert!(v6.options().any(|option| option == TcpOption::Mss(1220)));
}

#[test]
fn data_takes_its_bytes_and_a_fin_one_more() {
    let data = segment(V4_DATA);
    assert_eq!((data.payload().len(), data.flags()), (88, Flags::ACK | Flags::PSH));
    assert_eq!((data.span(), data.payload_span()), (Span::at(Seq::new(3_179_753_467), 88), data.span()));
    // The end of the 5000 bytes that were sent: each its place modulo 251.
    let sent: Vec<u8> = (4912_u32..5000).map(|at| u8::try_from(at % 251).unwrap()).collect();
    assert_eq!((data.payload(), data.flow()), (&sent[..], segment(V4_ACK).flow().reversed()));
    let fin = segment(V4_FIN);
    assert_eq!((fin.span().bytes(), fin.payload_span().bytes()), (1, 0));
    assert_eq!(segment(V6_DATA).payload(), b"3000");
    assert_eq!(segment(V6_UNFILLED).payload(), b"hello");
}

#[test]
fn pure_is_what_only_acknowledges() {
    for (bytes, pure) in [
        (V4_SYN, false),
        (V4_SYN_ACK, false),
        (V4_DATA, false),
        (V4_FIN, false),
        (V6_DATA, false),
        (V4_UNFILLED, false),
        (V4_ACK, true),
        (V4_DSACK, true),
        (V4_SACK3, true),
        (V4_SACK4, true),
        (V6_ACK, true),
        (V6_SACK, true),
        (V4_UNFILLED_ACK, true),
    ] {
        assert_eq!((segment(bytes).is_pure_ack(), segment(bytes).pure_ack().is_some()), (pure, pure));
    }
    // An option that says more than an acknowledgement, here instead of no-operations: it cannot be said otherwise.
    let mut more = V4_SACK4.to_vec();
    assert_eq!(more[40..42], [1, 1]);
    more[40..42].copy_from_slice(&[30, 2]);
    assert_eq!((segment(&more).is_pure_ack(), segment(&more).pure_ack()), (true, None));
    let ack = segment(V4_ACK).pure_ack().unwrap();
    assert_eq!(
        (ack.ack, ack.window, ack.right_edge(10)),
        (Seq::new(3_179_753_467), 64, Seq::new(3_179_753_467 + (64 << 10)))
    );
    let stamps = ack.timestamps.unwrap();
    assert_eq!((stamps.value, stamps.echo), (Stamp::new(0xc7d3_da81), Stamp::new(0x78d3_da6c)));
}

#[test]
fn sack_blocks_are_read_up_to_the_fourth() {
    assert_eq!(blocks(V4_ACK), []);
    assert_eq!(
        blocks(V4_SACK3),
        [(0x846f_9f1f, 0x846f_a3eb), (0x846f_9587, 0x846f_9a53), (0x846f_8bef, 0x846f_90bb)]
    );
    assert_eq!(
        blocks(V4_SACK4),
        [
            (0xaf99_6a97, 0xaf99_6f6f),
            (0xaf99_60e7, 0xaf99_65bf),
            (0xaf99_5737, 0xaf99_5c0f),
            (0xaf99_4d87, 0xaf99_525f)
        ]
    );
    assert_eq!(segment(V4_SACK4).timestamps(), None);
    assert_eq!(blocks(V6_SACK).len(), 2);
}

#[test]
fn a_kernel_tells_of_what_came_twice() {
    let ack = segment(V4_DSACK).pure_ack().unwrap();
    assert_eq!(ack.duplicate_span(), Some(Span::new(Seq::new(0xbd87_2663), Seq::new(0xbd87_2b2f))));
    for bytes in [V4_SACK3, V4_SACK4, V6_SACK, V4_ACK] {
        assert_eq!(segment(bytes).pure_ack().unwrap().duplicate_span(), None);
    }
}

#[test]
fn echoes_come_back_with_what_was_sent() {
    for (ping, pong) in [(V4_PING, V4_PONG), (V6_PING, V6_PONG)] {
        let (asked, answer) = (Echo::of(packet(ping)).unwrap(), Echo::of(packet(pong)).unwrap());
        assert_eq!(asked, Echo { is_reply: false, id: 0x1234, sequence: 7, data: b"marline!" });
        assert!(answer.answers(&asked) && packet(pong).pair() == packet(ping).pair().reversed());
    }
}

#[test]
fn datagrams_have_ports_and_data() {
    for bytes in [V4_UDP, V6_UDP] {
        let datagram = Datagram::of(packet(bytes)).unwrap();
        assert_eq!((datagram.flow().destination_port, datagram.payload()), (5004, &b"rtp"[..]));
    }
    // UDP's own length is the one that counts, and zero means that no checksum was made: with IPv4 only.
    for (bytes, expected) in [(V4_UDP, Checksum::Absent), (V6_UDP, Checksum::Wrong)] {
        let mut unchecked = bytes.to_vec();
        let at = unchecked.len() - 5;
        unchecked[at..at + 2].fill(0);
        assert_eq!(packet(&unchecked).checksum(), expected);
    }
    let mut longer = V4_UDP.to_vec();
    longer[25] += 1;
    assert_eq!(Datagram::of(packet(&longer)), Err(Refusal::Short));
    longer[25] = 7;
    assert_eq!(Datagram::of(packet(&longer)), Err(Refusal::Malformed));
    assert_eq!(packet(&longer).checksum(), Checksum::Wrong);
}

#[test]
fn the_kernels_checksums_are_right_and_what_it_leaves_out_is_seen() {
    for bytes in FILLED.into_iter().chain(OTHERS) {
        assert_eq!((packet(bytes).checksum(), packet(bytes).is_header_right()), (Checksum::Right, true));
        assert_eq!(checksum_by_hand(bytes), checksum_field(bytes));
    }
    for bytes in UNFILLED {
        assert_eq!((packet(bytes).checksum(), packet(bytes).is_header_right()), (Checksum::Unfilled, true));
    }
}

#[test]
fn one_wrong_bit_anywhere_is_seen() {
    for bytes in FILLED.into_iter().chain(OTHERS) {
        // From the addresses on: before them a bit can make it another kind of packet, or another length.
        for bit in 12 * 8..bytes.len() * 8 {
            let mut wrong = bytes.to_vec();
            wrong[bit / 8] ^= 0x80 >> (bit % 8);
            let Ok(packet) = Packet::parse(&wrong) else { continue };
            assert!(packet.checksum() != Checksum::Right || !packet.is_header_right(), "bit {bit} of {bytes:?}");
        }
    }
}

#[test]
fn what_is_cut_off_is_refused_or_says_less_but_panics_nowhere() {
    for bytes in all() {
        for end in 0..bytes.len() {
            assert_eq!(Packet::parse(&bytes[..end]), Err(Refusal::Short));
            // The same with a length that admits it.
            let mut cut = bytes[..end].to_vec();
            let v6 = bytes[0] >> 4 == 6;
            let length = u16::try_from(if v6 { end.saturating_sub(40) } else { end }).unwrap();
            let at = if v6 { 4 } else { 2 };
            if let Some(field) = cut.get_mut(at..at + 2) {
                field.copy_from_slice(&length.to_be_bytes());
            }
            random::read_and_change(&cut);
        }
    }
}
