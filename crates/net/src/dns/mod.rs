//! Resolves host names separately for each link, so that each link can use its own CDN node.
//!
//! [`Resolver`] returns the addresses of a host in the order in which to try them, and their source
//! ([`ResolutionSource`]).
//!
//! 1. The sources, in this order: an address literal; `/etc/hosts`; the link's own name servers, as systemd-resolved,
//!    systemd-networkd, NetworkManager or a DHCP client know them; the servers in `/etc/resolv.conf`; the system's
//!    own resolver.
//! 2. Queries to a server are sent from a socket bound to the link. A stub resolver on the loopback cannot be reached
//!    from there, so it is skipped. The system's resolver is queried instead; it may return a CDN node suited to
//!    another link, so the source is reported.
//! 3. A server in `/etc/resolv.conf` belongs to no link. One with a private address is queried only over the link
//!    whose subnet contains it, or to which the kernel's route to it points: over another link it would be a
//!    different machine.
//! 4. If no server over the link knows a name, the system's resolver is queried: it has search domains, mDNS and
//!    modules of its own.
//! 5. Only address families that the link has are queried and returned. IPv6 comes first if the link has a public
//!    IPv6 address (RFC 8305 section 4, RFC 6724 section 2.1). Over a link without IPv4, IPv4 addresses are
//!    translated to those of the network's NAT64, if it has one (`nat64`).
//! 6. Responses are cached for their time to live, at least two seconds and at most five minutes, and at most
//!    `resolver::MAX_CACHED` of them. A name that has resolved to a public address does not resolve to this machine
//!    or to a local network later (`rebinding`).
//! 7. "No such name" is a definitive answer, and distinct from a timeout: only a timeout is worth a retry.
//!
//! Messages are encoded and decoded with hickory-proto (`message`). `hickory-resolver` was not used: it supports
//! neither sockets per device nor Linux's configuration per link, which are the purpose of this module. DNSSEC and
//! encrypted DNS are left to the system's resolver: TLS and checksums protect what a download receives.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hosts;
mod leases;
mod lookup_threads;
mod message;
mod nat64;
mod netifd;
mod query;
mod rebinding;
mod resolution;
mod resolver;
mod server_notation;
mod servers;
mod system_paths;
mod system_resolver;

pub use resolution::{Resolution, ResolutionSource, ResolveError};
pub use resolver::Resolver;
pub use system_resolver::resolve_absolute;

#[cfg(test)]
pub(crate) mod tests;
