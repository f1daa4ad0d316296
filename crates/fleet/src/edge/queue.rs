//! A flow whose own queue is kept short.
//!
//! In: a connection to a relay. Out: when it is given more ([`marline_net::queue`]).
//!
//! Where the kernel cannot say what waits, it is given what it takes.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use marline_core::units::DataSize;
use marline_net::queue;
use tokio::net::TcpStream;

use crate::tunnel::{Grant, Pace};

/// The pace of one flow.
pub(super) struct Short {
    socket: Option<OwnedFd>,
}

impl Short {
    pub(super) fn new(socket: &TcpStream) -> Self {
        let known = || -> io::Result<OwnedFd> {
            queue::wait(socket)?;
            // Without the right to, the kernel's own buffer holds less back.
            let _ = queue::widen(socket);
            socket.as_fd().try_clone_to_owned()
        };
        Self { socket: known().ok() }
    }
}

impl Pace for Short {
    fn ask(&mut self, up: bool, wanted: DataSize) -> Grant {
        let socket = self.socket.as_ref().filter(|_| up);
        match socket.and_then(|socket| queue::wait(socket).ok().flatten()) {
            Some(later) => Grant::Later(later),
            None => Grant::Now(wanted),
        }
    }
    fn passed(&mut self, _: bool, _: DataSize, _: DataSize) {}
}
