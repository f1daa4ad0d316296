//! Messages that this project exchanged with a kernel (Linux 6.18), byte for byte: what was sent was carried out, what
//! came is what `strace` saw. And what no damage to them may do.
//!
//! The client has 10.1.0.2 and 10.2.0.2, the server 10.9.0.1 port 5001; the second interface is number 3.

use alloc::vec::Vec;
use core::net::SocketAddr;

use proptest::prelude::*;

use super::diag::{self, Socket, state};
use super::mptcp::{Endpoint, Event, Limits, NewSubflow, Path, Tuple};
use super::{Ack, Address, Family, Link, Message, Request, Route, messages};

/// The number that this kernel had given to the family.
const FAMILY: u16 = 28;

const REFUSED: &[u8] = include_bytes!("refused22.bin");
const FOUND: &[u8] = include_bytes!("family.bin");
const ESTABLISHED: &[u8] = include_bytes!("established.bin");
const DENIES: &[u8] = include_bytes!("established-deny.bin");
const JOINED: &[u8] = include_bytes!("subflow-established.bin");
const LEFT: &[u8] = include_bytes!("subflow-closed.bin");
const ANNOUNCED: &[u8] = include_bytes!("announced.bin");
const SUBFLOW: &[u8] = include_bytes!("subflow.bin");
const CONNECTION: &[u8] = include_bytes!("connection.bin");
const CREATE: &[u8] = include_bytes!("create.bin");
const DESTROY: &[u8] = include_bytes!("destroy.bin");
const SET_FLAGS: &[u8] = include_bytes!("set-flags.bin");

const ALL: [&[u8]; 12] =
    [REFUSED, FOUND, ESTABLISHED, DENIES, JOINED, LEFT, ANNOUNCED, SUBFLOW, CONNECTION, CREATE, DESTROY, SET_FLAGS];

fn one(bytes: &[u8]) -> Message<'_> {
    messages(bytes).next().unwrap()
}

