//! Sockets to the kernel itself: requests and their replies, and events, as bytes.
//!
//! In: the bytes of requests. Out: the bytes of all messages of the reply, or the kernel's error. What the bytes mean is
//! not known here (`marline_core::wire::netlink` reads and writes them); only length, type, flags and sequence number of
//! a message are looked at, to find the end of a reply.
//!
//! 1. [`Socket::request`]: one request at a time; its sequence number is any, replies are taken in order.
//! 2. A dump that changed while it was told is asked for again; [`Socket::dump`] hands it on piece by piece and leaves
//!    that to the caller, for whom a second telling of the same thing is no harm.
//! 3. [`Socket::exchange`]: several requests in one system call, each of which is answered by exactly one message. They
//!    are numbered here, so that a message left over from an earlier, broken off exchange is not taken for an answer.
//! 4. A listener that is read too slowly loses events: [`is_overflow`] tells that from other errors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, socket_recv_buffer_size,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

mod option;

/// Which part of the kernel a socket speaks with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Interfaces, addresses, routes (`NETLINK_ROUTE`).
    Route,
    /// Other programs' sockets (`NETLINK_SOCK_DIAG`).
    SockDiag,
    /// Families that have names (`NETLINK_GENERIC`).
    Generic,
}

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

/// A `NETLINK_ROUTE` socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct RouteSocket(Socket);

