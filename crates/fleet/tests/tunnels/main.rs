//! Tests of tunnels over loopback, with real sockets and certificates, and with relays and edges that behave well or badly.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod edge;
mod faults;
mod fixture;
mod hostile;
mod load;
mod probe;
mod relay;
