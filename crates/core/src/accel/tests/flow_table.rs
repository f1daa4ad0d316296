//! The table of flows: how flows begin and end, who gets a slot, and which flows are left alone.

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

/// A packet of the local stack leaves.
fn send(machine: &mut Accelerator, millis: u64, packet: &[u8]) -> Vec<Output> {
    machine.handle(Instant::from_millis(millis), Input::Outgoing(PacketBytes(packet.to_vec())));
    core::iter::from_fn(|| machine.poll()).collect()
}

fn segment(key: &Key, flags: Flags, seq: u32, ack: u32, options: &[TcpOption<'_>]) -> Vec<u8> {
    let mut list = OptionList::default();
    assert!(options.iter().all(|option| list.push(option)), "they fit");
    let base = NewSegment::data(key, Seq::new(seq), Seq::new(ack), 500, None, &[]);
    NewSegment { flags, options: list, ..base }.emit().unwrap()
}

const TIMESTAMPS: TcpOption<'_> =
    TcpOption::Timestamps(Timestamps { ts_val: TcpTimestamp::new(9), ts_ecr: TcpTimestamp::new(8) });
const MPTCP: TcpOption<'_> = TcpOption::Other { kind: 30, value: &[0, 1] };

/// Whether it is followed for early ACK: the status of a flow that found no slot gives the reason.
fn is_followed(status: &FlowStatus) -> bool {
    !status.inactive.iter().any(|inactive| inactive.reason.contains("too many other flows"))
}

#[test]
fn flows_that_have_ended_free_their_slots() {
    let mut machine = machine();
    let followed = |machine: &Accelerator, port: u16| {
        let flows = machine.flows(Instant::from_millis(1000));
        flows.iter().find(|status| status.flow.source_port == port).is_some_and(is_followed)
    };
    for port in 1..=65 {
        send(&mut machine, 1000, &segment(&key(port, 80), Flags::SYN, 1, 0, &[]));
    }
    assert!(followed(&machine, 64) && !followed(&machine, 65), "64 at a time");
    // A flow that is not HTTP loses its slot with its first bytes.
    let talk = NewSegment::data(&key(7, 80), Seq::new(2), Seq::new(1), 500, None, b"\x16\x03\x01").emit().unwrap();
    send(&mut machine, 1001, &talk);
    send(&mut machine, 1002, &segment(&key(66, 80), Flags::SYN, 1, 0, &[]));
    assert!(followed(&machine, 66));
    // An idle flow loses its slot.
    send(&mut machine, 12_000, &segment(&key(67, 80), Flags::SYN, 1, 0, &[]));
    assert!(followed(&machine, 67));
}

#[test]
fn an_ack_with_an_mptcp_option_leaves_unchanged_and_its_flow_is_left_alone() {
    let (mut machine, key) = (machine(), key(4000, 443));
    send(&mut machine, 1000, &segment(&key, Flags::SYN, 1, 0, &[MPTCP]));
    for n in 0..400 {
        let signed = TcpOption::Other { kind: 19, value: &[0; 16] };
        let option = if n % 2 == 0 { MPTCP } else { signed };
        let packet = segment(&key, Flags::ACK, 2, 1000 + n * 2896, &[TIMESTAMPS, option]);
        let out = send(&mut machine, 1050 + u64::from(n), &packet);
        assert!(
            out.contains(&Output::Forward(PacketBytes(packet))) && !out.contains(&Output::Suppress),
            "{n}: {out:?}"
        );
    }
    let status = machine.flows(Instant::from_millis(1500)).pop().unwrap();
    assert_eq!(status.inactive_reason().as_deref(), Some("a part of an MPTCP connection is left as it is"));
}

#[test]
fn a_server_without_mptcp_makes_the_flow_plain_tcp() {
    let (mut machine, key) = (machine(), key(4000, 443));
    send(&mut machine, 1000, &segment(&key, Flags::SYN, 1, 0, &[MPTCP]));
    send(&mut machine, 1050, &segment(&key, Flags::ACK, 2, 1000, &[TIMESTAMPS]));
    let status = machine.flows(Instant::from_millis(1500)).pop().unwrap();
    assert_eq!(status.inactive_reason(), None);
}

#[test]
fn a_second_connection_between_the_same_ports_is_a_new_flow() {
    let (mut machine, key) = (machine(), key(4000, 443));
    let received =
        |machine: &Accelerator| machine.flows(Instant::from_millis(3000)).pop().unwrap().received.bytes();
    send(&mut machine, 1000, &segment(&key, Flags::SYN, 1, 0, &[]));
    send(&mut machine, 1000, &segment(&key, Flags::SYN, 1, 0, &[]));
    for n in 0..100 {
        send(&mut machine, 1050 + u64::from(n), &segment(&key, Flags::ACK, 2, 1000 + n * 2896, &[TIMESTAMPS]));
    }
    // The SYN-ACK arrives again: the ACK was lost, or the packet is forged.
    let again = segment(&key.reversed(), Flags::SYN | Flags::ACK, 1, 2, &[]);
    machine.handle(Instant::from_millis(1500), Input::Incoming(PacketBytes(again)));
    assert_eq!(received(&machine), 99 * 2896);
    send(&mut machine, 2000, &segment(&key, Flags::SYN, 90_000, 0, &[]));
    send(&mut machine, 2050, &segment(&key, Flags::ACK, 90_001, 1 << 31, &[TIMESTAMPS]));
    assert_eq!(received(&machine), 0);
}

#[test]
fn a_full_table_forgets_idle_flows_and_peers_fill_at_most_half_of_it() {
    let mut machine = machine();
    let flow_key = |n: u16| key(20_000 + n, 80);
    let others = |n: u16| key(20_000 + n, 443).reversed();
    // Peers that open connections take half of the slots.
    for n in 0..6_000 {
        let from_outside = segment(&others(n), Flags::SYN, 1, 0, &[]);
        machine.handle(Instant::from_millis(1000), Input::Incoming(PacketBytes(from_outside)));
    }
    while machine.poll().is_some() {}
    assert_eq!(machine.flows.len(), 5_000);
    assert!(machine.flows.contains_key(&others(4_999)) && !machine.flows.contains_key(&others(5_000)));
    // Flows of the local stack take the rest, and no more.
    for n in 0..6_000 {
        send(&mut machine, 1000, &segment(&flow_key(n), Flags::SYN, 1, 0, &[]));
    }
    assert_eq!(machine.flows.len(), 10_000);
    assert!(machine.flows.contains_key(&flow_key(4_999)) && !machine.flows.contains_key(&flow_key(5_000)));
    // A flow without a slot leaves unchanged.
    let late_ack = segment(&flow_key(5_500), Flags::ACK, 2, 1000, &[TIMESTAMPS]);
    assert!(send(&mut machine, 2000, &late_ack).contains(&Output::Forward(PacketBytes(late_ack))));
    assert!(!machine.flows.contains_key(&flow_key(5_500)));
    // After ten seconds all idle flows are forgotten, but not the active one.
    send(&mut machine, 8000, &segment(&flow_key(7), Flags::ACK, 2, 1000, &[TIMESTAMPS]));
    send(&mut machine, 12_000, &segment(&flow_key(5_500), Flags::SYN, 1, 0, &[]));
    assert_eq!(machine.flows.len(), 2);
    assert!(machine.flows.contains_key(&flow_key(5_500)) && machine.flows.contains_key(&flow_key(7)));
}
