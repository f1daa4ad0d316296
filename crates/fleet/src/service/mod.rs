//! The scheduling service (`marline fleet run`; BASS §III-A.3): which edge sends through which relay.
//!
//! In: what relays and edges say of themselves, over HTTP and mutual TLS. Out: assignments.
//!
//! 1. Decisions are [`machine`]'s, which has neither clock nor socket.
//! 2. No stream depends on the service: while it is away, edges use what they have.

pub mod machine;
mod position;
pub mod words;

pub use position::Position;
