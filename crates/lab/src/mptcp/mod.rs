//! MPTCP in the lab: clients that speak it, what manages their paths, and what their radios would have drawn.
//!
//! In: a running [`Lab`](crate::Lab) whose server speaks MPTCP ([`crate::Sender`]). Out: downloads and pages with their
//! times, and joules from the packets that the emulator saw.
//!
//! 1. A client is this program's own ([`http_client`], [`web_page`]), or any program under `marline run`: what decides about paths
//!    is outside of it either way.
//! 2. Paths are managed by the kernel with endpoints ([`endpoint`]), by mptcpd ([`mptcpd`]), or by `marline paths`
//!    ([`daemon`]), both processes at the client's end.
//! 3. Joules are of every packet at the client's end ([`energy`]); what the daemon says itself may stand beside them.

pub(crate) mod daemon;
pub(crate) mod endpoint;
pub(crate) mod energy;
pub(crate) mod http_client;
pub(crate) mod mptcpd;
pub(crate) mod suspended_traffic;
pub(crate) mod testbed;
pub(crate) mod web_page;
