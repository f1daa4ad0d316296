//! The little of netlink that links need: one dump, one question, one subscription; messages and attributes read
//! without ever trusting a length.
//!
//! In: a request's type and body. Out: the kernel's messages, one behind the other, as bytes; the readers below turn
//! such bytes into parts, so that a recorded dump tests everything that stands on them.
//!
//! 1. A dump that the kernel interrupted (NLM_F_DUMP_INTR: something changed meanwhile) is taken again.
//! 2. A length that does not fit ends the reading; what came before it counts.
//!
//! The crate `rtnetlink` was not used: 29 crates and an executor for three requests.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_GETADDR: u16 = 22;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_GETROUTE: u16 = 26;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;

/// A netlink message's header and an attribute's: what comes before the payload.
const MESSAGE_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;

/// The kernel fills at most this much at a time (`NLMSG_GOODSIZE` of a dump is bounded by 32 KiB).
const BUFFER: usize = 32 * 1024;

/// chosen: the kernel answers at once; this only keeps a broken one from holding the program for ever.
const PATIENCE: Duration = Duration::from_secs(1);

/// A route netlink socket, blocking, for questions.
pub(super) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let fd = open(SocketFlags::CLOEXEC, 0)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { fd, sequence: 0 })
    }

    /// All messages that answer a dump request.
    pub(super) fn dump(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        for _ in 0..5 {
            let (bytes, whole) = self.ask(kind, NLM_F_DUMP, body)?;
            if whole {
                return Ok(bytes);
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the interfaces change faster than they can be listed"))
    }

    /// The message that answers a single question.
    pub(super) fn question(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        Ok(self.ask(kind, 0, body)?.0)
    }

    /// The answer, and whether nothing changed while it was given.
    fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<(Vec<u8>, bool)> {
        self.sequence += 1;
        send(&self.fd, &request(kind, NLM_F_REQUEST | flags, self.sequence, body), SendFlags::empty())?;
        let mut all = Vec::new();
        let mut whole = true;
        let mut buffer = vec![0; BUFFER];
        loop {
            let (_, length) = recv(&self.fd, &mut buffer[..], RecvFlags::empty())?;
            let part = &buffer[..length.min(BUFFER)];
            for message in messages(part) {
                // An answer to an interrupted dump of before may still be on its way.
                if message.sequence != self.sequence {
                    continue;
                }
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE => return Ok((all, whole)),
                    NLMSG_ERROR => return Err(failure(message.body)),
                    _ => all.extend_from_slice(message.whole),
                }
                if flags & NLM_F_DUMP == 0 {
                    return Ok((all, whole));
                }
            }
        }
    }
}

/// A route netlink socket (its protocol is number 0, the default) that hears of changes in these groups (a bit set of
/// `RTMGRP_*`).
pub(super) fn open(flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

fn failure(body: &[u8]) -> io::Error {
    let code = u32_at(body, 0).unwrap_or(0) as i32;
    io::Error::from_raw_os_error(code.saturating_neg())
}

/// A request with its header.
fn request(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(MESSAGE_HEADER + body.len());
    message.extend_from_slice(&((MESSAGE_HEADER + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(body);
    message
}

/// One message of the kernel.
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    /// Behind the header.
    pub(super) body: &'a [u8],
    /// With the header and the padding behind it.
    whole: &'a [u8],
}

/// The messages in these bytes.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let body = bytes.get(MESSAGE_HEADER..length)?;
        let (whole, rest) = bytes.split_at(aligned(length).min(bytes.len()));
        bytes = rest;
        Some(Message {
            kind: u16_at(whole, 4)?,
            flags: u16_at(whole, 6)?,
            sequence: u32_at(whole, 8)?,
            body,
            whole,
        })
    })
}

/// The attributes in these bytes: type without its flags, and payload.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// NLA_F_NESTED and NLA_F_NET_BYTEORDER share the field with the type.
    const TYPE: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE;
        let payload = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, payload))
    })
}

/// One attribute, header and padding included.
pub(super) fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = ATTRIBUTE_HEADER + payload.len();
    let mut bytes = Vec::with_capacity(aligned(length));
    bytes.extend_from_slice(&(length as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(payload);
    bytes.resize(aligned(length), 0);
    bytes
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A string attribute, without the zero that ends it.
pub(super) fn text(payload: &[u8]) -> String {
    let end = payload.iter().position(|b| *b == 0).unwrap_or(payload.len());
    String::from_utf8_lossy(&payload[..end]).into_owned()
}

/// Everything in netlink begins at a multiple of four.
pub(super) fn aligned(length: usize) -> usize {
    length.div_ceil(4) * 4
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let body = [attribute(3, b"eth0\0"), attribute(5, &7_u32.to_ne_bytes())].concat();
        let bytes = [request(RTM_NEWLINK, 0, 9, &body), request(RTM_NEWADDR, 0, 10, &[])].concat();
        let read: Vec<_> = messages(&bytes).map(|m| (m.kind, m.sequence, m.body.len())).collect();
        assert_eq!(read, [(RTM_NEWLINK, 9, 20), (RTM_NEWADDR, 10, 0)]);
        let first = messages(&bytes).next().unwrap();
        let parts: Vec<_> = attributes(first.body).collect();
        assert_eq!(parts, [(3, &b"eth0\0"[..]), (5, &7_u32.to_ne_bytes()[..])]);
        assert_eq!(text(parts[0].1), "eth0");
    }

    #[test]
    fn a_wrong_length_ends_the_reading() {
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(attributes(&[0; 64]).count(), 0);
        assert_eq!(messages(&request(RTM_NEWLINK, 0, 1, &[0; 8])[..20]).count(), 0);
    }

    #[test]
    fn an_error_of_the_kernel_keeps_its_number() {
        assert_eq!(failure(&(-1_i32).to_ne_bytes()).raw_os_error(), Some(1));
        failure(&i32::MIN.to_ne_bytes());
        failure(&[]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic_or_run_for_ever(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for message in messages(&bytes) {
                attributes(message.body).for_each(|(_, payload)| { text(payload); });
            }
            attributes(&bytes).for_each(|(_, payload)| { attributes(payload).count(); });
        }
    }
}
