//! What the machine's own services say: the kernel over netlink, others over D-Bus.

use marline_core::wire::netlink::{Address, Attributes, Link, Route, messages};
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
