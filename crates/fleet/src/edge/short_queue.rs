//! Pacer that keeps the send queue of a flow's relay connection short ([`marline_net::mptcp_send_queue`]).
//!
//! If the kernel does not report the queue, data is written as fast as the socket accepts it.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use marline_core::units::DataSize;
use marline_net::mptcp_send_queue;
use tokio::net::TcpStream;

use crate::tunnel::{PaceGrant, Pacer};

/// The send queue of one connection; empty if the kernel does not report it.
#[derive(Debug)]
pub(super) struct SendQueue(Option<OwnedFd>);

impl SendQueue {
    pub(super) fn of(socket: &TcpStream) -> Self {
        let open_fd = || -> io::Result<OwnedFd> {
            mptcp_send_queue::write_delay(socket)?;
            // Without CAP_NET_ADMIN the kernel's default send buffer is the limit.
            let _ = mptcp_send_queue::enlarge_send_buffer(socket);
            socket.as_fd().try_clone_to_owned()
        };
        Self(open_fd().ok())
    }

    /// How long to wait before more is written; `None`: no wait.
    pub(super) fn delay(&self) -> Option<Duration> {
        self.0.as_ref().and_then(|socket| mptcp_send_queue::write_delay(socket).ok().flatten())
    }
}

/// Pacer of one flow, around another pacer.
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
        match up.then(|| self.queue.delay()).flatten() {
            Some(delay) => PaceGrant::RetryAfter(delay),
            None => self.inner.request(up, wanted),
        }
    }
    fn settle(&mut self, up: bool, granted: DataSize, sent: DataSize) {
        self.inner.settle(up, granted, sent);
    }
}
