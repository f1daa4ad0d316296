//! Finds the interfaces of this machine that can carry traffic, and selects from them the links that the program
//! uses.
//!
//! [`list_interfaces`] reads the interfaces from the kernel over rtnetlink, and their kinds from sysfs.
//! [`MeteredHints`] adds from NetworkManager which ones are metered. [`choose_links`] applies what the user wants
//! ([`LinkSelection`]) and returns the links to use ([`ChosenLinks`]).
//!
//! 1. An interface is usable if it is up, has carrier, an address and a default route (in any table, IPv4 or IPv6),
//!    and is not the loopback.
//! 2. The default route decides about bridges and veth pairs. The bridge on the host of virtual machines and the veth
//!    that is a container's only uplink have one; `docker0` and similar bridges do not.
//! 3. If the kernel's own route to the Internet leads through a tunnel, only that tunnel is used: users of a VPN do
//!    not want half of a download outside it. A modem is not a VPN. A PPP device counts as a VPN unless it is known
//!    to be an access link. The IPv4 side of an IPv6-only network (CLAT) is neither a link nor a VPN.
//! 4. The user's choice takes precedence: a named interface is used whenever it can carry anything at all.
//! 5. The order in which the kernel lists interfaces affects nothing but the order of the result.
//!
//! `ip -j` and `nmcli` were not used: starting a process costs more than reading all interfaces, the programs may be
//! absent, and their output changes between versions. A subscription that keeps a copy of the kernel's tables was not
//! used either: reading them again takes less than a millisecond and cannot get out of step, so [`Monitor`] only
//! reports that something has changed.

#[cfg(test)]
mod bus_tests;
mod clat;
mod dbus;
mod device_info;
mod enumerate;
mod interface;
mod link_arg;
mod link_kind;
mod metered;
mod monitor;
#[cfg(test)]
mod netns_tests;
mod ppp;
mod retrying_monitor;
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
pub use retrying_monitor::RetryingMonitor;
pub use route_lookup::{
    has_non_default_route, is_local_address, is_outside_links, is_rejected_by_route, non_default_route_interface,
};
pub(crate) use route_lookup::{is_outside_links_and_not_on, route_interface};
pub use routes::{INTERNET_PROBE_V4, INTERNET_PROBE_V6, RTPROT_MARLINE};

/// Why there is no link to use. The process then exits with status 69 (the network is unavailable).
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    /// Netlink is not available, or reading from it failed.
    #[error("cannot list the network interfaces: {0}")]
    Netlink(#[from] std::io::Error),
    /// No interface that was found or named can carry traffic.
    #[error("no link can be used{}", list(.why))]
    NoLink {
        /// One line for each interface that is not used, with the reason.
        why: Vec<String>,
    },
}

/// Formats the lines as `: a; b`, or as an empty string.
fn list(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!(": {}", lines.join("; ")) }
}
