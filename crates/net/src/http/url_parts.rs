//! Parts of a URL: its host as a resolver expects it, whether that is this machine, and its login.

use std::borrow::Cow;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
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

/// Formats `HOST:PORT`, with brackets around an IPv6 address.
pub fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Removes user and password from a URL and returns them decoded; `None`: the URL has neither.
pub fn take_login(url: &mut Url) -> Option<(String, String)> {
    let has_login = !url.username().is_empty() || url.password().is_some();
    let login =
        has_login.then(|| (percent_decoded(url.username()), percent_decoded(url.password().unwrap_or_default())));
    // Both fail only for URLs without a host, which have no login.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    login
}

/// Decodes percent-encoding, such as `%40` to `@`. If the result is not UTF-8, the text is returned unchanged.
pub fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8().map_or_else(|_| text.to_owned(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_removed_from_its_url_and_decoded() {
        for (text, login, rest) in [
            ("http://me%40home:p%3Aw@h:8080/f", Some(("me@home", "p:w")), "http://h:8080/f"),
            ("http://me@h/", Some(("me", "")), "http://h/"),
            ("http://:pw%E9@h/", Some(("", "pw%E9")), "http://h/"),
            ("http://h/@", None, "http://h/@"),
        ] {
            let mut url = text.parse().unwrap();
            let expected = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
            assert_eq!(take_login(&mut url), expected, "{text}");
            assert_eq!(url.as_str(), rest);
        }
    }

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
