//! Looks up names in `/etc/hosts`, and applies the rule about `localhost`.
//!
//! Addresses are returned in the order of the file. Invalid lines are skipped, as all resolvers do (hosts(5)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses that the file lists for a name; empty if it does not contain the name.
pub(super) fn lookup(text: &str, name: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut fields = line.split_whitespace();
        let Some(address) = fields.next().and_then(|field| field.parse().ok()) else { continue };
        if fields.any(|field| field.eq_ignore_ascii_case(name)) && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// `localhost` and all names below it are this machine, whatever name servers return (RFC 6761 section 6.3).
pub(super) fn localhost(name: &str) -> Option<Vec<IpAddr>> {
    let is_local = name == "localhost" || name.ends_with(".localhost");
    is_local.then(|| vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_all_addresses_of_its_lines() {
        let text = "# comment\n127.0.0.1 localhost\n\n192.0.2.1\tNAS nas.lan # the box\nnot-an-address nas\n\
                    2001:db8::1 nas\n192.0.2.1 nas\n192.0.2.9 nasty # nas\n";
        let found = lookup(text, "nas");
        assert_eq!(found, ["192.0.2.1", "2001:db8::1"].map(|a| a.parse::<IpAddr>().unwrap()));
        assert_eq!(lookup(text, "nas.lan").len(), 1);
        assert!(lookup(text, "box").is_empty() && lookup("", "nas").is_empty());
    }

    #[test]
    fn localhost_is_this_machine() {
        assert_eq!(localhost("localhost").unwrap().len(), 2);
        assert_eq!(localhost("a.localhost").unwrap().len(), 2);
        assert_eq!(localhost("notlocalhost"), None);
    }
}
