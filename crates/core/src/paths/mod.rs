//! Which of a connection's links carry it, and when: the policy that kernel MPTCP lacks.
//!
//! In: what the kernel tells of MPTCP connections and their subflows, counters of those that were asked for, and which
//! links there are. Out: commands to a path manager (join, change priority, destroy) and what to look at next.
//!
//! 1. One machine decides for all connections of a host: they share its radios, so that a radio that one of them keeps
//!    awake is cheap for the others.
//! 2. Addresses, ports and address ids are the driver's; here are links, connections and subflows.
//! 3. Nothing is trusted that was only asked for: a subflow is there when it is told of ([`Input::SubflowUp`]), and
//!    suspended when its bytes stand still.
//! 4. The driver looks only where it is told to look ([`Output::Look`]): ten thousand idle connections cost next to
//!    nothing.

mod config;
mod event;

pub use config::{Config, LinkTerms, Policy, Profile};
pub use event::{Command, CommandId, ConnId, Counters, Input, Output, Refusal, Subflow, SubflowId, Why};
