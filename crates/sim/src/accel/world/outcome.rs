//! The outcome of a scenario.

use std::collections::BTreeMap;

use marline_core::units::{Duration, Instant};

use crate::tcp::TcpState;

/// The outcome of a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowOutcome {
    /// When the client had received everything.
    pub finished: Option<Instant>,
    /// Bytes that it has read.
    pub read: u64,
    /// The longest time that it has waited for a byte, and when that ended.
    pub stall: (Duration, Instant),
    /// The final state of the client's end.
    pub state: Option<TcpState>,
    /// The final state of the server's end.
    pub server: Option<TcpState>,
    /// The accelerator has reset it.
    pub was_reset: bool,
    /// When the accelerator was killed, or soon after, bytes were acknowledged to the server that the client did not
    /// have.
    pub lost_early_acked: bool,
}

/// The outcome of a scenario.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Of each flow.
    pub flows: Vec<FlowOutcome>,
    /// Violations of invariants.
    pub defects: Vec<String>,
    /// How often there was each output, by its name.
    pub outputs: BTreeMap<&'static str, u64>,
    /// IP bytes that the client has sent over the secondary link.
    pub secondary_up: u64,
    /// Bytes that were fetched.
    pub fetched: u64,
    /// When all flows were over (checked every half second), or the scenario's limit was reached.
    pub ended: Instant,
}
