//! Netlink sockets: requests with their replies, and events, as bytes.
//!
//! The content of messages is handled elsewhere (`marline_core::wire::netlink` reads and writes them). This module
//! reads only the length, type, flags and sequence number of a message, to find the end of a reply.
//!
//! 1. [`Socket::request`] sends one request. A dump that changed while it was read is repeated; [`Socket::dump`]
//!    passes messages on one by one and leaves that to the caller.
//! 2. [`Socket::exchange`] sends several requests in one system call, each of which gets exactly one message as
//!    reply.
//! 3. Sequence numbers are assigned here. Messages with another number are late replies to an abandoned request and
//!    are ignored, as are messages that do not come from the kernel.
//! 4. On a socket of [`Socket::open`], a reply that pauses for [`REPLY_TIMEOUT`] is an error: no call blocks forever.
//! 5. A listener that is read too slowly loses events, which [`is_overflow`] distinguishes from other errors. A
//!    message longer than its buffer counts as lost, too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_timeout,
    socket_recv_buffer_size,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, bind, recvfrom, send, socket_with,
};

mod option;

/// Netlink protocol: the subsystem of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Interfaces, addresses, routes, routing rules (`NETLINK_ROUTE`).
    Route,
    /// Sockets of all programs (`NETLINK_SOCK_DIAG`).
    SockDiag,
    /// Generic netlink families, identified by names (`NETLINK_GENERIC`).
    Generic,
    /// Netfilter: rules, and packets that wait for a verdict (`NETLINK_NETFILTER`).
    Netfilter,
}

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    /// Sequence number of the next request.
    next_sequence: AtomicU32,
}

/// A `NETLINK_ROUTE` socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct RouteSocket(Socket);

