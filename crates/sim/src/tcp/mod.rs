//! TCP as the Linux kernel does it, on one connection, without sockets or a clock.
//!
//! In: segments from a [`Link`](crate::link), bytes from an application, the time. Out: segments, and how far the
//! stream has arrived in order. Payload is counted and never carried; what a byte means is known by its place in the
//! stream.
//!
//! 1. Each state is owned by one file: [`Segment`] the values on the wire, `receiver` what has arrived and when it is
//!    acknowledged, `scoreboard` what is on its way, `rack` what of it counts as lost, `prr` how a loss slows the
//!    sender down, `undo` how that is taken back, `persist` what the receiver has room for, `rtt` the round-trip time and
//!    the timeouts made of it, [`congestion`] how much may be on its way, `sender` what goes out next, [`Socket`] the
//!    connection's birth and death.
//! 2. Figures that no RFC fixes are those of Linux 6.x with its default settings, since the lab runs on it: the
//!    simulation is to tell within a few percent what the lab will measure.
//! 3. What no world here needs is not there: urgent data, ECN, segments of another size when sent again. Numbers do not
//!    wrap here; where packets are made of segments, they do there.
//!
//! A fluid model (rate shared among flows, no packets) was not used: it knows neither slow start nor what a queue of
//! 50 ms does to it, and just these decide a download of one second.

pub mod congestion;
mod cwnd_limited;
mod persist;
mod prr;
mod rack;
mod receiver;
mod rtt;
mod scoreboard;
mod segment;
mod sender;
mod socket;
mod undo;

pub use congestion::Algorithm;
pub use segment::{Flags, SackBlocks, Segment, SeqRange};
pub use socket::{Socket, SocketInfo, TcpCloseReason, TcpConfig, TcpState};

#[cfg(test)]
mod tests;
