//! MPTCP in the lab: clients that speak it, what manages their paths, and what their radios would have drawn.
//!
//! In: a running [`Lab`](crate::Lab) whose server speaks MPTCP ([`crate::Sender`]). Out: downloads and pages with their
//! times, and joules from the packets that the emulator saw.
//!
//! 1. A client is this program's own ([`fetch`], [`page`]), or any program under `marline run`: what decides about paths
//!    is outside of it either way.
//! 2. Paths are managed by the kernel with endpoints ([`endpoint`]), by mptcpd ([`peer`]), or by `marline paths`
//!    ([`daemon`]), both processes at the client's end.
//! 3. Joules are of every packet at the client's end ([`joules`]); what the daemon says itself may stand beside them.

pub(crate) mod daemon;
pub(crate) mod endpoint;
pub(crate) mod fetch;
pub(crate) mod joules;
pub(crate) mod page;
pub(crate) mod peer;
pub(crate) mod stage;
pub(crate) mod suspended;
