//! Simulation of the accelerator: at a client, between its TCP stack and its links, with servers that know nothing of
//! it.
//!
//! A [`Scenario`] describes links, flows and events. [`World`] runs it and returns the [`Outcome`] of each flow, with
//! all violations of invariants.
//!
//! 1. Both ends are the kernel's TCP as [`crate::tcp`] has it, exact. Towards the client segments travel as values; what the
//!    client's stack sends is made a real packet (`packet`), with numbers that wrap, scaled windows and clocks of 1 ms, so
//!    that the accelerator reads and writes what it would on a wire.
//! 2. Of a byte is known what it must be, by its place in its stream ([`Content`]): what is injected is compared byte by
//!    byte with what the server has there.
//! 3. The accelerator holds small packets that leave, and sees the others only if it asks to; gateways answer while their
//!    link works; bytes are fetched over a link's own packets, and may be late, short, or not to be had (`origin`).
//! 4. From a kill on everything passes untouched, and what was held is gone.
//! 5. What is always checked: one `Leave` or `Hold` for each packet held and none else; what is not TCP leaves as it came;
//!    no window ends later than the stack's own; without a mechanism that hides, nothing is acknowledged that has not come.
//! 6. [`history`] draws scenes, and compares each with the same one without an accelerator.

mod byte_stream;
mod invariants;
mod link;
mod malformed;
mod mirrored_server;
mod origin;
mod packet;
mod payload;
pub mod random;
mod scenario;
mod tcp_pair;
mod world;

pub use byte_stream::ByteStreams;
pub use scenario::{Close, Exchange, FlowScript, Malformed, Outage, Scenario, ServerBehavior};
pub use world::{FlowOutcome, Outcome, World};
