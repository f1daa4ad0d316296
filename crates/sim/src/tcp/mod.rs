//! TCP of the Linux kernel for one connection, without sockets and without a clock.
//!
//! Segments arrive from a [`Link`](crate::link), bytes from an application. The results are segments to send, and
//! the end of the stream received in order. Payload is counted, not carried; a byte is identified by its offset in
//! the stream.
//!
//! 1. Each file owns one part of the state. [`Segment`] has the values on the wire, `receiver` the received data
//!    and the ACKs, `scoreboard` the data in flight. `rack` detects losses, `prr` reduces the window, `undo`
//!    restores it, and `persist` is the peer's receive window. `rtt` estimates the RTT and the timeouts,
//!    [`congestion`] is the congestion control, `sender` chooses the next segment, and [`Socket`] opens and closes
//!    the connection.
//! 2. Constants that no RFC defines are those of Linux 6.x with default settings, on which the laboratory runs. The
//!    simulation is meant to predict the laboratory's results within a few percent.
//! 3. Features without use here are missing: urgent data, ECN, retransmissions of another size. Sequence numbers do
//!    not wrap here; they do where packets are built from segments.
//!
//! A fluid model (a rate shared by the flows, without packets) does not serve. It has neither slow start nor the
//! effect of a 50 ms queue on it, and these two determine a download of one second.

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
