//! Linux's side of the driver: commands to MPTCP's path manager, its events, and the counters of subflows.
//!
//! In: addresses, ports and ids. Out: what the kernel says, as values. Nothing here knows of links or policies.
//!
//! 1. Three sockets: one for commands, one for events, one for questions to sock_diag. A reply never waits behind an
//!    event.
//! 2. Commands and questions block for the tens of microseconds that the kernel takes; several go in one call.

mod events;
mod fallback;
mod manager;
mod sockets;

pub(super) use events::{Events, Heard};
pub(super) use fallback::{Fallback, fell_back};
pub(super) use manager::{PathManager, is_of_other_family, refusal};
pub(super) use sockets::{Answer, Asked, Sockets};
