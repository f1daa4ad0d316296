//! A name as it is written, and no other: for who asks on behalf of somebody whom it does not trust.
//!
//! In: a name. Out: its addresses. Blocks for as long as the system's resolver does.
//!
//! 1. The name is absolute: a search list of `/etc/resolv.conf` makes no other name of it (`metadata` is not
//!    `metadata.google.internal`).
//! 2. `/etc/hosts` counts, and so do the modules of the system's resolver. With a final dot glibc does not find a name of
//!    `/etc/hosts`: it is looked for there before.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};

use super::hosts;
use super::servers::SystemPaths;

/// The addresses of `name`, without doubles, in the system's order.
///
/// # Errors
/// There are none, or nobody tells.
pub fn resolve_absolute(name: &str) -> io::Result<Vec<IpAddr>> {
    resolve_with(&SystemPaths::default(), name)
}

fn resolve_with(paths: &SystemPaths, name: &str) -> io::Result<Vec<IpAddr>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let local = hosts::localhost(name).unwrap_or_else(|| hosts::lookup(&paths.read("etc/hosts"), name));
    if !local.is_empty() {
        return Ok(local);
    }
    let mut addresses = Vec::new();
    for address in (format!("{name}.").as_str(), 0).to_socket_addrs()? {
        if !addresses.contains(&address.ip()) {
            addresses.push(address.ip());
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_found_without_asking_anybody() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::fs::write(dir.path().join("etc/hosts"), "192.0.2.7 ingest.example\n").unwrap();
        let places = SystemPaths { root: dir.path().to_owned(), ..SystemPaths::default() };
        let address: Vec<IpAddr> = vec!["192.0.2.7".parse().unwrap()];
        assert_eq!(resolve_with(&places, "ingest.example").unwrap(), address);
        assert_eq!(resolve_with(&places, "ingest.example.").unwrap(), address);
        assert_eq!(resolve_with(&places, "localhost").unwrap().len(), 2);
    }
}
