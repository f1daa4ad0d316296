//! How Linux does it: sockets per link, names, HTTP, files, and the pump that drives the machines of core.
//!
//! Everything that touches the operating system during a transfer is here, and nothing here decides what goes over
//! which link, or when: that is core's.

pub mod dns;
pub mod get;
pub mod http;
pub mod links;
pub mod store;
