//! Hosts with several links: `marline paths`, `marline run` and `marline edge` with real kernel TCP between network namespaces.
//!
//! `namespaces` runs a script in new namespaces, `routers` adds links behind routers with NAT, and `edge_lan` the LAN of a gateway. Where
//! the host does not permit namespaces, a test prints that it was skipped.
#![allow(clippy::unwrap_used, reason = "a missing prerequisite has to fail the test")]

#[cfg(feature = "fleet")]
mod edge_lan;
#[cfg(feature = "fleet")]
mod edge_links;
mod mptcp;
mod namespaces;
mod paths;
#[cfg(feature = "fleet")]
mod returning_links;
mod routers;
mod sighup;
mod twins;
#[cfg(feature = "fleet")]
mod unusual_links;
