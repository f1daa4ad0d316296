//! The host of a URL.

use std::net::IpAddr;

use url::{Host, Url};

/// The host as a resolver takes it: an address without brackets, or a name.
pub fn resolver_host(url: &Url) -> String {
    match url.host() {
        Some(Host::Domain(name)) => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        None => String::new(),
    }
}

/// Whether the URL is on this very machine, where no link leads.
pub fn is_loopback_url(url: &Url) -> bool {
    is_loopback_host(&resolver_host(url))
}

/// Whether a host is this very machine, by its loopback.
pub fn is_loopback_host(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    // The kernel takes the unspecified address for the loopback.
    let is_this_host = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.to_canonical().is_unspecified();
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(is_this_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_all_its_names() {
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
    fn this_machine_is_known_by_name_and_address() {
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
