//! `/etc/hosts`, and the rule about `localhost`.
//!
//! In: the file's text and a name. Out: its addresses, in the file's order. Lines that cannot be read are passed over,
//! as every resolver does (hosts(5)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses that the file gives for the name; none when it does not know it.
pub(super) fn lookup(text: &str, name: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse().ok()) else { continue };
        if words.any(|word| word.eq_ignore_ascii_case(name)) && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// `localhost` and all below it are this machine, whatever anybody says (RFC 6761 §6.3).
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
