//! Hears from the kernel that something about interfaces, addresses or routes has changed.
//!
//! In: the multicast groups of route netlink. Out: "survey again". The messages themselves are thrown away: a survey
//! costs less than a millisecond, and cannot miss what an overflowing socket has dropped.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SocketFlags, recv};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{LinksError, netlink};

/// A subscription to changes. It lives in a tokio runtime with I/O.
#[derive(Debug)]
pub struct Monitor {
    socket: AsyncFd<OwnedFd>,
}

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

impl Monitor {
    /// Subscribes. Changes count from here: survey afterwards, and nothing is missed.
    ///
    /// # Errors
    /// When the kernel gives no netlink socket.
    pub fn new() -> Result<Self, LinksError> {
        let fd = netlink::open(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, GROUPS)?;
        #[allow(
            deprecated,
            reason = "its successor is unsafe for the sake of descriptors that change; OwnedFd does not"
        )]
        let socket = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { socket })
    }

    /// Waits until something has changed since the last call. Many changes at once are one. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// When the socket itself fails; an overflow of it is a change.
    pub async fn changed(&mut self) -> Result<(), LinksError> {
        loop {
            let mut ready = self.socket.readable().await?;
            if let Ok(heard) = ready.try_io(|fd| drain(fd.get_ref())) {
                return Ok(heard?);
            }
        }
    }
}

/// Throws away what is there; would block if there is nothing.
fn drain(fd: &OwnedFd) -> io::Result<()> {
    let mut heard = false;
    let mut buffer = [0; 4096];
    loop {
        match recv(fd, &mut buffer[..], RecvFlags::empty()) {
            Ok(_) | Err(rustix::io::Errno::NOBUFS) => heard = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) if heard => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
