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
pub(super) const LARGE_RCVBUF: usize = 2 << 20;
/// On one for which there is no place. chosen: 34 Mbit/s and 30 ms.
const SMALL_RCVBUF: usize = 64 << 10;
/// chosen: longer than any stall that a link's loss brings and a stream survives.
const IDLE_TIME: Duration = Duration::from_secs(3);

/// The large ones that are left.
#[derive(Debug)]
pub(super) struct RcvbufBudget {
    slots: usize,
    free_slots: AtomicUsize,
    /// Listeners have made room for large ones; else the kernel's own buffers are better.
    is_enabled: AtomicBool,
}

impl RcvbufBudget {
    /// As many as `budget` pays for.
    pub(super) fn new(budget: DataSize) -> Arc<Self> {
        let slot_size = 2 * LARGE_RCVBUF as u64;
        let slots = usize::try_from(budget.bytes() / slot_size).unwrap_or(usize::MAX);
        Arc::new(Self { slots, free_slots: AtomicUsize::new(slots), is_enabled: AtomicBool::new(false) })
    }

    /// From now on.
    pub(super) fn enable(&self) {
        self.is_enabled.store(true, Ordering::Relaxed);
    }

    fn acquire(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        self.free_slots.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn release(&self) {
        self.free_slots.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether those who need none are to give theirs back.
    fn is_scarce(&self) -> bool {
        self.free_slots.load(Ordering::Relaxed) <= self.slots / 4
    }
}

/// One tunnel's.
#[derive(Debug)]
pub(super) struct TunnelRcvbuf {
    budget: Arc<RcvbufBudget>,
    state: RcvbufState,
}

#[derive(Debug)]
enum RcvbufState {
    /// Large as its listener, and nothing is promised yet.
    New,
    /// It has a place; the clock was looked at last when so much had come.
    Large(Pin<Box<Sleep>>, u64),
    /// Since so much had come.
    Small(u64),
}

impl TunnelRcvbuf {
    pub(super) fn new(rooms: &Arc<RcvbufBudget>) -> Self {
        Self { budget: Arc::clone(rooms), state: RcvbufState::New }
    }

    /// So many bytes have come by now.
    pub(super) fn update(&mut self, cx: &mut Context<'_>, socket: &TcpStream, received: u64) {
        if !self.budget.is_enabled.load(Ordering::Relaxed) {
            return;
        }
        match &mut self.state {
            RcvbufState::New if received <= SMALL_RCVBUF as u64 / 2 => {}
            RcvbufState::New if self.budget.acquire() => self.hold_slot(cx, received),
            RcvbufState::New => self.shrink(socket, received),
            RcvbufState::Small(last_received) => {
                if received.saturating_sub(*last_received) > SMALL_RCVBUF as u64 / 2 && self.budget.acquire() {
                    // Without CAP_NET_ADMIN as much as net.core.rmem_max allows, as the listener has.
                    if set_socket_recv_buffer_size_force(socket, LARGE_RCVBUF).is_err() {
                        let _ = SockRef::from(socket).set_recv_buffer_size(LARGE_RCVBUF);
                    }
                    self.hold_slot(cx, received);
                }
            }
            RcvbufState::Large(timer, last_received) => {
                while timer.as_mut().poll(cx).is_ready() {
                    if std::mem::replace(last_received, received) == received && self.budget.is_scarce() {
                        self.budget.release();
                        return self.shrink(socket, received);
                    }
                    timer.as_mut().reset(tokio::time::Instant::now() + IDLE_TIME);
                }
            }
        }
    }

    /// It has a place from now on.
    fn hold_slot(&mut self, cx: &mut Context<'_>, received: u64) {
        let mut timer = Box::pin(tokio::time::sleep(IDLE_TIME));
        // So that it wakes: it has not passed yet.
        let _ = timer.as_mut().poll(cx);
        self.state = RcvbufState::Large(timer, received);
    }

    /// A kernel that refuses leaves it what it has.
    fn shrink(&mut self, socket: &TcpStream, received: u64) {
        let _ = SockRef::from(socket).set_recv_buffer_size(SMALL_RCVBUF);
        self.state = RcvbufState::Small(received);
    }
}

impl Drop for TunnelRcvbuf {
    fn drop(&mut self) {
        if matches!(self.state, RcvbufState::Large(..)) {
            self.budget.release();
        }
    }
}
