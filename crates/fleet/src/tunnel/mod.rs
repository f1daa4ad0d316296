//! What an edge and a relay have in common: the request for a tunnel, and its bytes.

mod carry;
pub(crate) mod end;
mod head;
mod memory;
mod wire;

pub(crate) use carry::{Going, Grant, Pace, carry, carry_watched};
pub(crate) use head::{CONNECTED, Problem, Request, Status, Target, parse};
pub(crate) use wire::Wire;

/// Where an edge sends bytes to a relay that counts them and throws them away (RFC 8615).
pub(crate) const PROBE: &str = "/.well-known/marline/probe";