impl Socket {
    /// A socket for requests. The kernel's errors come with its words, as far as it has any.
    ///
    /// # Errors
    /// Out of descriptors; no netlink, or none of this protocol, in this kernel or sandbox.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let socket = Self::with(protocol, SocketFlags::CLOEXEC, 0)?;
        option::set(&socket.fd, libc::NETLINK_EXT_ACK, 1)?;
        option::set(&socket.fd, libc::NETLINK_CAP_ACK, 1)?;
        Ok(socket)
    }

    /// A non-blocking socket for events. The first groups can be joined here by their bits (`RTMGRP_…`), any with
    /// [`join`](Self::join).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn listen(protocol: Protocol, groups: u32) -> io::Result<Self> {
        Self::with(protocol, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, groups)
    }

    fn with(protocol: Protocol, flags: SocketFlags, groups: u32) -> io::Result<Self> {
        let protocol = match protocol {
            Protocol::Route => None,
            Protocol::SockDiag => Some(rustix::net::netlink::SOCK_DIAG),
            Protocol::Generic => Some(rustix::net::netlink::GENERIC),
        };
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd })
    }

    /// Receives the events of a group, by its number, from now on.
    ///
    /// # Errors
    /// Not permitted, as MPTCP's are without CAP_NET_ADMIN; no such group.
    pub fn join(&self, group: u32) -> io::Result<()> {
        option::set(&self.fd, libc::NETLINK_ADD_MEMBERSHIP, group)
    }

    /// Makes room for this many bytes of messages that were not read yet; without CAP_NET_ADMIN for as many as
    /// `net.core.rmem_max` allows. Gives what the kernel made of it, which counts its own overhead too.
    ///
    /// # Errors
    /// None that a correct kernel gives.
    pub fn make_room(&self, bytes: usize) -> io::Result<usize> {
        if set_socket_recv_buffer_size_force(&self.fd, bytes).is_err() {
            set_socket_recv_buffer_size(&self.fd, bytes)?;
        }
        Ok(socket_recv_buffer_size(&self.fd)?)
    }

    /// Sends one request and gives the messages of its reply, without the final acknowledgement.
    ///
    /// # Errors
    /// The error that the kernel answered with.
    pub fn request(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        for _ in 0..8 {
            let mut reply = Vec::new();
            let interrupted = self.dump(request, |message| {
                reply.extend_from_slice(message);
                reply.resize(reply.len().next_multiple_of(4), 0);
            })?;
            if !interrupted {
                return Ok(reply);
            }
        }
        Err(io::Error::other("the kernel's list changes faster than it can be read"))
    }

    /// Sends one request and hands on the messages of its reply, one by one. True: it changed while it was told, so
    /// that something may be missing.
    ///
    /// # Errors
    /// The error that the kernel answered with.
    pub fn dump(&self, request: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        let acknowledged = flags(request) & (ACK | DUMP) != 0;
        self.send(request)?;
        let mut buffer = vec![0; DATAGRAM];
        let mut interrupted = false;
        loop {
            let mut rest = self.read(&mut buffer)?;
            while let Some((message, kind, flags)) = first_message(rest) {
                rest = rest.get(message.len().next_multiple_of(4)..).unwrap_or(&[]);
                interrupted |= flags & DUMP_INTERRUPTED != 0;
                if kind == ERROR || kind == DONE {
                    let number = error_number(message);
                    return if number == 0 { Ok(interrupted) } else { Err(io::Error::from_raw_os_error(number)) };
                }
                each(message);
                if !acknowledged {
                    return Ok(interrupted);
                }
            }
        }
    }

    /// Sends several requests at once, each of which is answered by one message: an error, an acknowledgement, or what
    /// was asked for. Hands on each answer with the place of its request among them.
    ///
    /// # Errors
    /// Of the socket itself. A request that is refused is an answer too.
    pub fn exchange<'a>(
        &self,
        requests: impl IntoIterator<Item = &'a mut [u8]>,
        mut each: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut count = 0_u32;
        // Numbers of this exchange begin somewhere else than those of the last.
        let first = crate::clock::now() as u32;
        for request in requests {
            if let Some(sequence) = request.get_mut(8..12) {
                sequence.copy_from_slice(&first.wrapping_add(count).to_ne_bytes());
            }
            bytes.extend_from_slice(request);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        self.send(&bytes)?;
        let mut buffer = vec![0; SMALL_DATAGRAM];
        let mut missing = count;
        while missing > 0 {
            let mut rest = self.read(&mut buffer)?;
            while let Some((message, _, _)) = first_message(rest) {
                rest = rest.get(message.len().next_multiple_of(4)..).unwrap_or(&[]);
                let place = word(message, 8).wrapping_sub(first);
                if place < count {
                    each(place as usize, message);
                    missing = missing.saturating_sub(1);
                }
            }
        }
        Ok(())
    }

    /// The messages of the next event; `WouldBlock` when there is none. See [`is_overflow`].
    ///
    /// # Errors
    /// Those of `recv`.
    pub fn event(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; DATAGRAM];
        let length = self.read(&mut buffer)?.len();
        buffer.truncate(length);
        Ok(buffer)
    }

    /// The same into a buffer of the caller's, for who reads many: one that is too short cuts an event off.
    ///
    /// # Errors
    /// Those of `recv`.
    pub fn event_in<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        self.read(buffer)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        send(&self.fd, bytes, SendFlags::empty())?;
        Ok(())
    }

    fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        loop {
            match recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
                Ok((_, length)) => return Ok(buffer.get(..length).unwrap_or(&[])),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl RouteSocket {
    /// A socket for requests.
    ///
    /// # Errors
    /// Out of descriptors; no netlink in this kernel or sandbox.
    pub fn open() -> io::Result<Self> {
        Socket::open(Protocol::Route).map(Self)
    }

    /// A non-blocking socket that receives the events of `groups` (`RTMGRP_…` bits). Read it with
    /// [`event`](Self::event).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn listen(groups: u32) -> io::Result<Self> {
        Socket::listen(Protocol::Route, groups).map(Self)
    }

    /// Sends one request and gives the messages of its reply, without the final acknowledgement.
    ///
    /// # Errors
    /// The error that the kernel answered with.
    pub fn request(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.0.request(request)
    }

    /// The messages of the next event; `WouldBlock` when there is none. See [`is_overflow`].
    ///
    /// # Errors
    /// Those of `recv`.
    pub fn event(&self) -> io::Result<Vec<u8>> {
        self.0.event()
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the error says that events were lost, because they were read too slowly. The next ones come all the same.
pub fn is_overflow(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}

/// The first message of `bytes` with its type and flags.
fn first_message(bytes: &[u8]) -> Option<(&[u8], u16, u16)> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    Some((bytes.get(..length).filter(|m| m.len() >= 16)?, half(4)?, half(6)?))
}

/// The flags of a request's header.
fn flags(request: &[u8]) -> u16 {
    first_message(request).map_or(ACK, |(_, _, flags)| flags)
}

fn word(message: &[u8], at: usize) -> u32 {
    message.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// What an error or the end of a dump says: 0, or a positive number.
fn error_number(message: &[u8]) -> i32 {
    word(message, 16).cast_signed().saturating_neg().max(0)
}

/// No datagram of the kernel is longer (it fills at most 32 KiB at a time).
const DATAGRAM: usize = 64 * 1024;
/// Nor is one answer to one request about one thing.
const SMALL_DATAGRAM: usize = 8 * 1024;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_ACK`.
const ACK: u16 = 0x4;
/// `NLM_F_ROOT | NLM_F_MATCH`.
const DUMP: u16 = 0x300;
/// `NLM_F_DUMP_INTR`.
const DUMP_INTERRUPTED: u16 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    /// A header and an empty `struct ifinfomsg`.
    fn message(kind: u16, flags: u16, index: u32) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[..4].copy_from_slice(&32_u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_dump_of_links_names_the_loopback() {
        let reply = RouteSocket::open().unwrap().request(&message(18, 0x301, 0)).unwrap();
        assert!(reply.windows(3).any(|w| w == b"lo\0"));
        assert_eq!(reply.len() % 4, 0);
    }

    #[test]
    fn a_request_for_one_thing_ends_with_its_one_message() {
        let reply = RouteSocket::open().unwrap().request(&message(18, 0x1, 1)).unwrap();
        assert!(reply.windows(3).any(|w| w == b"lo\0"));
    }

    #[test]
    fn the_kernels_error_comes_back() {
        let error = RouteSocket::open().unwrap().request(&message(18, 0x5, 0x7fff_fff0)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn without_events_a_listener_would_block() {
        let error = RouteSocket::listen(0).unwrap().event().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(!is_overflow(&error));
    }

    #[test]
    fn requests_sent_at_once_are_answered_each_in_its_place() {
        let socket = Socket::open(Protocol::Route).unwrap();
        let mut requests: Vec<Vec<u8>> = [1, 0x7fff_fff0, 1].iter().map(|index| message(18, 0x1, *index)).collect();
        let mut kinds = [0; 3];
        let each = |place: usize, message: &[u8]| kinds[place] = first_message(message).unwrap().1;
        socket.exchange(requests.iter_mut().map(Vec::as_mut_slice), each).unwrap();
        assert_eq!(kinds, [16, ERROR, 16]);
    }

    #[test]
    fn a_listener_gets_the_room_that_it_asks_for() {
        let socket = Socket::listen(Protocol::Route, 0).unwrap();
        let least = socket.make_room(4096).unwrap();
        assert!(socket.make_room(65_536).unwrap() > least);
    }
}
