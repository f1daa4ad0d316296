//! A flow whose own queue is kept short.
//!
//! In: a connection to a relay. Out: when it is given more ([`marline_net::queue`]).
//!
//! Where the kernel cannot say what waits, it is given what it takes.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use marline_core::units::DataSize;
use marline_net::queue;
use tokio::net::TcpStream;

use crate::tunnel::{Grant, Pace};

/// What waits on one connection.
#[derive(Debug)]
pub(super) struct Queue(Option<OwnedFd>);

impl Queue {
    pub(super) fn of(socket: &TcpStream) -> Self {
        let known = || -> io::Result<OwnedFd> {
            queue::wait(socket)?;
            // Without the right to, the kernel's own buffer holds less back.
            let _ = queue::widen(socket);
            socket.as_fd().try_clone_to_owned()
        };
        Self(known().ok())
    }

    /// How long to wait before it is given more; none: not at all.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.0.as_ref().and_then(|socket| queue::wait(socket).ok().flatten())
    }
}

/// The pace of one flow, around another one.
#[derive(Debug)]
pub(super) struct Short<P> {
    queue: Queue,
    inner: P,
}

impl<P> Short<P> {
    pub(super) fn new(socket: &TcpStream, inner: P) -> Self {
        Self { queue: Queue::of(socket), inner }
    }
}

impl<P: Pace> Pace for Short<P> {
    fn ask(&mut self, up: bool, wanted: DataSize) -> Grant {
        match up.then(|| self.queue.wait()).flatten() {
            Some(later) => Grant::Later(later),
            None => self.inner.ask(up, wanted),
        }
    }
    fn passed(&mut self, up: bool, granted: DataSize, passed: DataSize) {
        self.inner.passed(up, granted, passed);
    }
}
