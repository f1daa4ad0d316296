//! Simulation of the accelerator: at a client, between its TCP stack and its links, with servers that know nothing of
//! it.
//!
//! A [`Scenario`] describes links, flows and events. [`World`] runs it and returns the [`Outcome`] of each flow, with
//! all violations of invariants.
//!
//! 1. Both ends are the kernel's TCP as modeled by [`crate::tcp`] (with `TcpConfig::is_strict`). Segments towards the client are values.
//!    What the client's stack sends is converted into a real packet (`packet`), with sequence numbers that wrap, scaled
//!    windows and clocks of 1 ms, so that the accelerator reads and writes what it would on a wire.
//! 2. The content of every byte is known from its offset in the stream ([`ByteStreams`]): injected bytes are compared
//!    with those of the server.
//! 3. The accelerator holds small packets that leave, and captures others only on request. Gateways reply while their
//!    link works. Ranges are fetched over a link with real sizes, and may be late, short or unavailable (`origin`).
//! 4. After the accelerator was killed, every packet passes unchanged, and held packets are lost.
//! 5. Always checked: one `Forward` or `Suppress` for each held packet and for nothing else; packets that are not TCP
//!    leave unchanged; no window extends beyond the stack's own; without a mechanism that acknowledges early, nothing
//!    is acknowledged that has not arrived.
//! 6. [`random`] draws scenarios, and compares each with the same one without an accelerator.

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
