//! Linux's side of the driver: commands to MPTCP's path manager, its events, and the counters of subflows.
//!
//! In: addresses, ports and ids. Out: what the kernel says, as values. Nothing here knows of links or policies.
//!
//! 1. Three sockets: one for commands, one for events, one for questions to sock_diag. A reply never waits behind an
//!    event.
//! 2. Commands and questions block for the tens of microseconds that the kernel takes; several go in one call.

mod events;
mod fallback;
mod pm_netlink;
mod sock_diag;

pub(super) use events::{EventBatch, EventSubscription};
pub(super) use fallback::{FallbackCounters, read_fallback_counters};
pub(super) use pm_netlink::{PathManager, command_error, is_family_mismatch};
pub(super) use sock_diag::{SockDiag, SocketReply, SubflowQuery};
