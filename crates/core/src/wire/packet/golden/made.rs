//! What is made here, beside what a kernel makes.

use super::*;
use crate::wire::packet::{Ack, Envelope, Flow, NewSegment, OptionList, Sacks};

#[test]
fn an_acknowledgement_is_the_kernels_own_byte_for_byte() {
    for bytes in [V4_ACK, V4_DSACK, V4_SACK3, V4_SACK4, V6_ACK, V6_SACK] {
        let segment = segment(bytes);
        let mut made = segment.pure_ack().unwrap().emit(&segment.flow(), segment.packet().envelope());
        if made[0] >> 4 == 4 {
            // But for its identification, which is the kernel's count, and the header's checksum with it.
            made[4..6].copy_from_slice(&bytes[4..6]);
            made[10..12].copy_from_slice(&bytes[10..12]);
        }
        assert_eq!(made, bytes);
    }
}

#[test]
fn data_is_the_kernels_own_but_for_its_push() {
    for bytes in [V4_DATA, V6_DATA] {
        let old = segment(bytes);
        let (ack, payload) = (old.ack().unwrap(), old.payload());
        let data = NewSegment::data(&old.flow(), old.seq(), ack, old.window(), old.timestamps(), payload);
        assert_eq!(segment(&data.emit().unwrap()).flags(), Flags::ACK);
        let whole = NewSegment { envelope: old.packet().envelope(), flags: old.flags(), ..data };
        let mut made = whole.emit().unwrap();
        if made[0] >> 4 == 4 {
            made[4..6].copy_from_slice(&bytes[4..6]);
            made[10..12].copy_from_slice(&bytes[10..12]);
        }
        assert_eq!(made, bytes);
    }
}

#[test]
fn a_syn_can_be_made_of_options() {
    let old = segment(V6_SYN);
    let mut options = OptionList::default();
    assert!(old.options().all(|option| options.push(&option)));
    let made = NewSegment {
        flow: old.flow(),
        envelope: old.packet().envelope(),
        seq: old.seq(),
        ack: Seq::default(),
        flags: old.flags(),
        window: old.window(),
        options,
        payload: &[],
    };
    assert_eq!(made.emit().unwrap(), V6_SYN);
}

#[test]
fn echoes_are_the_kernels_own() {
    for bytes in [V6_PING, V6_PONG, V4_PING, V4_PONG] {
        let packet = packet(bytes);
        let made = Echo::of(packet).unwrap().emit(&packet.pair(), packet.envelope()).unwrap();
        assert_eq!(made[packet.bytes().len() - packet.body().len()..], *packet.body());
        assert!(made[0] >> 4 == 4 || made == bytes);
    }
}

#[test]
fn what_is_made_goes_by_the_kernels_defaults() {
    let flow = segment(V4_ACK).flow();
    let bytes = NewSegment::reset(&flow, Seq::new(5), Seq::new(6)).emit().unwrap();
    let reset = segment(&bytes);
    assert_eq!((reset.flags(), reset.span()), (Flags::RST | Flags::ACK, Span::at(Seq::new(5), 0)));
    assert_eq!(reset.packet().envelope(), Envelope { class: 0, hops: 64, label: 0 });
    assert_eq!((&bytes[4..8], reset.is_pure_ack()), (&[0, 0, 0x40, 0][..], false), "not to be fragmented");
}

#[test]
fn a_payload_that_fits_no_packet_has_none() {
    for (bytes, most) in [(V4_ACK, 65535 - 20 - 20), (V6_ACK, 65535 - 20)] {
        let flow: Flow = segment(bytes).flow();
        let payload = alloc::vec![7; most + 1];
        let make = |n: usize| NewSegment::data(&flow, Seq::new(1), Seq::new(2), 3, None, &payload[..n]).emit();
        assert_eq!(make(most + 1), None);
        let longest = make(most).unwrap();
        assert_eq!((segment(&longest).payload().len(), packet(&longest).checksum()), (most, Checksum::Right));
        let echo = |n: usize| Echo { is_reply: false, id: 1, sequence: 1, data: &payload[..n] };
        assert!(echo(most + 1).emit(&flow.pair, Envelope::default()).is_some_and(|bytes| !bytes.is_empty()));
        let longer = alloc::vec![7; most + 13];
        assert_eq!(Echo { data: &longer, ..echo(0) }.emit(&flow.pair, Envelope::default()), None);
    }
}

#[test]
fn a_label_that_is_too_large_loses_its_upper_bits() {
    let ack = Ack { sacks: Sacks::default(), ..segment(V6_SACK).pure_ack().unwrap() };
    let bytes = ack.emit(&segment(V6_SACK).flow(), Envelope { class: 0xff, hops: 1, label: u32::MAX });
    assert_eq!(packet(&bytes).envelope(), Envelope { class: 0xff, hops: 1, label: Envelope::LABEL_MAX });
}
