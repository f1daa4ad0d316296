//! Resolves a name exactly as written, for requests of clients that are not trusted.
//!
//! Blocks for as long as the system's resolver does.
//!
//! 1. The name is absolute: the search list in `/etc/resolv.conf` does not extend it (`metadata` does not become
//!    `metadata.google.internal`).
//! 2. `/etc/hosts` and the modules of the system's resolver count. For names with a final dot glibc ignores
//!    `/etc/hosts`, so it is searched here first.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};

use super::hosts;
use super::system_paths::SystemPaths;

/// The addresses of `name`, without duplicates, in the system's order.
///
/// # Errors
/// The name has no addresses, or no server answered.
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
    fn names_in_etc_hosts_are_resolved_without_a_query() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        std::fs::write(dir.path().join("etc/hosts"), "192.0.2.7 ingest.example\n").unwrap();
        let paths = SystemPaths { root: dir.path().to_owned(), ..SystemPaths::default() };
        let address: Vec<IpAddr> = vec!["192.0.2.7".parse().unwrap()];
        assert_eq!(resolve_with(&paths, "ingest.example").unwrap(), address);
        assert_eq!(resolve_with(&paths, "ingest.example.").unwrap(), address);
        assert_eq!(resolve_with(&paths, "localhost").unwrap().len(), 2);
    }
}
