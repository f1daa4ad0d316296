//! Admission control: how many connections a listener keeps, and which one it gives up when there are too many.
//!
//! [`Handshakes`] is for connections whose peer has not identified itself or asked for anything yet: a newcomer always
//! gets in, and the network with the most open connections loses its oldest. [`Guests`] is for connections that do
//! work: each address has a bound, and beyond the total the network with the most loses its newest.
//!
//! Both are used by every listener of this project (proxy, edge, relay, fleet service). They only decide; closing a
//! connection is the caller's, which stores what it needs for that (`T`) with each entry.

mod conn_admission;
mod handshakes;

pub use conn_admission::{AdmissionDenied, AdmissionTicket as GuestTicket, ConnAdmission};
pub use handshakes::{HandshakeTicket, PendingHandshakes, client_network};
