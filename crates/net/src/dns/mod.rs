//! Names asked per link, so that each link may use its own CDN edge.
//!
//! In: a host's name and the link that will carry the connection. Out: its addresses, in the order in which to try
//! them, and who gave them ([`Source`]).
//!
//! 1. In this order: an address is itself; `/etc/hosts`; the link's own servers, as systemd-resolved, systemd-networkd,
//!    NetworkManager or a DHCP client know them; the servers of `/etc/resolv.conf`; the system's own resolver.
//! 2. A server is asked from a socket bound to the link. A stub on the loopback cannot be reached from there, so it
//!    is passed over, and the system's resolver is asked instead, which may think of another place: the source says so.
//! 3. A server of `/etc/resolv.conf` belongs to no link. One with a private address is asked only over the link whose
//!    subnet it is in, or by which the kernel's route to it leads: over another one it would be another machine.
//! 4. What no server over the link knows, the system is asked for: it has search domains, mDNS and modules of its own.
//! 5. Only families that the link has are asked for and given; IPv6 comes first where the link has a public IPv6
//!    address (RFC 8305 §4, RFC 6724 §2.1).
//!    Over a link without IPv4, addresses of IPv4 are those of the network's NAT64, if it has one (`nat64`).
//! 6. Answers are kept as long as they say, at most five minutes, and at most `resolver::MOST` of them. A name that has led to
//!    the Internet does not lead to this machine later (`rebinding`).
//! 7. "There is no such name" is an answer, and told apart from silence: only silence is worth another try.
//!
//! Messages are encoded and decoded with hickory-proto (`message`). `hickory-resolver` was not used: it has no sockets per
//! device and no per-link configuration of Linux, which is all that is special here. DNSSEC and encrypted DNS are left to the system's
//! resolver: what a download receives is proved by TLS and by its checksum.

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
mod servers;
mod system_resolver;

pub use resolution::{AnswerSource, Resolution, ResolveError};
pub use resolver::Resolver;
pub use system_resolver::resolve_absolute;

#[cfg(test)]
pub(crate) mod tests;
