//! A flow whose own queue is kept short.
//!
//! In: a connection to a relay. Out: when it is given more ([`marline_net::mptcp_send_queue`]).
//!
//! Where the kernel cannot say what waits, it is given what it takes.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use marline_core::units::DataSize;
use marline_net::mptcp_send_queue;
use tokio::net::TcpStream;

use crate::tunnel::{PaceGrant, Pacer};

/// What waits on one connection.
#[derive(Debug)]
pub(super) struct SendQueue(Option<OwnedFd>);

impl SendQueue {
    pub(super) fn of(socket: &TcpStream) -> Self {
        let open_fd = || -> io::Result<OwnedFd> {
            mptcp_send_queue::write_delay(socket)?;
            // Without the right to, the kernel's own buffer holds less back.
            let _ = mptcp_send_queue::enlarge_send_buffer(socket);
            socket.as_fd().try_clone_to_owned()
        };
        Self(open_fd().ok())
    }

    /// How long to wait before it is given more; none: not at all.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.0.as_ref().and_then(|socket| mptcp_send_queue::write_delay(socket).ok().flatten())
    }
}

/// The pace of one flow, around another one.
#[derive(Debug)]
pub(super) struct ShortQueuePacer<P> {
    queue: SendQueue,
    inner: P,
}

impl<P> ShortQueuePacer<P> {
    pub(super) fn new(socket: &TcpStream, inner: P) -> Self {
        Self { queue: SendQueue::of(socket), inner }
    }
}

impl<P: Pacer> Pacer for ShortQueuePacer<P> {
    fn request(&mut self, up: bool, wanted: DataSize) -> PaceGrant {
        match up.then(|| self.queue.wait()).flatten() {
            Some(later) => PaceGrant::RetryAfter(later),
            None => self.inner.request(up, wanted),
        }
    }
    fn settle(&mut self, up: bool, granted: DataSize, passed: DataSize) {
        self.inner.settle(up, granted, passed);
    }
}
