//! The scheduling service (`marline fleet run`; BASS §III-A.3): which edge sends through which relay.
//!
//! In: what relays and edges say of themselves, over HTTP and mutual TLS. Out: assignments.
//!
//! ```text
//! connections ─▶ serve ─▶ api ─▶ desk ─▶ machine
//!                         │        └───▶ store, authority
//!                         └▶ forward ─▶ the process that leads
//! ```
//!
//! 1. Decisions are [`machine`]'s, which has neither clock nor socket.
//! 2. No stream depends on the service: while it is away, edges use what they have.
//! 3. Who speaks is known by his certificate ([`tls`](crate::tls)) and by nothing else; who has none may only enrol.

mod api;
#[cfg(test)]
mod api_schema_tests;
pub mod api_types;
mod client;
mod coordinator;
mod duplicates;
mod geo;
mod leader_election;
mod leader_proxy;
mod listener;
mod problem;
mod routes;
pub mod scheduler;
pub mod store;

pub use api::{DrainReply, DrainRequest, EnrolReply, EnrolRequest, MAX_BODY};
pub use client::{Client, ClientError};
pub use coordinator::{Coordinator, StartError};
pub use geo::Position;
pub use listener::{ApiListener, Limits};
pub use problem::Problem;
