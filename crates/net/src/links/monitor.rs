//! Reports that interfaces, addresses, routes or rules have changed, from the multicast groups of route netlink.
//!
//! The messages themselves are discarded, and the caller lists the interfaces again: that costs less than a
//! millisecond, and it cannot miss changes whose messages an overflowing socket has dropped.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Context, Poll, ready};

use marline_core::wire::netlink::group;
use marline_sys::netlink::RouteSocket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::LinksError;

/// A subscription to changes. Needs a tokio runtime with I/O enabled.
#[derive(Debug)]
pub struct Monitor {
    socket: AsyncFd<MonitorSocket>,
}

/// Wraps the socket in a type with the trait that tokio requires.
#[derive(Debug)]
struct MonitorSocket(RouteSocket);

impl AsRawFd for MonitorSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Monitor {
    /// Subscribes. Changes are reported from now on, so a caller that lists the interfaces afterwards misses none.
    ///
    /// # Errors
    /// The kernel does not provide a netlink socket.
    pub fn new() -> Result<Self, LinksError> {
        const V4: u32 = group::ADDRESS_V4 | group::ROUTE_V4 | group::RULE_V4;
        const V6: u32 = group::ADDRESS_V6 | group::ROUTE_V6 | group::RULE_V6;
        const GROUPS: u32 = group::LINK | V4 | V6;
        let listener = MonitorSocket(RouteSocket::listen(GROUPS)?);
        #[allow(
            deprecated,
            reason = "its successor is unsafe for the sake of descriptors that change; this one cannot"
        )]
        let socket = AsyncFd::with_interest(listener, Interest::READABLE)?;
        Ok(Self { socket })
    }

    /// Waits until something has changed since the last call. Several changes at once are reported as one. Dropping
    /// the future loses nothing.
    ///
    /// # Errors
    /// Reading the socket failed. An overflow of its buffer is not an error, but reported as a change.
    pub async fn changed(&mut self) -> Result<(), LinksError> {
        poll_fn(|cx| self.poll_changed(cx)).await
    }

    /// Like [`changed`](Self::changed), for callers that poll: the next change wakes the task.
    ///
    /// # Errors
    /// As [`changed`](Self::changed).
    pub fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinksError>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            if let Ok(result) = ready.try_io(|listener| discard_events(&listener.get_ref().0)) {
                return Poll::Ready(result.map_err(LinksError::from));
            }
        }
    }
}

/// Reads and discards all pending messages; returns `WouldBlock` if there are none.
fn discard_events(socket: &RouteSocket) -> io::Result<()> {
    /// The buffer of the socket has overflowed.
    const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();
    let mut has_event = false;
    loop {
        match socket.next_event() {
            Ok(_) => has_event = true,
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => has_event = true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && has_event => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
