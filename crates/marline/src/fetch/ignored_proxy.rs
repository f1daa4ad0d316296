//! Proxies that the environment names, and that are not used.
//!
//! A machine that reaches the network only through a proxy gets nothing but timeouts from a program that ignores it. Until
//! proxies are supported, the failure says so. Values are not shown: they may hold a password.

use marline_net::get::Kind;
use url::Url;

/// What to put behind the message of a failed download; nothing if no proxy is meant, or the network was not to blame.
pub(super) fn hint(kind: Kind, url: &str, variable: impl Fn(&str) -> Option<String>) -> String {
    let is_of_network = matches!(kind, Kind::Network | Kind::NoLink | Kind::TimeUp);
    let url = Url::parse(url).ok().filter(|_| is_of_network);
    let named = url.and_then(|url| ignored(&url, variable));
    named
        .map(|name| format!("; {name} is set and not used, since proxies are not supported yet"))
        .unwrap_or_default()
}

/// The variable that names a proxy for this URL.
fn ignored(url: &Url, variable: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let set = |name: &&str| variable(name).is_some_and(|value| !value.trim().is_empty());
    // As curl: HTTP_PROXY in capitals is a header field of the client's in a CGI script.
    let names: &[&'static str] = match url.scheme() {
        "https" => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        _ => &["http_proxy", "all_proxy", "ALL_PROXY"],
    };
    let excluded = variable("no_proxy").or_else(|| variable("NO_PROXY")).unwrap_or_default();
    let host = url.host_str().unwrap_or_default();
    let is_excluded = |entry: &str| {
        let entry = entry.trim().trim_start_matches('.').to_ascii_lowercase();
        let below = host.strip_suffix(entry.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        entry == "*" || (!entry.is_empty() && below)
    };
    names.iter().find(|name| set(name)).filter(|_| !excluded.split(',').any(is_excluded)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_that_would_have_counted_is_named() {
        for (url, set, want) in [
            ("https://h.test/f", &[("https_proxy", "http://10.0.1.1:3128")][..], Some("https_proxy")),
            ("https://h.test/f", &[("http_proxy", "x")], None),
            ("http://h.test/f", &[("http_proxy", "x"), ("all_proxy", "y")], Some("http_proxy")),
            ("http://h.test/f", &[("HTTP_PROXY", "x")], None),
            ("http://h.test/f", &[("ALL_PROXY", "socks5://x")], Some("ALL_PROXY")),
            ("http://h.test/f", &[("http_proxy", " ")], None),
            ("http://h.test/f", &[], None),
            ("http://h.test/f", &[("http_proxy", "x"), ("no_proxy", "other, .test")], None),
            ("http://h.test/f", &[("http_proxy", "x"), ("NO_PROXY", "*")], None),
            ("http://h.test/f", &[("http_proxy", "x"), ("no_proxy", "est,,x")], Some("http_proxy")),
        ] {
            let variable =
                |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
            assert_eq!(ignored(&url.parse().unwrap(), variable), want, "{url} {set:?}");
        }
    }

    #[test]
    fn only_a_failure_of_the_network_names_it_and_never_the_value() {
        let set = |name: &str| (name == "http_proxy").then(|| "http://me:secret@proxy".to_owned());
        for (kind, names) in [
            (Kind::Network, true),
            (Kind::NoLink, true),
            (Kind::TimeUp, true),
            (Kind::Http4xx, false),
            (Kind::Disk, false),
            (Kind::Interrupted, false),
        ] {
            let want =
                if names { "; http_proxy is set and not used, since proxies are not supported yet" } else { "" };
            assert_eq!(hint(kind, "http://h.test/f", set), want, "{kind:?}");
        }
        assert_eq!(hint(Kind::NoLink, "", set), "");
    }
}
