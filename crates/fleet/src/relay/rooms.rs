//! How much may wait in the kernel to be read from edges, in all.
//!
//! In: the bytes of each tunnel, as they come. Out: how large its connection's receive buffer is.
//!
//! 1. What several links bring at once needs [`LARGE`] ([`super::door`]); 16,384 connections with so much each would be 64 GiB.
//!    So a connection begins with [`SMALL`], and has a large one for as long as bytes come, if the budget
//!    ([`super::Limits::buffers`]) has one left.
//! 2. A connection gets it when half of a small buffer has come since it was small. A tunnel of which nothing has come for [`IDLE`], because
//!    its edge sends nothing or because its server takes nothing, gives its large one back.
//! 3. Windows do not shrink (RFC 9293 §3.8.6): what was promised may still come. So a place is free for another one only when its
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
/// On one that says little. chosen: 34 Mbit/s and 30 ms: it is passed within the first second of a stream.
const SMALL: usize = 64 << 10;
/// chosen: longer than any stall that a link's loss brings and a stream survives.
const IDLE: Duration = Duration::from_secs(3);

/// The large ones that are left.
#[derive(Debug)]
pub(super) struct Rooms {
    left: AtomicUsize,
    /// Listeners have made room for large ones; else the kernel's own buffers are better.
    used: AtomicBool,
}

impl Rooms {
    /// As many as `budget` pays for.
    pub(super) fn new(budget: DataSize) -> Arc<Self> {
        let each = 2 * LARGE as u64;
        let left = AtomicUsize::new(usize::try_from(budget.bytes() / each).unwrap_or(usize::MAX));
        Arc::new(Self { left, used: AtomicBool::new(false) })
    }

    /// From now on.
    pub(super) fn begin(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// What a connection begins with. A kernel that refuses leaves it what its listener has.
    pub(super) fn let_in(&self, socket: &TcpStream) {
        if self.used.load(Ordering::Relaxed) {
            let _ = SockRef::from(socket).set_recv_buffer_size(SMALL);
        }
    }

    fn take(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.used.load(Ordering::Relaxed)
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn give_back(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }
}

/// One tunnel's.
#[derive(Debug)]
pub(super) struct Room {
    rooms: Arc<Rooms>,
    large: Option<Pin<Box<Sleep>>>,
    /// Bytes, when the buffer became what it is; and when the clock was looked at last.
    before: u64,
    seen: u64,
}

impl Room {
    pub(super) fn new(rooms: &Arc<Rooms>) -> Self {
        Self { rooms: Arc::clone(rooms), large: None, before: 0, seen: 0 }
    }

    /// So many bytes have come by now.
    pub(super) fn watch(&mut self, cx: &mut Context<'_>, socket: &TcpStream, came: u64) {
        let Some(timer) = &mut self.large else {
            if came.saturating_sub(self.before) > SMALL as u64 / 2 && self.rooms.take() {
                // Without CAP_NET_ADMIN as much as net.core.rmem_max allows, as the listener has.
                if set_socket_recv_buffer_size_force(socket, LARGE).is_err() {
                    let _ = SockRef::from(socket).set_recv_buffer_size(LARGE);
                }
                (self.large, self.seen) = (Some(Box::pin(tokio::time::sleep(IDLE))), came);
                self.watch(cx, socket, came);
            }
            return;
        };
        while timer.as_mut().poll(cx).is_ready() {
            if std::mem::replace(&mut self.seen, came) == came {
                self.rooms.let_in(socket);
                (self.large, self.before) = (None, came);
                self.rooms.give_back();
                return;
            }
            timer.as_mut().reset(tokio::time::Instant::now() + IDLE);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.large.is_some() {
            self.rooms.give_back();
        }
    }
}
