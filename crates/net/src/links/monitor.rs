//! Hears from the kernel that something about interfaces, addresses, routes or rules has changed.
//!
//! In: the multicast groups of route netlink. Out: "survey again". The messages themselves are thrown away: a survey
//! costs less than a millisecond, and cannot miss what an overflowing socket has dropped.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Context, Poll, ready};

use marline_core::wire::netlink::group;
use marline_sys::netlink::RouteSocket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::LinksError;

/// A subscription to changes. It lives in a tokio runtime with I/O.
#[derive(Debug)]
pub struct Monitor {
    socket: AsyncFd<MonitorSocket>,
}

/// The socket with the trait that tokio asks for.
#[derive(Debug)]
struct MonitorSocket(RouteSocket);

impl AsRawFd for MonitorSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Monitor {
    /// Subscribes. Changes count from here: survey afterwards, and nothing is missed.
    ///
    /// # Errors
    /// When the kernel gives no netlink socket.
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

    /// Waits until something has changed since the last call. Many changes at once are one. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// When the socket itself fails; an overflow of it is a change.
    pub async fn changed(&mut self) -> Result<(), LinksError> {
        poll_fn(|cx| self.poll_changed(cx)).await
    }

    /// The same for who polls by himself: the task is woken by the next change.
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

/// Throws away what is there; would block if there is nothing.
fn discard_events(socket: &RouteSocket) -> io::Result<()> {
    /// The socket's buffer has overflowed.
    const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();
    let mut has_event = false;
    loop {
        match socket.event() {
            Ok(_) => has_event = true,
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => has_event = true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && has_event => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
