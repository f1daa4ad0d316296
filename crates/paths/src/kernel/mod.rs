//! Linux interface of the driver: commands to MPTCP's path manager, its events, and counters of subflows.
//!
//! It translates between netlink and plain values (addresses, ports, ids) and knows neither links nor policies.
//!
//! 1. There are three sockets: for commands, for events, and for sock_diag queries. A reply never waits behind an
//!    event.
//! 2. Commands and queries block for the tens of microseconds that the kernel needs; several are sent in one call.
//!
//! - `pm_netlink`: commands to the path manager, and its endpoints and limits
//! - `events`: the path manager's events
//! - `sock_diag`: queries, dumps and aborts of sockets
//! - `netstat`: the kernel's MPTCP counters; `fallback`: those that count fallbacks to plain TCP

mod events;
mod fallback;
mod netstat;
mod pm_netlink;
mod sock_diag;

pub(super) use events::{EventBatch, EventSubscription};
pub(super) use fallback::{FallbackCounters, read_fallback_counters};
pub(super) use netstat::read_mptcp_counters;
pub(super) use pm_netlink::{PathManager, command_error, is_family_mismatch};
pub(super) use sock_diag::{SockDiag, SocketReply, SubflowQuery};
