//! What an edge and a relay have in common: the request for a tunnel, and its bytes.

mod carry;
mod head;
mod memory;
mod wire;

pub(crate) use carry::{Free, Going, Grant, Pace, carry, carry_watched};
pub(crate) use head::{CONNECTED, Problem, Request, Status, Target, parse};
pub(crate) use wire::Wire;
