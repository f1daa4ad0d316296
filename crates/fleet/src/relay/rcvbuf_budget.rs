//! Limits the kernel memory for the receive buffers of tunnels, in total.
//!
//! From the bytes that each tunnel has received, it decides whether the connection's receive buffer is large or small.
//!
//! 1. Several links together need a buffer of [`LARGE_RCVBUF`] (see `super::listener`); for 16,384 connections that would be 64 GiB. A
//!    connection still begins with a large buffer: before any bytes arrive the kernel promises no more than 64 KiB (`rcv_ssthresh`),
//!    and a buffer that is enlarged only later is slow for the first seconds (measured: 15.4 of 18.7 Mbit/s).
//! 2. When half of [`SMALL_RCVBUF`] has arrived, the connection takes a slot of the budget ([`super::Limits::receive_buffers`]). If none
//!    is free, its buffer is made small until one is.
//! 3. A tunnel that has received nothing for [`IDLE_TIME`], because the edge sends nothing or the server accepts nothing, returns its
//!    slot when slots become scarce.
//! 4. Windows do not shrink (RFC 9293 §3.8.6): the peer may still send what was advertised. A slot is therefore free for another tunnel
//!    only after its holder's buffer was made small, and until then counts what the holder was granted.
//!
//! The kernel's automatic buffer growth is no alternative: MPTCP's is slow, and its only bound is that for all connections of the
//! host (`net.ipv4.tcp_mem`), beyond which all connections are slowed down.

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

/// Receive buffer of a connection with a slot, in bytes. Our choice: 100 Mbit/s and 160 ms; the kernel doubles it for its own overhead.
pub(super) const LARGE_RCVBUF: usize = 2 << 20;
/// Receive buffer of a connection without a slot, in bytes. Our choice: 17 Mbit/s and 30 ms.
const SMALL_RCVBUF: usize = 64 << 10;
/// Our choice: longer than any stall that a stream survives on a lossy link.
const IDLE_TIME: Duration = Duration::from_secs(3);

/// The budget: the number of slots for large buffers.
#[derive(Debug)]
pub(super) struct RcvbufBudget {
    slots: usize,
    free_slots: AtomicUsize,
    /// The listeners have set large buffers; otherwise the kernel's automatic buffers are better.
    is_enabled: AtomicBool,
}

impl RcvbufBudget {
    /// As many slots as `budget` allows.
    pub(super) fn new(budget: DataSize) -> Arc<Self> {
        let slot_size = 2 * LARGE_RCVBUF as u64;
        let slots = usize::try_from(budget.bytes() / slot_size).unwrap_or(usize::MAX);
        Arc::new(Self { slots, free_slots: AtomicUsize::new(slots), is_enabled: AtomicBool::new(false) })
    }

    /// Starts managing buffers.
    pub(super) fn enable(&self) {
        self.is_enabled.store(true, Ordering::Relaxed);
    }

    fn acquire(&self) -> bool {
        let decrement = |left: usize| left.checked_sub(1);
        self.free_slots.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement).is_ok()
    }

    fn release(&self) {
        self.free_slots.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether idle holders must return their slots.
    fn is_scarce(&self) -> bool {
        self.free_slots.load(Ordering::Relaxed) <= self.slots / 4
    }
}

/// The receive buffer of one tunnel.
#[derive(Debug)]
pub(super) struct TunnelRcvbuf {
    budget: Arc<RcvbufBudget>,
    state: RcvbufState,
}

#[derive(Debug)]
enum RcvbufState {
    /// The buffer is large, as inherited from the listener, but the kernel has not advertised that much yet.
    New,
    /// It holds a slot. The timer for the idle check, and the bytes received at the last check.
    Large(Pin<Box<Sleep>>, u64),
    /// It holds no slot. The bytes received when the buffer was made small.
    Small(u64),
}

impl TunnelRcvbuf {
    pub(super) fn new(budget: &Arc<RcvbufBudget>) -> Self {
        Self { budget: Arc::clone(budget), state: RcvbufState::New }
    }

    /// Adapts the buffer to the bytes received so far.
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
                    // Without CAP_NET_ADMIN the size is limited by net.core.rmem_max, as for the listener.
                    if set_socket_recv_buffer_size_force(socket, LARGE_RCVBUF).is_err() {
                        let _ = SockRef::from(socket).set_recv_buffer_size(LARGE_RCVBUF);
                    }
                    self.hold_slot(cx, received);
                }
            }
            RcvbufState::Large(timer, last_received) => {
                while timer.as_mut().poll(cx).is_ready() {
                    // Nothing has arrived since the last check. The slot is given up only if others may need it.
                    if std::mem::replace(last_received, received) == received && self.budget.is_scarce() {
                        self.budget.release();
                        return self.shrink(socket, received);
                    }
                    timer.as_mut().reset(tokio::time::Instant::now() + IDLE_TIME);
                }
            }
        }
    }

    /// Records that it holds a slot.
    fn hold_slot(&mut self, cx: &mut Context<'_>, received: u64) {
        let mut timer = Box::pin(tokio::time::sleep(IDLE_TIME));
        // Registers the waker; the timer has not expired yet.
        let _ = timer.as_mut().poll(cx);
        self.state = RcvbufState::Large(timer, received);
    }

    /// Makes the buffer small. If the kernel refuses, the buffer stays as it is.
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
