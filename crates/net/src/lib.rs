//! Shared I/O on Linux: what more than one capability of marline needs to reach the network and the host.
//!
//! The capabilities are crates above this one: downloads (`marline-download`), the local proxy (`marline-proxy`), the
//! MPTCP path manager (`marline-paths`), TCP acceleration (`marline-accel`) and relays (`marline-fleet`). Code that
//! two of them need belongs here. Nothing in this crate decides which link carries which traffic: `marline-core`
//! does.
//!
//! Where to start reading:
//!
//! 1. [`links`]: which interfaces can carry traffic ([`links::list_interfaces`]), and which of them the program
//!    uses ([`links::LinkSelection`]).
//! 2. [`dns`]: names are resolved over the link that will be used ([`dns::Resolver`]).
//! 3. [`egress`]: which addresses a request may reach, checked before each connection ([`egress::EgressPolicy`]).
//! 4. [`http`]: client connections that are bound to one link ([`http::Connection`]), with TLS, proxies and [`cookies`].
//! 5. [`control_socket`] and [`run_dir`]: the control socket of a daemon, and the run directory that contains it.
//! 6. [`recorded_machine`]: a state machine of `marline-core` together with its decision log, which `marline replay` runs
//!    again.
//!
//! Smaller parts: listeners use [`admission`] (which connections are kept), [`socks5`] and [`splice`] (forwards bytes
//! between two connections). Files are written with [`atomic_file`] and [`private_file`]. [`mptcp`] opens MPTCP sockets,
//! and [`mptcp_send_queue`] decides when to write to them. [`battery`] measures the power that the machine draws,
//! [`checksum`] parses the expected digest of a file, [`random`] yields random bytes, and [`rlimit`] raises the limit of
//! open files.

pub mod admission;
pub mod atomic_file;
pub mod battery;
pub mod checksum;
pub mod control_socket;
pub mod cookies;
pub mod dns;
pub mod egress;
pub mod http;
pub mod links;
pub mod mptcp;
pub mod mptcp_send_queue;
pub mod private_file;
pub mod random;
pub mod recorded_machine;
pub mod rlimit;
pub mod run_dir;
pub mod socks5;
pub mod splice;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;

/// Escapes untrusted text for terminals and logs. It is in core because the laboratory needs it without this crate.
pub use marline_core::printable;

/// Access to the private parsers, for the fuzz targets only: not part of the public interface of this crate.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::cookies::fuzzing::{cookie_file, cookies};
    pub use crate::dns::fuzzing::{dns_query, dns_reply};
    pub use crate::http::fuzzing::{ResponseParser, chunked, connect_status, fields};
    pub use crate::links::fuzzing::{bus_message, bus_value};
}
