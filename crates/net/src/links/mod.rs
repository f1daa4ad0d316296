//! Which interfaces of this machine can carry a download, and which of them will.
//!
//! In: what the kernel says over rtnetlink ([`survey()`]), what sysfs and NetworkManager add, and what the user wants
//! ([`Choice`]). Out: interfaces with a verdict each ([`Interface`]), and the links of this run ([`Chosen`]).
//!
//! 1. Usable is what is up, has carrier, an address and a default route of its own (in any table, IPv4 or IPv6), and
//!    is not the loopback.
//! 2. The default route decides about bridges and veth pairs: the bridge of a virtual machine's host, and the veth
//!    that is a container's only way out, have one; `docker0` and its kind do not.
//! 3. If the kernel's own way to the Internet goes through a tunnel, that tunnel is used alone: who starts a VPN does
//!    not want half of a download beside it. A modem is no VPN; a PPP device is one unless it is known to be a line.
//!    The IPv4 side of an IPv6-only network (CLAT) is neither a link nor a VPN.
//! 4. The user's word counts: a named interface is used whenever it can carry anything at all.
//! 5. The order in which the kernel lists things, or the user names them, changes nothing but the order of the result.
//!
//! `ip -j` and `nmcli` were not used: a process costs more than the whole survey, may be absent, and prints another
//! thing next year. A subscription that keeps a copy of the kernel's tables was not used either: a fresh survey takes
//! less than a millisecond and cannot drift, so [`Monitor`] only says that it is time for one.

#[cfg(test)]
mod bus_tests;
mod clat;
mod dbus;
mod enumerate;
mod interface;
mod link_arg;
mod link_kind;
mod metered;
mod monitor;
#[cfg(test)]
mod netns_tests;
mod ppp;
mod route_lookup;
mod routes;
mod select;

#[cfg(feature = "fuzzing")]
pub(crate) use dbus::fuzzing;
#[cfg(any(test, feature = "testing"))]
pub(crate) use dbus::service::{Call, Service};
pub(crate) use dbus::{Bus, Value as BusValue};
pub use select::{ChosenLinks, LinkSelection, choose_links, choose_loopback, pending_interfaces};

pub use enumerate::{InterfaceList, list_interfaces};
pub use interface::{DefaultRoute, Interface, MeteredSource, MeteredStatus, Subnet, UnusedReason, Usability};
pub use link_arg::{LinkArg, ParseLinkArgError, parse_rate_limit};
pub use metered::{MeteredHints, MeteredQuery};
pub use monitor::Monitor;
pub use route_lookup::{
    has_non_default_route, is_local_address, is_outside_links, is_rejected_by_route, non_default_route_interface,
};
pub(crate) use route_lookup::{is_outside_links_and_not_on, route_interface};
pub use routes::{INTERNET_PROBE_V4, INTERNET_PROBE_V6, RTPROT_MARLINE};

/// Why there is no link to use. The process ends with 69 then: the network is not there.
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    /// The kernel does not say what there is.
    #[error("the kernel does not list its interfaces: {0}")]
    Netlink(#[from] std::io::Error),
    /// Nothing that was found, or named, can carry anything.
    #[error("no link can be used{}", list(.why))]
    NoLink {
        /// One line for each interface that is not used.
        why: Vec<String>,
    },
}

/// `: a; b`, or nothing.
fn list(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!(": {}", lines.join("; ")) }
}
