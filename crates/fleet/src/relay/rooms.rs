//! How much may wait in the kernel to be read from edges, in all.
//!
//! In: the bytes of each tunnel, as they come. Out: how large its connection's receive buffer is.
//!
//! 1. What several links bring at once needs [`LARGE`] ([`super::door`]); 16,384 connections with so much each would be 64 GiB.
//!    A connection begins with it all the same: before bytes come, no more than 64 KiB are promised (`rcv_ssthresh`), and one that
//!    becomes large only then is slow for its first seconds (measured: 15.4 of 18.7 Mbit/s).
//! 2. When half of [`SMALL`] has come, it takes a place in the budget ([`super::Limits::buffers`]) or, where none is left, becomes
//!    small until one is.
//! 3. A tunnel of which nothing has come for [`IDLE`], because its edge sends nothing or because its server takes nothing, gives
//!    its place back when they become scarce.
//! 4. Windows do not shrink (RFC 9293 §3.8.6): what was promised may still come. So a place is free for another one only when its
//!    holder has become small, and what it still holds is what it had been granted.
//!
//! The kernel's own growing of buffers was not used: MPTCP's is slow, and has no bound but for all connections of the machine
//! (`net.ipv4.tcp_mem`), beyond which it slows down everybody.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use marline_core::units::DataSize;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// What may wait to be read on a connection whose bytes come. chosen: 100 Mbit/s and 160 ms; the kernel doubles it for its own books.
pub(super) const LARGE: usize = 2 << 20;
/// On one for which there is no place. chosen: 34 Mbit/s and 30 ms.
const SMALL: usize = 64 << 10;
/// chosen: longer than any stall that a link's loss brings and a stream survives.
const IDLE: Duration = Duration::from_secs(3);

/// The large ones that are left.
#[derive(Debug)]
pub(super) struct Rooms {
    places: usize,
    left: AtomicUsize,
    /// Listeners have made room for large ones; else the kernel's own buffers are better.
    used: AtomicBool,
}

impl Rooms {
    /// As many as `budget` pays for.
    pub(super) fn new(budget: DataSize) -> Arc<Self> {
        let each = 2 * LARGE as u64;
        let places = usize::try_from(budget.bytes() / each).unwrap_or(usize::MAX);
        Arc::new(Self { places, left: AtomicUsize::new(places), used: AtomicBool::new(false) })
    }

    /// From now on.
    pub(super) fn begin(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn give_back(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether those who need none are to give theirs back.
    fn are_scarce(&self) -> bool {
        self.left.load(Ordering::Relaxed) <= self.places / 4
    }
}

/// One tunnel's.
#[derive(Debug)]
pub(super) struct Room {
    rooms: Arc<Rooms>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Large as its listener, and nothing is promised yet.
    New,
    /// It has a place; the clock was looked at last when so much had come.
    Large(Pin<Box<Sleep>>, u64),
    /// Since so much had come.
    Small(u64),
}

impl Room {
    pub(super) fn new(rooms: &Arc<Rooms>) -> Self {
        Self { rooms: Arc::clone(rooms), state: State::New }
    }

    /// So many bytes have come by now.
    pub(super) fn watch(&mut self, cx: &mut Context<'_>, socket: &TcpStream, came: u64) {
        if !self.rooms.used.load(Ordering::Relaxed) {
            return;
        }
        match &mut self.state {
            State::New if came <= SMALL as u64 / 2 => {}
            State::New if self.rooms.take() => self.wait(cx, came),
            State::New => self.shrink(socket, came),
            State::Small(before) => {
                if came.saturating_sub(*before) > SMALL as u64 / 2 && self.rooms.take() {
                    // Without CAP_NET_ADMIN as much as net.core.rmem_max allows, as the listener has.
                    if set_socket_recv_buffer_size_force(socket, LARGE).is_err() {
                        let _ = SockRef::from(socket).set_recv_buffer_size(LARGE);
                    }
                    self.wait(cx, came);
                }
            }
            State::Large(timer, seen) => {
                while timer.as_mut().poll(cx).is_ready() {
                    if std::mem::replace(seen, came) == came && self.rooms.are_scarce() {
                        self.rooms.give_back();
                        return self.shrink(socket, came);
                    }
                    timer.as_mut().reset(tokio::time::Instant::now() + IDLE);
                }
            }
        }
    }

    /// It has a place from now on.
    fn wait(&mut self, cx: &mut Context<'_>, came: u64) {
        let mut timer = Box::pin(tokio::time::sleep(IDLE));
        // So that it wakes: it has not passed yet.
        let _ = timer.as_mut().poll(cx);
        self.state = State::Large(timer, came);
    }

    /// A kernel that refuses leaves it what it has.
    fn shrink(&mut self, socket: &TcpStream, came: u64) {
        let _ = SockRef::from(socket).set_recv_buffer_size(SMALL);
        self.state = State::Small(came);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if matches!(self.state, State::Large(..)) {
            self.rooms.give_back();
        }
    }
}
