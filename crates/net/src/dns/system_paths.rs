//! Locations of the machine's DNS configuration.
//!
//! Everything that reads the system gets them as a value, so that tests replace the root of the file system and the kernel's routes.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::links::route_interface;

/// Where the configuration of the machine is found; tests use other locations.
#[derive(Clone, Debug)]
pub(super) struct SystemPaths {
    /// The root of the file system.
    pub(super) root: PathBuf,
    /// The port of servers that specify none.
    pub(super) dns_port: u16,
    /// Returns the index of the interface of the kernel's route to an address.
    pub(super) route_lookup: fn(IpAddr) -> Option<u32>,
}

impl Default for SystemPaths {
    fn default() -> Self {
        Self { root: PathBuf::from("/"), dns_port: 53, route_lookup: route_interface }
    }
}

impl SystemPaths {
    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }
}
