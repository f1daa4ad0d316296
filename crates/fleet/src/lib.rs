//! Who serves whom: relays that carry edges' streams to their servers, and the service that matches both.
//!
//! ```text
//! application ─▶ edge ══ MPTCP + TLS, all links ══▶ relay ─▶ original server
//!                  └──── fleet: which relay ────┘
//! ```

pub mod ca;
pub mod congestion;
pub mod edge;
pub mod enrol;
/// No part of what this crate promises.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod identity;
mod list_reload;
mod race;
pub mod relay;
pub mod reload;
pub mod renew;
pub mod service;
mod share;
mod starts;
pub mod tls;
mod tunnel;
