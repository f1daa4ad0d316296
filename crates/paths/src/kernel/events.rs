//! Subscription to MPTCP events of the kernel's path manager.
//!
//! It joins the multicast group of the netlink family and yields [`Event`]s, together with the information whether
//! some were lost. Joining the group requires CAP_NET_ADMIN.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Context, Poll, ready};

use marline_core::wire::netlink::messages;
use marline_core::wire::netlink::mptcp::Event;
use marline_sys::netlink::{Protocol, Socket, is_overflow};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub(crate) struct EventSubscription {
    socket: AsyncFd<EventSocket>,
    family: u16,
    buffer: Vec<u8>,
}

/// Events of one read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct EventBatch {
    /// Events in the order of the kernel.
    pub(crate) events: Vec<Event>,
    /// Whether the socket's buffer overflowed, so that further events were lost.
    pub(crate) has_lost_events: bool,
}

/// The socket with the trait that tokio requires.
#[derive(Debug)]
struct EventSocket(Socket);

impl AsRawFd for EventSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl EventSubscription {
    /// Joins the group. Events are received from this moment on.
    pub(crate) fn subscribe(family: u16, group: u32, rcvbuf_size: usize) -> io::Result<Self> {
        let socket = Socket::listen(Protocol::Generic, 0)?;
        socket.set_rcvbuf(rcvbuf_size)?;
        socket.join_group(group)?;
        #[allow(
            deprecated,
            reason = "its successor is unsafe for the sake of descriptors that change; this one cannot"
        )]
        let socket = AsyncFd::with_interest(EventSocket(socket), Interest::READABLE)?;
        Ok(Self { socket, family, buffer: vec![0; MAX_DATAGRAM_LEN] })
    }

    /// Waits for events. Dropping the future loses nothing.
    pub(crate) async fn next_batch(&mut self) -> io::Result<EventBatch> {
        poll_fn(|cx| self.poll_batch(cx)).await
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<EventBatch>> {
        let (family, buffer) = (self.family, &mut self.buffer);
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            if let Ok(batch) = ready.try_io(|listener| read_batch(&listener.get_ref().0, family, buffer)) {
                return Poll::Ready(batch);
            }
        }
    }
}

/// Reads the pending events, up to a maximum; fails with `WouldBlock` if there are none. After an overflow the socket
/// is read until it is empty: before that the kernel drops all further events without another report.
fn read_batch(socket: &Socket, family: u16, buffer: &mut [u8]) -> io::Result<EventBatch> {
    let mut batch = EventBatch::default();
    let mut count = 0;
    while count < EVENTS_PER_BATCH || batch.has_lost_events {
        count += 1;
        match socket.next_event_in(buffer) {
            Ok(bytes) => batch.events.extend(messages(bytes).filter_map(|m| Event::parse(&m, family))),
            Err(error) if is_overflow(&error) => batch.has_lost_events = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && count > 1 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(batch)
}

/// Maximum size of a datagram. An event has some two hundred bytes; each is a separate datagram.
const MAX_DATAGRAM_LEN: usize = 8 * 1024;
/// Our choice: this number is processed in a few milliseconds, which bounds the delay of other event sources.
const EVENTS_PER_BATCH: usize = 256;
