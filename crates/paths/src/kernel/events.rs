//! The path manager's events, as they come.
//!
//! In: the multicast group of the family. Out: [`Event`]s, and whether some were lost. Without CAP_NET_ADMIN there is no
//! such group; the constructor says so.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Context, Poll, ready};

use marline_core::wire::netlink::messages;
use marline_core::wire::netlink::mptcp::Event;
use marline_sys::netlink::{Protocol, Socket, is_overflow};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A subscription to events.
#[derive(Debug)]
pub(crate) struct Events {
    socket: AsyncFd<Listener>,
    family: u16,
    buffer: Vec<u8>,
}

/// What came in one turn.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// In the order of the kernel.
    pub(crate) events: Vec<Event>,
    /// The socket overflowed: there were others.
    pub(crate) lost: bool,
}

/// The socket with the trait that tokio asks for.
#[derive(Debug)]
struct Listener(Socket);

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Events {
    /// Joins the group. Events count from here.
    pub(crate) fn join(family: u16, group: u32, room: usize) -> io::Result<Self> {
        let socket = Socket::listen(Protocol::Generic, 0)?;
        socket.make_room(room)?;
        socket.join(group)?;
        #[allow(
            deprecated,
            reason = "its successor is unsafe for the sake of descriptors that change; this one cannot"
        )]
        let socket = AsyncFd::with_interest(Listener(socket), Interest::READABLE)?;
        Ok(Self { socket, family, buffer: vec![0; LONGEST] })
    }

    /// Waits for events. Dropping the future loses nothing.
    pub(crate) async fn heard(&mut self) -> io::Result<Heard> {
        poll_fn(|cx| self.poll_heard(cx)).await
    }

    fn poll_heard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Heard>> {
        let (family, buffer) = (self.family, &mut self.buffer);
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            if let Ok(heard) = ready.try_io(|listener| drain(&listener.get_ref().0, family, buffer)) {
                return Poll::Ready(heard);
            }
        }
    }
}

/// Takes what is there, but not more than a turn's worth; would block if there is nothing. An overflowed socket is
/// emptied to the last event: until then the kernel throws away all others, and does not say so again.
fn drain(socket: &Socket, family: u16, buffer: &mut [u8]) -> io::Result<Heard> {
    let mut heard = Heard::default();
    let mut turn = 0;
    while turn < A_TURN || heard.lost {
        turn += 1;
        match socket.event_in(buffer) {
            Ok(bytes) => heard.events.extend(messages(bytes).filter_map(|m| Event::parse(&m, family))),
            Err(error) if is_overflow(&error) => heard.lost = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && turn > 1 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(heard)
}

/// Bytes of one datagram. An event has some two hundred; each is a datagram of its own.
const LONGEST: usize = 8 * 1024;
/// chosen: so many events take a few milliseconds to be dealt with, and the other sources wait no longer than that.
const A_TURN: usize = 256;
