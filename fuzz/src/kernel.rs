//! What the machine's own services say: the kernel over netlink, others over D-Bus.

use std::net::SocketAddr;

use marline_core::wire::netlink::diag::{self, Socket};
use marline_core::wire::netlink::mptcp::{Endpoint, Event, Limits, Path, Tuple};
use marline_core::wire::netlink::{Ack, Address, Attributes, Family, Link, Message, Route, messages};
use marline_net::fuzzing;

use crate::bytes::Bytes;

/// A buffer full of rtnetlink messages.
pub fn netlink(bytes: &[u8]) {
    let mut seen = 0;
    for message in messages(bytes) {
        seen += 1;
        let link = Link::parse(&message);
        let address = Address::parse(&message);
        let route = Route::parse(&message);
        let kinds = [link.is_some(), address.is_some(), route.is_some()];
        assert!(kinds.iter().filter(|is| **is).count() <= 1, "one message of two kinds");
        for attribute in Attributes::of(message.body) {
            let _ = (attribute.u32(), attribute.text(), attribute.address(), attribute.nested().count());
        }
        if let Some(address) = address {
            let request = Address::assign(address.link, address.address, address.prefix).finish(1);
            let again = messages(&request).next().and_then(|message| Address::parse(&message));
            let again = again.map(|again| (again.link, again.address, again.prefix));
            assert_eq!(again, Some((address.link, address.address, address.prefix)));
        }
        if let Some(route) = route {
            let request = route.install().finish(1);
            assert_eq!(messages(&request).count(), 1, "a request is one message");
        }
    }
    assert!(seen <= bytes.len() / 16, "more messages than the bytes can hold");
}

/// A buffer full of what MPTCP's path manager says. The number of its family is not known here: any is.
pub fn mptcp(bytes: &[u8]) {
    for message in messages(bytes) {
        let family = message.kind;
        let seen = Event::parse(&message, family);
        assert_eq!(Event::parse(&message, family.wrapping_add(1)), None, "an event of another family");
        if let Some(
            Event::Created(path)
            | Event::Established(path)
            | Event::SubflowEstablished(path)
            | Event::SubflowClosed(path)
            | Event::SubflowPriority(path),
        ) = seen
        {
            commands(family, &path);
        }
        if let Some(endpoint) = Endpoint::parse(&message, family) {
            let again = read_as(&endpoint.add(family).finish(1), 3, |m| Endpoint::parse(m, family));
            let canonical = Endpoint { address: endpoint.address.to_canonical(), ..endpoint };
            assert_eq!(again, Some(canonical), "an endpoint reads back as another one");
        }
        if let Some(limits) = Limits::parse(&message, family) {
            let again = read_as(&limits.set(family).finish(1), 6, |m| Limits::parse(m, family));
            assert_eq!(again, Some(limits), "limits read back as others");
        }
        if let Some(ack) = Ack::parse(&message) {
            assert!(ack.error >= 0);
        }
        if let Some(found) = Family::parse(&message) {
            for (name, _) in &found.groups {
                assert!(found.group(name).is_some());
            }
        }
    }
}

/// A request as the kernel would answer it, with this command.
fn read_as<T>(request: &[u8], command: u8, parse: impl Fn(&Message<'_>) -> Option<T>) -> Option<T> {
    let mut bytes = request.to_vec();
    bytes[16] = command;
    messages(&bytes).next().and_then(|message| parse(&message))
}

/// Whatever an event has named can be named in a command, and stands in it.
fn commands(family: u16, path: &Path) {
    let tuple = Tuple { token: path.token, local: path.local, remote: path.remote };
    for request in [tuple.destroy(family), tuple.prioritise(family, true)] {
        let bytes = request.finish(1);
        let message = messages(&bytes).next().expect("a request is a message");
        let mut tokens = Attributes::of(&message.body[4..]).filter(|a| a.kind == 4).filter_map(|a| a.u32());
        assert_eq!(tokens.next(), Some(path.token));
    }
}

/// A buffer full of what sock_diag says.
pub fn diag(bytes: &[u8]) {
    for message in messages(bytes) {
        let (tcp, mptcp) = (Socket::parse(&message), Socket::parse_mptcp(&message));
        assert_eq!(tcp.is_some(), mptcp.is_some(), "both have the same fixed part");
        let Some(socket) = tcp else { continue };
        assert!(socket.connection.is_none());
        let asked = diag::one(socket.local, socket.remote, socket.link).finish(1);
        let question = messages(&asked).next().expect("a request is a message");
        let port = |at: usize| u16::from_be_bytes([question.body[at], question.body[at + 1]]);
        assert_eq!((port(8), port(10)), (socket.local.port(), socket.remote.port()));
        let canonical = |at: SocketAddr| at.ip().to_canonical() == at.ip();
        assert!(canonical(socket.local) && canonical(socket.remote), "a mapped address stays as it is");
    }
}

/// A D-Bus message; and, behind a first byte with the length of a signature, values of that signature.
pub fn dbus(bytes: &[u8]) {
    let _ = fuzzing::bus_answer(bytes);
    let mut rest = Bytes(bytes);
    let length = usize::from(rest.u8());
    let signature = rest.take(length % 64);
    for big in [false, true] {
        if let Some((values, read)) = fuzzing::bus_value(signature, rest.0, big) {
            assert!(read <= rest.0.len(), "read beyond the end");
            // Each byte can be a value, each value can stand in as many structures as the signature has.
            assert!(values <= (read + 1) * (signature.len() + 1), "{values} values in {read} bytes");
        }
    }
}