impl Socket {
    /// Opens a socket for requests. The kernel's error replies include its text message, if there is one:
    /// [`exchange`](Self::exchange) passes them on whole, the other functions return the error number alone.
    ///
    /// # Errors
    /// Out of descriptors; no netlink, or none of this protocol, in this kernel or sandbox.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let socket = Self::open_with(protocol, SocketFlags::CLOEXEC, 0)?;
        option::set_option(&socket.fd, libc::NETLINK_EXT_ACK, 1)?;
        option::set_option(&socket.fd, libc::NETLINK_CAP_ACK, 1)?;
        set_socket_timeout(&socket.fd, Timeout::Recv, Some(REPLY_TIMEOUT))?;
        Ok(socket)
    }

    /// Opens a non-blocking socket for events. The groups 1 to 32 can be joined here by their bits (such as
    /// `RTMGRP_…`), any group with [`join_group`](Self::join_group).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn listen(protocol: Protocol, groups: u32) -> io::Result<Self> {
        Self::open_with(protocol, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, groups)
    }

    fn open_with(protocol: Protocol, flags: SocketFlags, groups: u32) -> io::Result<Self> {
        let protocol = match protocol {
            Protocol::Route => None,
            Protocol::SockDiag => Some(rustix::net::netlink::SOCK_DIAG),
            Protocol::Generic => Some(rustix::net::netlink::GENERIC),
            Protocol::Netfilter => Some(rustix::net::netlink::NETFILTER),
        };
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(fd.into())
    }

    /// Joins a multicast group, by its number: events are received from now on.
    ///
    /// # Errors
    /// Not permitted, as for MPTCP's events without CAP_NET_ADMIN; no such group.
    pub fn join_group(&self, group: u32) -> io::Result<()> {
        option::set_option(&self.fd, libc::NETLINK_ADD_MEMBERSHIP, group)
    }

    /// Sets the receive buffer for unread messages, in bytes. Without CAP_NET_ADMIN `net.core.rmem_max` is the
    /// maximum. Returns the size that the kernel set: twice the requested one, for its own overhead.
    ///
    /// # Errors
    /// None that a correct kernel gives.
    pub fn set_rcvbuf(&self, bytes: usize) -> io::Result<usize> {
        if set_socket_recv_buffer_size_force(&self.fd, bytes).is_err() {
            set_socket_recv_buffer_size(&self.fd, bytes)?;
        }
        Ok(socket_recv_buffer_size(&self.fd)?)
    }

    /// Sends messages that get no reply, unchanged.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn send(&self, messages: &[u8]) -> io::Result<()> {
        send(&self.fd, messages, SendFlags::empty())?;
        Ok(())
    }

    /// Makes reads return `WouldBlock` if there is no message. The socket cannot be used for requests any more.
    ///
    /// # Errors
    /// None that a correct kernel gives.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.fd, true)?)
    }

    /// Sends one request and returns the messages of its reply, without the final acknowledgement.
    ///
    /// # Errors
    /// The error of the kernel's reply; `TimedOut` without a reply; a list that changed during each of several dumps.
    pub fn request(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        for _ in 0..MAX_DUMP_TRIES {
            let mut reply = Vec::new();
            let is_interrupted = self.dump(request, |message| {
                reply.extend_from_slice(message);
                reply.resize(reply.len().next_multiple_of(4), 0);
            })?;
            if !is_interrupted {
                return Ok(reply);
            }
        }
        Err(io::Error::other("the kernel's list changes faster than it can be read"))
    }

    /// Sends one request and passes on the messages of its reply one by one. True: the list changed while it was
    /// read, and some messages may be missing.
    ///
    /// # Errors
    /// The error of the kernel's reply; `TimedOut` without a reply.
    pub fn dump(&self, request: &[u8], mut on_message: impl FnMut(&[u8])) -> io::Result<bool> {
        // A dump ends with NLMSG_DONE, and a request with NLM_F_ACK ends with an acknowledgement. Any other request
        // ends with its only message.
        let has_ack = request_flags(request) & (NLM_F_ACK | NLM_F_DUMP) != 0;
        let mut bytes = request.to_vec();
        let sequence = self.assign_sequence(&mut bytes);
        self.send_requests(&bytes)?;
        let mut buffer = vec![0; MAX_DATAGRAM_LEN];
        let mut is_interrupted = false;
        loop {
            let mut remaining = self.receive_reply(&mut buffer)?;
            while let Some((message, kind, flags)) = first_message(remaining) {
                remaining = remaining.get(message.len().next_multiple_of(4)..).unwrap_or(&[]);
                if u32_at(message, SEQUENCE_OFFSET) != sequence {
                    continue;
                }
                is_interrupted |= flags & NLM_F_DUMP_INTR != 0;
                if kind == NLMSG_ERROR || kind == NLMSG_DONE {
                    let errno = error_number(message);
                    return if errno == 0 { Ok(is_interrupted) } else { Err(io::Error::from_raw_os_error(errno)) };
                }
                on_message(message);
                if !has_ack {
                    return Ok(is_interrupted);
                }
            }
        }
    }

    /// Sends several requests in one system call, each of which gets one message as reply: an error, an
    /// acknowledgement, or the requested object. Passes on each reply with the index of its request.
    ///
    /// # Errors
    /// Of the socket itself, and `TimedOut` if a reply is missing. A refused request is passed on as a reply.
    pub fn exchange<'a>(
        &self,
        requests: impl IntoIterator<Item = &'a [u8]>,
        mut on_reply: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut sequences = Vec::new();
        for request in requests {
            let offset = bytes.len();
            bytes.extend_from_slice(request);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            sequences.push(self.assign_sequence(bytes.get_mut(offset..).unwrap_or_default()));
        }
        let mut missing = sequences.len();
        if missing > 0 {
            self.send_requests(&bytes)?;
        }
        let mut buffer = vec![0; MAX_REPLY_LEN];
        while missing > 0 {
            let mut remaining = self.receive_reply(&mut buffer)?;
            while let Some((message, _, _)) = first_message(remaining) {
                remaining = remaining.get(message.len().next_multiple_of(4)..).unwrap_or(&[]);
                let sequence = u32_at(message, SEQUENCE_OFFSET);
                if let Some(index) = sequences.iter().position(|other| *other == sequence) {
                    on_reply(index, message);
                    missing = missing.saturating_sub(1);
                }
            }
        }
        Ok(())
    }

    /// The messages of the next event; `WouldBlock` if there is none. See [`is_overflow`].
    ///
    /// # Errors
    /// Those of `recv`.
    pub fn next_event(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; MAX_DATAGRAM_LEN];
        let length = self.receive(&mut buffer)?.len();
        buffer.truncate(length);
        Ok(buffer)
    }

    /// Reads the next event into the caller's buffer. An event longer than the buffer is lost (an error, see
    /// [`is_overflow`]).
    ///
    /// # Errors
    /// Those of `recv`.
    pub fn next_event_in<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        self.receive(buffer)
    }

    /// Writes the next sequence number into a request.
    fn assign_sequence(&self, request: &mut [u8]) -> u32 {
        let next = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        if let Some(sequence) = request.get_mut(SEQUENCE_OFFSET..SEQUENCE_OFFSET + 4) {
            sequence.copy_from_slice(&next.to_ne_bytes());
        }
        next
    }

    /// Sends requests after discarding unread messages of earlier ones. The kernel refuses a dump as busy until the
    /// previous one was read to its end.
    fn send_requests(&self, bytes: &[u8]) -> io::Result<()> {
        let mut buffer = [0; 4];
        while matches!(
            recvfrom(&self.fd, &mut buffer, RecvFlags::DONTWAIT),
            Ok(_) | Err(Errno::NOBUFS | Errno::INTR)
        ) {}
        send(&self.fd, bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Receives the next datagram of a reply, within the socket's timeout ([`REPLY_TIMEOUT`]).
    fn receive_reply<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let to_timeout = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {REPLY_TIMEOUT:?}"))
            }
            _ => error,
        };
        self.receive(buffer).map_err(to_timeout)
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        loop {
            match recvfrom(&self.fd, &mut *buffer, RecvFlags::TRUNC) {
                Ok((_, _, sender)) if !is_from_kernel(sender.as_ref()) => {}
                Ok((_, length, _)) => return buffer.get(..length).ok_or_else(|| Errno::NOBUFS.into()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Takes a socket that the caller has opened and configured.
impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, next_sequence: AtomicU32::new(1) }
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

    /// Opens a non-blocking socket that receives the events of `groups` (`RTMGRP_…` bits). Read it with
    /// [`next_event`](Self::next_event).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn listen(groups: u32) -> io::Result<Self> {
        Socket::listen(Protocol::Route, groups).map(Self)
    }

    /// Sends one request and returns the messages of its reply, without the final acknowledgement.
    ///
    /// # Errors
    /// The error of the kernel's reply.
    pub fn request(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.0.request(request)
    }

    /// The messages of the next event; `WouldBlock` when there is none. See [`is_overflow`].
    ///
    /// # Errors
    /// Those of `recv`.
    pub fn next_event(&self) -> io::Result<Vec<u8>> {
        self.0.next_event()
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the error means that events were lost, because they were read too slowly or were longer than the buffer.
/// Later events still arrive.
pub fn is_overflow(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether a message comes from the kernel, whose port is 0: other programs can send messages, too. Senders without a
/// netlink address occur in tests alone and count as the kernel.
fn is_from_kernel(sender: Option<&SocketAddrAny>) -> bool {
    let address = sender.and_then(|sender| SocketAddrNetlink::try_from(sender.clone()).ok());
    address.is_none_or(|sender| sender.pid() == 0)
}

/// The first message of `bytes` with its type and flags.
fn first_message(bytes: &[u8]) -> Option<(&[u8], u16, u16)> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let u16_at = |offset: usize| Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?));
    Some((bytes.get(..length).filter(|m| m.len() >= 16)?, u16_at(4)?, u16_at(6)?))
}

