//! Bonding through relays: the edge, the relay, the fleet service that assigns relays to edges, and the fleet's
//! certificates.
//!
//! ```text
//! application ─▶ edge ══ MPTCP + TLS, all links ══▶ relay ─▶ origin server
//!                  └──── fleet: which relay ────┘
//! ```
//!
//! - [`edge`], [`relay`], [`service`]: the three kinds of processes
//! - [`ca`], [`enrol`], [`renew`], [`identity`]: certificates of the members, from the token to the renewal
//! - [`tls`], `server_trust`, `tls_listener`, `crypto`: TLS with these certificates, for clients and servers
//! - `list_reload`, [`reload`]: files that are read again while a process runs
//! - `link_dialer`, `happy_eyeballs`: connections over several links, and to several addresses
//! - `tunnel`: the request for a tunnel and the copying of its bytes; [`congestion`]: its congestion control

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
