//! The host of a URL: as a resolver expects it, and whether it is this machine.

use std::net::IpAddr;

use url::{Host, Url};

/// The host for a resolver: a name, or an address without brackets.
pub fn resolver_host(url: &Url) -> String {
    match url.host() {
        Some(Host::Domain(name)) => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        None => String::new(),
    }
}

/// Whether the URL is on this machine; then it is reached through the loopback and over no link.
pub fn is_loopback_url(url: &Url) -> bool {
    is_loopback_host(&resolver_host(url))
}

/// Whether a host name or address is the loopback of this machine.
pub fn is_loopback_host(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    // The kernel treats a connection to the unspecified address as one to the loopback.
    let is_this_host = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.to_canonical().is_unspecified();
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(is_this_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts_are_recognized_in_all_forms() {
        for host in
            ["localhost", "LocalHost", "a.localhost", "127.8.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["example.org", "localhost.example", "192.0.2.1", "2001:db8::1", ""] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn loopback_urls_are_recognized_by_name_and_address() {
        for (url, local) in [
            ("http://localhost:80/", true),
            ("http://127.9.9.9/", true),
            ("http://[::1]/", true),
            ("http://[::ffff:127.0.0.1]/", true),
            ("http://0.0.0.0/", true),
            ("http://10.0.0.1/", false),
            ("http://localhost.example/", false),
        ] {
            assert_eq!(is_loopback_url(&url.parse().unwrap()), local, "{url}");
        }
    }
}
