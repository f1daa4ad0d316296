//! Finds the DNS servers of a link in files of DHCP clients and resolvconf, for systems without a service that knows
//! them.
//!
//! | program | files |
//! |---|---|
//! | resolvconf, openresolv | `/run/resolvconf/interface/IF.*`, `/run/resolvconf/interfaces/IF*`, `/run/resolvconf/keys/IF*` |
//! | dhcpcd | `/run/dhcpcd/hook-state/resolv.conf/IF.*`, `/run/dhcpcd/resolv.conf/IF.*` |
//! | dhclient | `/var/lib/dhcp/dhclient*.leases`, `/var/lib/dhclient/dhclient*.leases` |
//! | netifd of OpenWrt | `/tmp/resolv.conf.d/resolv.conf.auto` (`netifd`) |
//!
//! An expired lease remains in dhclient's file. A lease counts only while its address is one of the link's.

use std::fs;
use std::net::IpAddr;

use super::netifd;
use super::server_notation::nameservers;
use super::system_paths::SystemPaths;
use crate::links::Interface;

/// Directories of files in the format of resolv.conf, with a `nameserver` line for each server.
const RESOLV_CONF_DIRS: [&str; 5] = [
    "run/resolvconf/interface",
    "run/resolvconf/interfaces",
    "run/resolvconf/keys",
    "run/dhcpcd/hook-state/resolv.conf",
    "run/dhcpcd/resolv.conf",
];
const DHCLIENT_DIRS: [&str; 2] = ["var/lib/dhcp", "var/lib/dhclient"];
/// Our choice: more files than any of these directories has.
const MAX_FILES: usize = 256;

/// The servers of the link, as the files write them. Only the first source that has any is used: one of the
/// directories with files like resolv.conf, then all dhclient files, then netifd.
pub(super) fn server_texts(paths: &SystemPaths, link: &Interface) -> Vec<String> {
    let mut servers: Vec<String> = Vec::new();
    for directory in RESOLV_CONF_DIRS {
        // `eth0.dhclient` belongs to eth0, and `eth0.7.dhclient` to the VLAN eth0.7.
        let of_link = |name: &str| match name.strip_prefix(link.name.as_str()) {
            Some("") => true,
            Some(suffix) => suffix.starts_with('.') && !suffix[1..].starts_with(|c: char| c.is_ascii_digit()),
            None => false,
        };
        for name in file_names(paths, directory).into_iter().filter(|name| of_link(name)) {
            servers.extend(nameservers(&paths.read(&format!("{directory}/{name}"))));
        }
        if !servers.is_empty() {
            return servers;
        }
    }
    for directory in DHCLIENT_DIRS {
        let is_lease = |name: &String| name.starts_with("dhclient") && name.ends_with(".leases");
        for name in file_names(paths, directory).into_iter().filter(is_lease) {
            servers.extend(lease_servers(&paths.read(&format!("{directory}/{name}")), link));
        }
    }
    if servers.is_empty() { netifd::server_texts(paths, link) } else { servers }
}

fn file_names(paths: &SystemPaths, directory: &str) -> Vec<String> {
    let entries = fs::read_dir(paths.root.join(directory)).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.take(MAX_FILES).filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The servers of the last lease in the file for this link and one of its addresses (dhclient.leases(5)).
fn lease_servers(text: &str, link: &Interface) -> Vec<String> {
    let mut servers = Vec::new();
    for lease in text.split("lease {").skip(1) {
        let lease = lease.split('}').next().unwrap_or_default();
        let value = |name: &str| {
            lease.split(';').find_map(|statement| statement.trim().strip_prefix(name)).map(|value| value.trim())
        };
        let interface = value("interface ").map(|name| name.trim_matches('"'));
        let address = value("fixed-address ").and_then(|address| address.parse::<IpAddr>().ok());
        if interface == Some(link.name.as_str()) && address.is_some_and(|address| link.addresses.contains(&address))
        {
            let list = value("option domain-name-servers ").unwrap_or_default();
            servers = list.split(',').map(|server| server.trim().to_owned()).collect();
        }
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::tests::{system_files, test_link};

    fn servers_of(files: &[(&str, &str)], link: &Interface) -> Vec<String> {
        let root = system_files(files);
        server_texts(&SystemPaths { root: root.path().to_owned(), ..SystemPaths::default() }, link)
    }

    #[test]
    fn servers_are_found_in_the_files_of_each_program() {
        let wwan = test_link("wwan0", 3, &["10.40.7.3/32"]);
        for path in [
            "run/resolvconf/interface/wwan0.dhclient",
            "run/resolvconf/interfaces/wwan0",
            "run/dhcpcd/hook-state/resolv.conf/wwan0.dhcp",
            "run/dhcpcd/resolv.conf/wwan0.ra",
        ] {
            let text = "# made by something\nsearch x\nnameserver 10.64.0.1\nnameserver 10.64.0.2\n";
            assert_eq!(servers_of(&[(path, text)], &wwan), ["10.64.0.1", "10.64.0.2"], "{path}");
            assert!(servers_of(&[(&path.replace("wwan0", "wwan01"), text)], &wwan).is_empty());
            assert!(servers_of(&[(&path.replace("wwan0", "wwan0.7"), text)], &wwan).is_empty());
        }
    }

    #[test]
    fn the_last_lease_with_an_address_of_the_link_is_used() {
        let wwan = test_link("wwan0", 3, &["10.40.7.3/24"]);
        let lease = |interface: &str, address: &str, servers: &str| {
            format!(
                "lease {{\n  interface \"{interface}\";\n  fixed-address {address};\n  option routers 10.40.7.1;\n  \
                 option domain-name-servers {servers};\n  renew 4 2026/11/26 20:00:00;\n}}\n"
            )
        };
        let file =
            |leases: &[String]| servers_of(&[("var/lib/dhcp/dhclient.wwan0.leases", &leases.concat())], &wwan);
        let wwan0_lease = lease("wwan0", "10.40.7.3", "10.64.0.1,10.64.0.2");
        assert_eq!(
            file(&[lease("wwan0", "10.40.7.3", "10.9.9.9"), wwan0_lease.clone()]),
            ["10.64.0.1", "10.64.0.2"]
        );
        assert_eq!(file(&[wwan0_lease, lease("eth0", "10.40.7.3", "10.9.9.9")]), ["10.64.0.1", "10.64.0.2"]);
        assert!(file(&[lease("wwan0", "10.40.7.99", "10.9.9.9")]).is_empty(), "an expired lease");
        assert!(file(&["lease {".to_owned()]).is_empty() && file(&["}lease { interface".to_owned()]).is_empty());
    }
}
