//! Flows that come, end and come again, and those that are nobody's business.

use alloc::vec::Vec;
use core::net::Ipv4Addr;

use super::{CELL, WIFI};
use crate::accel::{Accelerator, Config, FlowStatus, Input, Mechanism, Output, PacketBytes};
use crate::machine::Machine;
use crate::units::Instant;
use crate::wire::packet::{
    AddrPair, Flags, FourTuple as Key, NewSegment, OptionList, Seq, TcpOption, TcpTimestamp, Timestamps,
};

/// The flow from this port to a server's port.
fn key(port: u16, server: u16) -> Key {
    let pair = AddrPair::V4(Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 99, 0, 1));
    Key { addrs: pair, source_port: port, destination_port: server }
}

fn machine() -> Accelerator {
    let mut config = Config::new(WIFI, Some(CELL));
    config.mechanisms.set(Mechanism::EarlyAck, true);
    Accelerator::new(config)
}

/// It leaves, and leaves as it came or otherwise.
fn leave(machine: &mut Accelerator, millis: u64, packet: &[u8]) -> Vec<Output> {
    machine.handle(Instant::from_millis(millis), Input::Outgoing(PacketBytes(packet.to_vec())));
    core::iter::from_fn(|| machine.poll()).collect()
}

fn segment(key: &Key, flags: Flags, seq: u32, ack: u32, options: &[TcpOption<'_>]) -> Vec<u8> {
    let mut list = OptionList::default();
    assert!(options.iter().all(|option| list.push(option)), "they fit");
    let base = NewSegment::data(key, Seq::new(seq), Seq::new(ack), 500, None, &[]);
    NewSegment { flags, options: list, ..base }.emit().unwrap()
}

const STAMPS: TcpOption<'_> =
    TcpOption::Timestamps(Timestamps { ts_val: TcpTimestamp::new(9), ts_ecr: TcpTimestamp::new(8) });
const MPTCP: TcpOption<'_> = TcpOption::Other { kind: 30, value: &[0, 1] };

/// Whether it is looked at for HTTP: a flow that is not says why.
fn is_looked_at(view: &FlowStatus) -> bool {
    !view.inactive.iter().any(|excuse| excuse.reason.contains("as can be followed"))
}

#[test]
fn flows_that_have_ended_give_their_places_to_others() {
    let mut machine = machine();
    let looked_at = |machine: &Accelerator, port: u16| {
        let flows = machine.flows(Instant::from_millis(1000));
        flows.iter().find(|view| view.flow.source_port == port).is_some_and(is_looked_at)
    };
    for port in 1..=65 {
        leave(&mut machine, 1000, &segment(&key(port, 80), Flags::SYN, 1, 0, &[]));
    }
    assert!(looked_at(&machine, 64) && !looked_at(&machine, 65), "64 at a time");
    // What is no HTTP is refused with its first bytes.
    let talk = NewSegment::data(&key(7, 80), Seq::new(2), Seq::new(1), 500, None, b"\x16\x03\x01").emit().unwrap();
    leave(&mut machine, 1001, &talk);
    leave(&mut machine, 1002, &segment(&key(66, 80), Flags::SYN, 1, 0, &[]));
    assert!(looked_at(&machine, 66));
    // The one that rests gives way.
    leave(&mut machine, 12_000, &segment(&key(67, 80), Flags::SYN, 1, 0, &[]));
    assert!(looked_at(&machine, 67));
}

#[test]
fn an_acknowledgement_that_says_more_leaves_as_it_came_and_its_flow_is_left_alone() {
    let (mut machine, key) = (machine(), key(4000, 443));
    leave(&mut machine, 1000, &segment(&key, Flags::SYN, 1, 0, &[MPTCP]));
    for n in 0..400 {
        let signed = TcpOption::Other { kind: 19, value: &[0; 16] };
        let option = if n % 2 == 0 { MPTCP } else { signed };
        let packet = segment(&key, Flags::ACK, 2, 1000 + n * 2896, &[STAMPS, option]);
        let out = leave(&mut machine, 1050 + u64::from(n), &packet);
        assert!(
            out.contains(&Output::Forward(PacketBytes(packet))) && !out.contains(&Output::Suppress),
            "{n}: {out:?}"
        );
    }
    let view = machine.flows(Instant::from_millis(1500)).pop().unwrap();
    assert_eq!(view.inactive_reason().as_deref(), Some("a part of an MPTCP connection is left as it is"));
}

#[test]
fn a_server_that_speaks_plain_tcp_makes_the_flow_a_plain_one() {
    let (mut machine, key) = (machine(), key(4000, 443));
    leave(&mut machine, 1000, &segment(&key, Flags::SYN, 1, 0, &[MPTCP]));
    leave(&mut machine, 1050, &segment(&key, Flags::ACK, 2, 1000, &[STAMPS]));
    let view = machine.flows(Instant::from_millis(1500)).pop().unwrap();
    assert_eq!(view.inactive_reason(), None);
}

#[test]
fn a_second_connection_between_the_same_ports_begins_anew() {
    let (mut machine, key) = (machine(), key(4000, 443));
    let received =
        |machine: &Accelerator| machine.flows(Instant::from_millis(3000)).pop().unwrap().received.bytes();
    leave(&mut machine, 1000, &segment(&key, Flags::SYN, 1, 0, &[]));
    leave(&mut machine, 1000, &segment(&key, Flags::SYN, 1, 0, &[]));
    for n in 0..100 {
        leave(&mut machine, 1050 + u64::from(n), &segment(&key, Flags::ACK, 2, 1000 + n * 2896, &[STAMPS]));
    }
    // The server's answer comes once more: it missed the acknowledgement, or somebody forges it.
    let again = segment(&key.reversed(), Flags::SYN | Flags::ACK, 1, 2, &[]);
    machine.handle(Instant::from_millis(1500), Input::Incoming(PacketBytes(again)));
    assert_eq!(received(&machine), 99 * 2896);
    leave(&mut machine, 2000, &segment(&key, Flags::SYN, 90_000, 0, &[]));
    leave(&mut machine, 2050, &segment(&key, Flags::ACK, 90_001, 1 << 31, &[STAMPS]));
    assert_eq!(received(&machine), 0);
}

#[test]
fn a_full_table_makes_place_for_who_moves_and_others_fill_at_most_half_of_it() {
    let mut machine = machine();
    let own = |n: u16| key(20_000 + n, 80);
    let others = |n: u16| key(20_000 + n, 443).reversed();
    // Whoever sends connections from outside takes half of the places.
    for n in 0..6_000 {
        let from_outside = segment(&others(n), Flags::SYN, 1, 0, &[]);
        machine.handle(Instant::from_millis(1000), Input::Incoming(PacketBytes(from_outside)));
    }
    while machine.poll().is_some() {}
    assert_eq!(machine.flows.len(), 5_000);
    assert!(machine.flows.contains_key(&others(4_999)) && !machine.flows.contains_key(&others(5_000)));
    // The own stack's take the rest, and no more.
    for n in 0..6_000 {
        leave(&mut machine, 1000, &segment(&own(n), Flags::SYN, 1, 0, &[]));
    }
    assert_eq!(machine.flows.len(), 10_000);
    assert!(machine.flows.contains_key(&own(4_999)) && !machine.flows.contains_key(&own(5_000)));
    // One that has no place leaves as it came.
    let late = segment(&own(5_500), Flags::ACK, 2, 1000, &[STAMPS]);
    assert!(leave(&mut machine, 2000, &late).contains(&Output::Forward(PacketBytes(late))));
    assert!(!machine.flows.contains_key(&own(5_500)));
    // After ten seconds of silence all give way but the one that moved.
    leave(&mut machine, 8000, &segment(&own(7), Flags::ACK, 2, 1000, &[STAMPS]));
    leave(&mut machine, 12_000, &segment(&own(5_500), Flags::SYN, 1, 0, &[]));
    assert_eq!(machine.flows.len(), 2);
    assert!(machine.flows.contains_key(&own(5_500)) && machine.flows.contains_key(&own(7)));
}
