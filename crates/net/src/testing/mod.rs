//! Helpers for the tests of several crates: private network namespaces, interfaces as `list_interfaces` returns them, and a D-Bus service
//! that a test implements.
//!
//! Compiled for the tests of this crate, and with the feature `testing` for those of others. Not part of the public
//! interface of this crate.
#![allow(clippy::unwrap_used, missing_docs, reason = "what a test needs is there, or the test fails")]

pub(crate) mod bus;

use std::io;
use std::process::Command;

use marline_core::link::LinkKind;
use marline_sys::namespace::{NetNs, is_privileged, mount_sysfs, unshare_mounts};

use crate::links::{DefaultRoute, Interface, Usability};

pub use bus::DbusDaemon;

/// Runs the work in a new network namespace with its own `/sys`, or prints why the test is skipped.
pub fn in_a_network(work: impl FnOnce() + Send) {
    if !is_privileged() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: needs CAP_NET_ADMIN, CAP_SYS_ADMIN and the program ip");
        return;
    }
    let network = NetNs::new().unwrap();
    network
        .run(|| -> io::Result<()> {
            unshare_mounts()?;
            mount_sysfs()?;
            ip("link set lo up");
            work();
            Ok(())
        })
        .unwrap();
}

/// Runs `ip` with arguments separated by blanks; a `~` is a blank inside an argument.
pub fn ip(arguments: &str) {
    let args = arguments.split_whitespace().map(|arg| arg.replace('~', " "));
    let output = Command::new("ip").args(args).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates a veth pair: `name` has the address, its peer is called `NAMEx`.
pub fn cable(name: &str, address: &str) {
    ip(&format!("link add name {name} type veth peer name {name}x"));
    ip(&format!("link set {name}x up"));
    ip(&format!("link set {name} up"));
    ip(&format!("address add {address} dev {name} nodad"));
}

/// A usable Ethernet interface without addresses and routes. Tests set the fields that they are about.
pub fn test_interface(name: &str, index: u32) -> Interface {
    Interface {
        name: name.to_owned(),
        index,
        kind: LinkKind::Ethernet,
        addresses: Vec::new(),
        transient_addresses: Vec::new(),
        subnets: Vec::new(),
        route_v4: None,
        route_v6: None,
        metered: None,
        mtu: 1500,
        emulated: false,
        usability: Usability::Usable,
    }
}

/// A default route of the main table without a gateway.
pub fn default_route(metric: u32) -> DefaultRoute {
    DefaultRoute { metric, table: 254, gateway: None }
}
