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
mod client;
#[cfg(test)]
mod described;
mod desk;
mod duplicates;
mod forward;
mod lead;
pub mod machine;
mod position;
mod problem;
mod routes;
mod serve;
pub mod store;
pub mod words;

pub use api::{Drain, Drained, Enrol, Enrolled, LONGEST};
pub use client::{Client, ClientError};
pub use desk::{Desk, DeskError};
pub use position::Position;
pub use problem::Problem;
pub use serve::{Counter, Limits};
