//! Tunnels over loopback: real sockets, real certificates, relays and edges of all kinds.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

mod edge;
mod faults;
mod hostile;
mod load;
mod place;
mod probe;
mod relay;
