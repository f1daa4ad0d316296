//! The fleet service (`marline fleet run`; BASS §III-A.3): assigns each edge to a relay.
//!
//! Relays and edges report to it over an HTTP API secured by mutual TLS; it replies with assignments.
//!
//! ```text
//! connections ─▶ listener ─▶ api ─▶ coordinator ─▶ scheduler
//!                             │          └───────▶ store, authority
//!                             └▶ leader_proxy ─▶ the process that leads
//! ```
//!
//! 1. All decisions are made by [`scheduling`](marline_core::fleet::scheduling), a state machine without clock or sockets.
//! 2. No stream depends on the service: while it is unreachable, edges keep using the relays they know.
//! 3. A caller is identified by its certificate ([`tls`](crate::tls)) and by nothing else. A caller without a certificate may only
//!    enrol and read the public paths (`routes`).
//!
//! - `listener`, `routes`, `api`, [`api_types`], `problem`: connections, paths, handlers, bodies and error responses
//! - `coordinator`: drives the scheduler; `duplicates`: certificates that several processes use
//! - [`store`], `replicated_rows`: what survives a restart, and what the next leader reads
//! - `leader_election`, `leader_lease`: which process leads; `leader_proxy`, `leader_conns`: requests forwarded to it
//! - `client`: calls of members to the service

mod api;
#[cfg(test)]
mod api_schema_tests;
pub mod api_types;
mod client;
mod coordinator;
mod duplicates;
mod leader_conns;
mod leader_election;
mod leader_lease;
mod leader_proxy;
mod listener;
mod lock;
mod problem;
mod replicated_rows;
mod routes;
pub mod store;

pub use api::MAX_BODY;
pub use api_types::{DrainReply, DrainRequest, EnrolReply, EnrolRequest};
pub use client::{Client, ClientError};
pub use coordinator::{Coordinator, StartError};
pub use listener::{ApiListener, Limits};
pub use marline_core::fleet::Position;
pub use problem::Problem;
