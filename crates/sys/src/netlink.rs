//! A socket to the kernel's routing table: requests and their replies, and events, as bytes.
//!
//! In: the bytes of one request. Out: the bytes of all its reply's messages, or the kernel's error. What the bytes
//! mean is not known here (`marline_core::wire::netlink` reads and writes them); only length, type and flags of a
//! message are looked at, to find the end of a reply.
//!
//! 1. One request at a time; its sequence number is any, replies are taken in order.
//! 2. A dump that changed while it was told is asked for again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

/// A `NETLINK_ROUTE` socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct RouteSocket {
    fd: OwnedFd,
}

impl RouteSocket {
    /// A socket for requests.
    ///
    /// # Errors
    /// Out of descriptors; no netlink in this kernel or sandbox.
    pub fn open() -> io::Result<Self> {
        Self::with(SocketFlags::CLOEXEC, 0)
    }

    /// A non-blocking socket that receives the events of `groups` (`RTMGRP_…` bits). Read it with
    /// [`event`](Self::event).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn listen(groups: u32) -> io::Result<Self> {
        Self::with(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, groups)
    }

    fn with(flags: SocketFlags, groups: u32) -> io::Result<Self> {
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd })
    }

    /// Sends one request and gives the messages of its reply, without the final acknowledgement.
    ///
    /// # Errors
    /// The error that the kernel answered with.
    pub fn request(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        for _ in 0..8 {
            send(&self.fd, request, SendFlags::empty())?;
            if let Some(reply) = self.reply()? {
                return Ok(reply);
            }
        }
        Err(io::Error::other("the routing table changes faster than it can be read"))
    }

    /// One reply; `None` when it was interrupted by a change and must be asked for again.
    fn reply(&self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = vec![0; DATAGRAM];
        let (mut reply, mut interrupted) = (Vec::new(), false);
        loop {
            let (_, length) = recv(&self.fd, buffer.as_mut_slice(), RecvFlags::empty())?;
            let mut rest = buffer.get(..length).unwrap_or(&[]);
            while let Some((message, kind, flags)) = first_message(rest) {
                rest = rest.get(message.len().next_multiple_of(4)..).unwrap_or(&[]);
                interrupted |= flags & DUMP_INTERRUPTED != 0;
                match kind {
                    ERROR | DONE => {
                        let number =
                            message.get(16..20).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
                        if number < 0 {
                            return Err(io::Error::from_raw_os_error(-number));
                        }
                        return Ok((!interrupted).then_some(reply));
                    }
                    _ => {
                        reply.extend_from_slice(message);
                        reply.resize(reply.len().next_multiple_of(4), 0);
                    }
                }
            }
        }
    }

    /// The messages of the next event; `WouldBlock` when there is none. `ENOBUFS` says that events were lost.
    ///
    /// # Errors
    /// Those of `recv`.
    pub fn event(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; DATAGRAM];
        let (_, length) = recv(&self.fd, buffer.as_mut_slice(), RecvFlags::empty())?;
        buffer.truncate(length);
        Ok(buffer)
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The first message of `bytes` with its type and flags.
fn first_message(bytes: &[u8]) -> Option<(&[u8], u16, u16)> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    Some((bytes.get(..length).filter(|m| m.len() >= 16)?, half(4)?, half(6)?))
}

/// No datagram of the kernel is longer (it fills at most 32 KiB at a time).
const DATAGRAM: usize = 64 * 1024;
const ERROR: u16 = 2;
const DONE: u16 = 3;
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
    fn the_kernels_error_comes_back() {
        let error = RouteSocket::open().unwrap().request(&message(18, 0x5, 0x7fff_fff0)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn without_events_a_listener_would_block() {
        let error = RouteSocket::listen(0).unwrap().event().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