fn event(bytes: &[u8]) -> Event {
    Event::parse(&one(bytes), FAMILY).unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The bytes of a request, numbered like the recorded ones.
fn numbered(request: Request, like: &[u8]) -> Vec<u8> {
    request.finish(one(like).sequence)
}

#[test]
fn the_family_has_its_number_and_its_groups() {
    let family = Family::parse(&one(FOUND)).unwrap();
    assert_eq!((family.id, family.name.as_str(), family.version), (FAMILY, "mptcp_pm", 1));
    assert_eq!((family.group("mptcp_pm_cmds"), family.group("mptcp_pm_events")), (Some(8), Some(9)));
    assert_eq!(family.group("another"), None);
}

#[test]
fn a_refusal_has_the_kernels_words() {
    let ack = Ack::parse(&one(REFUSED)).unwrap();
    assert_eq!((ack.error, ack.text.as_str()), (22, "missing local port"));
}

#[test]
fn a_connection_says_both_its_ends_and_what_the_server_denies() {
    let path = Path {
        token: 0xa837_a6a1,
        local: at("10.1.0.2:57898"),
        remote: at("10.9.0.1:5001"),
        local_id: 0,
        remote_id: 0,
        link: 0,
        peer_backup: false,
        error: 0,
        reset: false,
        server_side: false,
        deny_join_id0: false,
    };
    assert_eq!(event(ESTABLISHED), Event::Established(path));
    let Event::Established(denies) = event(DENIES) else { panic!("{:?}", event(DENIES)) };
    assert!(denies.deny_join_id0 && !denies.server_side);
}

#[test]
fn a_subflow_says_its_ids_and_its_interface() {
    let Event::SubflowEstablished(joined) = event(JOINED) else { panic!("{:?}", event(JOINED)) };
    assert_eq!((joined.local, joined.remote), (at("10.2.0.2:56555"), at("10.9.0.1:5001")));
    assert_eq!((joined.local_id, joined.remote_id, joined.link, joined.peer_backup), (7, 0, 3, false));
    let Event::SubflowClosed(left) = event(LEFT) else { panic!("{:?}", event(LEFT)) };
    assert_eq!((left.token, left.error, left.reset), (0x51f6_5be7, 0, false));
}

#[test]
fn an_announcement_names_another_address_of_the_server() {
    let address = "10.9.0.2".parse().unwrap();
    let expected = Event::Announced { token: 0xb8fe_1bfc, id: 1, address, port: Some(5002) };
    assert_eq!(event(ANNOUNCED), expected);
    // Those without an address are checked by hand: REMOVED has a token and an id, CLOSED a token.
    let by_hand = |command: u8, attributes: &[&[u8]]| {
        let mut request = Request::new(FAMILY, 0, &[command, 1, 0, 0]);
        attributes.iter().for_each(|attribute| request.bytes.extend_from_slice(attribute));
        request.finish(0)
    };
    let token: &[u8] = &[8, 0, 1, 0, 0xa1, 0xa6, 0x37, 0xa8];
    let id: &[u8] = &[5, 0, 4, 0, 9, 0, 0, 0];
    assert_eq!(event(&by_hand(7, &[token, id])), Event::Removed { token: 0xa837_a6a1, id: 9 });
    assert_eq!(event(&by_hand(3, &[token])), Event::Closed { token: 0xa837_a6a1 });
    assert_eq!(Event::parse(&one(&by_hand(7, &[token])), FAMILY), None, "an address without its id");
    assert_eq!(event(&by_hand(15, &[])), Event::Listener);
    assert_eq!(Event::parse(&one(&by_hand(99, &[token])), FAMILY), None);
}

#[test]
fn commands_are_what_the_kernel_has_carried_out() {
    let new = NewSubflow {
        token: 0xa837_a6a1,
        local: "10.2.0.2".parse().unwrap(),
        id: 7,
        remote: at("10.9.0.1:5001"),
        link: Some(3),
        backup: true,
    };
    assert_eq!(numbered(new.create(FAMILY), CREATE), CREATE);
    let backup = Tuple { token: 0x51f6_5be7, local: at("10.2.0.2:35471"), remote: at("10.9.0.1:5001") };
    assert_eq!(numbered(backup.prioritise(FAMILY, true), SET_FLAGS), SET_FLAGS);
    assert_eq!(numbered(backup.prioritise(FAMILY, false), SET_FLAGS)[60], 0, "the flags alone differ");
    assert_eq!(one(DESTROY).body[0], 11);
    let mapped = Tuple { local: at("[::ffff:10.2.0.2]:35471"), ..backup };
    assert_eq!(numbered(mapped.prioritise(FAMILY, true), SET_FLAGS), SET_FLAGS, "a mapped address is an IPv4 one");
}

#[test]
fn an_endpoint_and_the_limits_read_back_as_they_are_written() {
    for address in ["10.2.0.2", "fd00::2"] {
        let endpoint = Endpoint::over(address.parse().unwrap(), 3, true);
        let mut bytes = endpoint.add(FAMILY).finish(1);
        // The answer to a dump has the same attributes behind the command of the question.
        bytes[16] = 3;
        assert_eq!(Endpoint::parse(&one(&bytes), FAMILY), Some(endpoint));
    }
    let limits = Limits { subflows: 4, announced: 1 };
    let mut bytes = limits.set(FAMILY).finish(1);
    bytes[16] = 6;
    assert_eq!(Limits::parse(&one(&bytes), FAMILY), Some(limits));
}

#[test]
fn a_socket_says_its_counters_and_its_connection() {
    let socket = Socket::parse(&one(SUBFLOW)).unwrap();
    assert_eq!((socket.local, socket.remote, socket.link), (at("10.2.0.2:35471"), at("10.9.0.1:5001"), 3));
    assert_eq!(socket.state, state::ESTABLISHED);
    let (tcp, part) = (socket.tcp.unwrap(), socket.subflow.unwrap());
    assert!(!tcp.rtt.is_zero() && !tcp.receiver_rtt.is_zero() && tcp.received == 209_696, "{tcp:?}");
    assert_eq!((part.token, part.local_id, part.remote_id), (0x51f6_5be7, Some(7), Some(0)));
    let mapping = part.mapping.unwrap();
    assert!(mapping.data != 0 && mapping.subflow as u64 <= tcp.received, "{mapping:?}");
    assert_eq!(mapping.behind(u64::from(mapping.subflow) + 99), mapping.data + 100);
    assert_eq!(mapping.behind(u64::from(mapping.subflow) - 2), mapping.data - 1, "the mapping is newer");
    assert!(part.is_join_of_ours() && part.is_fully_established() && !part.is_first_of_ours(), "{part:?}");
    assert!(part.is_own_backup() && !part.is_peers_backup(), "{part:?}");
    assert_eq!(Link::parse(&one(SUBFLOW)), None);
}

#[test]
fn an_mptcp_socket_says_its_token_and_whether_it_fell_back() {
    let socket = Socket::parse_mptcp(&one(CONNECTION)).unwrap();
    assert_eq!(socket.local, at("10.1.0.2:57898"));
    let connection = socket.connection.unwrap();
    assert_eq!((connection.token, connection.subflows), (0xa837_a6a1, 1));
    assert!(connection.has_key && !connection.fell_back);
}

#[test]
fn a_question_about_one_socket_has_its_ports_in_network_order_and_any_cookie() {
    let bytes = diag::one(at("10.2.0.2:35471"), at("10.9.0.1:5001"), 3).finish(0);
    let expected: [&[u8]; 9] = [
        &[2, 6, 2, 0, 0, 0, 0, 0],
        &35_471_u16.to_be_bytes(),
        &5001_u16.to_be_bytes(),
        &[10, 2, 0, 2],
        &[0; 12],
        &[10, 9, 0, 1],
        &[0; 12],
        &3_u32.to_ne_bytes(),
        &[0xff; 8],
    ];
    assert_eq!(one(&bytes).body, expected.concat());
}

/// Everything that reads, on everything that is there.
fn read(bytes: &[u8]) {
    for message in messages(bytes) {
        let _ = (Ack::parse(&message), Family::parse(&message), Event::parse(&message, FAMILY));
        let _ = (Socket::parse(&message), Socket::parse_mptcp(&message));
        let _ = (Endpoint::parse(&message, FAMILY), Limits::parse(&message, FAMILY));
        let _ = (Link::parse(&message), Address::parse(&message), Route::parse(&message));
    }
}

#[test]
fn no_message_that_is_cut_off_makes_any_reader_panic() {
    for bytes in ALL {
        for end in 0..bytes.len() {
            read(&bytes[..end]);
            // The same with a length that admits it.
            let mut cut = bytes[..end].to_vec();
            if let Some(length) = cut.get_mut(..4) {
                length.copy_from_slice(&u32::try_from(end).unwrap().to_ne_bytes());
                read(&cut);
            }
        }
    }
}

proptest! {
    #[test]
    fn no_damage_makes_any_reader_panic(
        which in 0..ALL.len(),
        wrong in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = ALL[which].to_vec();
        for (at, value) in wrong {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        read(&bytes);
    }

    #[test]
    fn a_command_names_the_subflow_that_it_is_about(token: u32, local: SocketAddr, remote: SocketAddr, backup: bool) {
        let bytes = Tuple { token, local, remote }.prioritise(FAMILY, backup).finish(0);
        let message = one(&bytes);
        let attributes: Vec<_> = super::generic::attributes(&message).collect();
        prop_assert_eq!(attributes.len(), 3);
        prop_assert_eq!(attributes[0].u32(), Some(token));
        for (attribute, place) in attributes[1..].iter().zip([local, remote]) {
            let parts: Vec<_> = attribute.nested().collect();
            prop_assert_eq!(parts[1].address(), Some(place.ip().to_canonical()));
            prop_assert_eq!(parts[2].u16(), Some(place.port()));
        }
    }
}
