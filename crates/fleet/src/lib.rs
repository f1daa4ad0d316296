//! Bonding through relays: the edge, the relay, the fleet service that assigns relays to edges, and the fleet's
//! certificates.
//!
//! ```text
//! application ─▶ edge ══ MPTCP + TLS, all links ══▶ relay ─▶ origin server
//!                  └──── fleet: which relay ────┘
//! ```

pub mod ca;
pub mod congestion;
mod crypto;
pub mod edge;
pub mod enrol;
/// Not part of the public API.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod happy_eyeballs;
pub mod identity;
mod link_dialer;
mod list_reload;
mod listen_error;
pub mod relay;
pub mod reload;
pub mod renew;
mod server_trust;
pub mod service;
pub mod tls;
mod tls_listener;
mod tunnel;
