//! Admission control: how many connections a listener keeps, and which one it evicts when there are too many.
//!
//! [`PendingHandshakes`] is for connections whose peer has not identified itself or sent a request yet: a new
//! connection is always admitted, and the network with the most open connections loses its oldest. [`ConnAdmission`]
//! is for connections that do work: each address has a limit, and beyond the total the network with the most
//! connections loses its newest.
//!
//! All listeners of this project (proxy, edge, relay, fleet service) use both. They only decide. Closing an evicted
//! connection is the caller's task, which stores the handle that it needs for that (`T`) with each entry.

mod conn_admission;
mod handshakes;

pub use conn_admission::{AdmissionDenied, AdmissionTicket, ConnAdmission};
pub use handshakes::{HandshakeTicket, PendingHandshakes, client_network};
