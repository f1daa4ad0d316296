//! Messages of the kernel (netlink) and of other services of the host (D-Bus).

use std::net::SocketAddr;

use marline_core::wire::netlink::diag::{self, Socket};
use marline_core::wire::netlink::mptcp::{Endpoint, Event, Limits, SubflowEvent, SubflowTuple};
use marline_core::wire::netlink::{Ack, Address, Attributes, GenlFamily, Link, Message, Route, messages};
use marline_net::fuzzing;

use crate::bytes::Bytes;

/// A buffer of rtnetlink messages.
pub fn netlink(bytes: &[u8]) {
    let mut count = 0;
    for message in messages(bytes) {
        count += 1;
        let link = Link::parse(&message);
        let address = Address::parse(&message);
        let route = Route::parse(&message);
        let kinds = [link.is_some(), address.is_some(), route.is_some()];
        assert!(kinds.iter().filter(|is| **is).count() <= 1, "one message of two kinds");
        for attribute in Attributes::of(message.body) {
            let _ = (attribute.u32(), attribute.text(), attribute.address(), attribute.nested().count());
        }
        if let Some(address) = address {
            let request = Address::assign(address.interface, address.address, address.prefix).finish(1);
            let again = messages(&request).next().and_then(|message| Address::parse(&message));
            let again = again.map(|again| (again.interface, again.address, again.prefix));
            assert_eq!(again, Some((address.interface, address.address, address.prefix)));
        }
        if let Some(route) = route {
            let request = route.install().finish(1);
            assert_eq!(messages(&request).count(), 1, "a request must be one message");
        }
    }
    assert!(count <= bytes.len() / 16, "more messages than fit into the bytes");
}

/// A buffer of messages from MPTCP's path manager. The kernel assigns the number of its netlink family at run time, so
/// every number is accepted here.
pub fn mptcp(bytes: &[u8]) {
    for message in messages(bytes) {
        let family = message.kind;
        let event = Event::parse(&message, family);
        assert_eq!(Event::parse(&message, family.wrapping_add(1)), None, "an event of another family");
        if let Some(
            Event::Created(subflow)
            | Event::Established(subflow)
            | Event::SubflowEstablished(subflow)
            | Event::SubflowClosed(subflow)
            | Event::SubflowPriority(subflow),
        ) = event
        {
            check_commands(family, &subflow);
        }
        if let Some(endpoint) = Endpoint::parse(&message, family) {
            let again = parse_as(&endpoint.add(family).finish(1), 3, |m| Endpoint::parse(m, family));
            let canonical = Endpoint { address: endpoint.address.to_canonical(), ..endpoint };
            assert_eq!(again, Some(canonical), "an endpoint changes when it is written and parsed");
        }
        if let Some(limits) = Limits::parse(&message, family) {
            let again = parse_as(&limits.set(family).finish(1), 6, |m| Limits::parse(m, family));
            assert_eq!(again, Some(limits), "limits change when they are written and parsed");
        }
        if let Some(ack) = Ack::parse(&message) {
            assert!(ack.error >= 0);
        }
        if let Some(genl_family) = GenlFamily::parse(&message) {
            for (name, _) in &genl_family.groups {
                assert!(genl_family.group(name).is_some());
            }
        }
    }
}

/// Parses a request as if it were the kernel's reply with this command number.
fn parse_as<T>(request: &[u8], command: u8, parse: impl Fn(&Message<'_>) -> Option<T>) -> Option<T> {
    let mut bytes = request.to_vec();
    bytes[16] = command;
    messages(&bytes).next().and_then(|message| parse(&message))
}

/// Checks that each subflow of an event can be named in a command, with the event's token.
fn check_commands(family: u16, subflow: &SubflowEvent) {
    let tuple = SubflowTuple { token: subflow.token, local: subflow.local, remote: subflow.remote };
    for request in [tuple.destroy(family), tuple.set_backup(family, true)] {
        let bytes = request.finish(1);
        let message = messages(&bytes).next().expect("a request is a message");
        let mut tokens = Attributes::of(&message.body[4..]).filter(|a| a.kind == 4).filter_map(|a| a.u32());
        assert_eq!(tokens.next(), Some(subflow.token));
    }
}

/// A buffer of sock_diag messages.
pub fn diag(bytes: &[u8]) {
    for message in messages(bytes) {
        let (tcp, mptcp) = (Socket::parse(&message), Socket::parse_mptcp(&message));
        assert_eq!(tcp.is_some(), mptcp.is_some(), "both kinds have the same fixed part");
        let Some(socket) = tcp else { continue };
        assert!(socket.mptcp_info.is_none());
        let query = diag::query_tcp(socket.local, socket.remote, socket.interface).finish(1);
        let query = messages(&query).next().expect("a request is a message");
        let port = |at: usize| u16::from_be_bytes([query.body[at], query.body[at + 1]]);
        assert_eq!((port(8), port(10)), (socket.local.port(), socket.remote.port()));
        let is_canonical = |addr: SocketAddr| addr.ip().to_canonical() == addr.ip();
        assert!(is_canonical(socket.local) && is_canonical(socket.remote), "an IPv4-mapped IPv6 address");
    }
}

/// A D-Bus message. The same bytes are also read as one byte with the length of a signature, the signature, and values
/// of that signature.
pub fn dbus(bytes: &[u8]) {
    let _ = fuzzing::bus_message(bytes);
    let mut rest = Bytes(bytes);
    let length = usize::from(rest.u8());
    let signature = rest.take(length % 64);
    for is_big_endian in [false, true] {
        if let Some((values, read)) = fuzzing::bus_value(signature, rest.0, is_big_endian) {
            assert!(read <= rest.0.len(), "read beyond the end");
            // Each byte can be a value, and each value can be nested in as many structures as the signature has.
            assert!(values <= (read + 1) * (signature.len() + 1), "{values} values in {read} bytes");
        }
    }
}