/// The flags of a request's header; of a truncated one as if it asked for an acknowledgement.
fn request_flags(request: &[u8]) -> u16 {
    first_message(request).map_or(NLM_F_ACK, |(_, _, flags)| flags)
}

fn u32_at(message: &[u8], offset: usize) -> u32 {
    message.get(offset..offset + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// The errno of an error or of the end of a dump: 0 or a positive number.
fn error_number(message: &[u8]) -> i32 {
    u32_at(message, 16).cast_signed().saturating_neg().max(0)
}

/// Timeout for each datagram of a reply. Our choice: the kernel needs microseconds, or milliseconds while a driver
/// holds the lock of all interfaces. After seconds there is a fault that a daemon should report.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts to dump a list that changes meanwhile. Our choice: changes come in bursts of milliseconds.
const MAX_DUMP_TRIES: usize = 8;
/// Offset of the sequence number in a message header.
const SEQUENCE_OFFSET: usize = 8;
/// No datagram of a dump or event is longer (of a dump the kernel fills at most 32 KiB at a time).
const MAX_DATAGRAM_LEN: usize = 64 * 1024;
/// Maximum size of a reply about one object.
const MAX_REPLY_LEN: usize = 8 * 1024;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_ACK`.
const NLM_F_ACK: u16 = 0x4;
/// `NLM_F_ROOT | NLM_F_MATCH`.
const NLM_F_DUMP: u16 = 0x300;
/// `NLM_F_DUMP_INTR`.
const NLM_F_DUMP_INTR: u16 = 0x10;

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;

    /// A header and a `struct ifinfomsg` with nothing but this index. Kinds: 16 a link, 18 request for links. Flags:
    /// 0x1 request, 0x4 with acknowledgement, 0x300 dump.
    fn test_request(kind: u16, flags: u16, index: u32) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[..4].copy_from_slice(&32_u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_dump_of_links_names_the_loopback() {
        let reply = RouteSocket::open().unwrap().request(&test_request(18, 0x301, 0)).unwrap();
        assert!(reply.windows(3).any(|w| w == b"lo\0"));
        assert_eq!(reply.len() % 4, 0);
    }

    #[test]
    fn a_request_for_one_object_ends_with_its_message() {
        let reply = RouteSocket::open().unwrap().request(&test_request(18, 0x1, 1)).unwrap();
        assert!(reply.windows(3).any(|w| w == b"lo\0"));
    }

    #[test]
    fn errors_of_the_kernel_are_returned() {
        let error = RouteSocket::open().unwrap().request(&test_request(18, 0x5, 0x7fff_fff0)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn without_events_a_listener_would_block() {
        let error = RouteSocket::listen(0).unwrap().next_event().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(!is_overflow(&error));
    }

    #[test]
    fn replies_to_requests_of_one_call_have_their_indices() {
        let socket = Socket::open(Protocol::Route).unwrap();
        let requests: Vec<Vec<u8>> =
            [1, 0x7fff_fff0, 1].iter().map(|index| test_request(18, 0x1, *index)).collect();
        let mut kinds = [0; 3];
        let on_reply = |index: usize, message: &[u8]| kinds[index] = first_message(message).unwrap().1;
        socket.exchange(requests.iter().map(Vec::as_slice), on_reply).unwrap();
        assert_eq!(kinds, [16, NLMSG_ERROR, 16]);
    }

    /// A socket, and its peer, by which a test acts as the kernel.
    fn socket_with_test_kernel() -> (Socket, Socket) {
        let pair = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        let (socket, kernel) = (Socket::from(pair.0), Socket::from(pair.1));
        set_timeout(&socket, LONG_TIMEOUT);
        set_timeout(&kernel, LONG_TIMEOUT);
        (socket, kernel)
    }

    fn set_timeout(socket: &Socket, time: Duration) {
        set_socket_timeout(&socket.fd, Timeout::Recv, Some(time)).unwrap();
    }

    /// Timeout that only a failure reaches.
    const LONG_TIMEOUT: Duration = Duration::from_secs(20);

    /// A reply to the request with this sequence number: a link with this index.
    fn answer(sequence: u32, kind: u16, flags: u16, index: u32) -> Vec<u8> {
        let mut bytes = test_request(kind, flags, index);
        bytes[SEQUENCE_OFFSET..SEQUENCE_OFFSET + 4].copy_from_slice(&sequence.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_late_reply_to_an_earlier_request_is_ignored() {
        let (socket, kernel) = socket_with_test_kernel();
        let request = test_request(18, 0x1, 7);
        set_timeout(&socket, Duration::from_millis(1));
        let error = socket.request(&request).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        set_timeout(&socket, LONG_TIMEOUT);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = [0; 64];
                let first = u32_at(kernel.receive(&mut buffer).unwrap(), SEQUENCE_OFFSET);
                let second = u32_at(kernel.receive(&mut buffer).unwrap(), SEQUENCE_OFFSET);
                for (sequence, index) in [(first, 1), (second, 2)] {
                    send(&kernel.fd, &answer(sequence, 16, 0, index), SendFlags::empty()).unwrap();
                }
                let third = u32_at(kernel.receive(&mut buffer).unwrap(), SEQUENCE_OFFSET);
                for (sequence, index) in [(second, 2), (third, 3)] {
                    send(&kernel.fd, &answer(sequence, 16, 0, index), SendFlags::empty()).unwrap();
                }
            });
            assert_eq!(u32_at(&socket.request(&request).unwrap(), 20), 2);
            let mut replies = Vec::new();
            socket
                .exchange([request.as_slice()], |index, message| replies.push((index, u32_at(message, 20))))
                .unwrap();
            assert_eq!(replies, [(0, 3)]);
        });
    }

    #[test]
    fn an_abandoned_dump_does_not_block_the_next() {
        let socket = Socket::open(Protocol::Route).unwrap();
        let dump = test_request(18, 0x301, 0);
        // The kernel is busy with a dump until it was read to its end.
        send(&socket.fd, &dump, SendFlags::empty()).unwrap();
        assert!(socket.request(&dump).unwrap().windows(3).any(|w| w == b"lo\0"));
    }

    #[test]
    fn a_constantly_changing_list_is_retried_a_limited_number_of_times() {
        let (socket, kernel) = socket_with_test_kernel();
        let tries = std::thread::scope(|scope| {
            let kernel = scope.spawn(move || {
                let (mut buffer, mut tries) = ([0; 64], 0);
                while let Ok(request) = kernel.receive(&mut buffer).map(|bytes| u32_at(bytes, SEQUENCE_OFFSET))
                    && request != 0
                {
                    tries += 1;
                    let reply = answer(request, NLMSG_DONE, NLM_F_DUMP_INTR, 0);
                    send(&kernel.fd, &reply, SendFlags::empty()).unwrap();
                }
                tries
            });
            let error = socket.request(&test_request(18, 0x301, 0)).unwrap_err();
            assert!(error.to_string().contains("faster"), "{error}");
            send(&socket.fd, &[0; 16], SendFlags::empty()).unwrap();
            kernel.join().unwrap()
        });
        assert_eq!(tries, MAX_DUMP_TRIES);
    }

    #[test]
    fn a_message_that_is_longer_than_its_buffer_counts_as_lost() {
        let (socket, kernel) = socket_with_test_kernel();
        send(&kernel.fd, &[0; 64], SendFlags::empty()).unwrap();
        assert!(is_overflow(&socket.next_event_in(&mut [0; 32]).unwrap_err()));
    }

    #[test]
    fn the_receive_buffer_of_a_listener_can_be_raised() {
        let socket = Socket::listen(Protocol::Route, 0).unwrap();
        let initial = socket.set_rcvbuf(4096).unwrap();
        assert!(socket.set_rcvbuf(65_536).unwrap() > initial);
    }
}
