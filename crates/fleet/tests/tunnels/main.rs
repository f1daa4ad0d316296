//! Tunnels over loopback: real sockets, real certificates, relays and edges of all kinds.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

mod edge;
mod faults;
mod fixture;
mod hostile;
mod load;
mod probe;
mod relay;
