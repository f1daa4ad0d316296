//! MPTCP in the lab: clients, path managers, and energy accounting. The server must accept MPTCP
//! ([`crate::ServerTcp`]).
//!
//! 1. The client is either part of this program ([`http_client`], [`web_page`]) or any program under `marline run`.
//!    In both cases another component manages the paths.
//! 2. Paths are managed by the kernel with endpoints ([`endpoint`]), by mptcpd ([`mptcpd`]), or by `marline paths`
//!    ([`daemon`]). The latter two are processes in the client namespace.
//! 3. Energy is computed from all packets at the client's end ([`energy`]); the daemon's own figure can be reported
//!    beside it.

pub(crate) mod daemon;
pub(crate) mod endpoint;
pub(crate) mod energy;
pub(crate) mod http_client;
pub(crate) mod mptcpd;
pub(crate) mod suspended_traffic;
pub(crate) mod testbed;
pub(crate) mod web_page;
