//! Who may ask: neither other hosts nor foreign web pages.
//!
//! In: the fields Host, Origin and Sec-Fetch-Site, and the address that a listener is bound to. Out: yes, or why not.
//!
//! 1. Host must be an address of the listener or `localhost`: a page that has its own name resolve to this machine (DNS
//!    rebinding) sends its own name (RFC 9110 §7.4 asks for 421).
//! 2. A browser says where a request comes from (Fetch Metadata): another site may not even have a video played, since
//!    that costs the user's data. A program that names another site in Origin may: its user has told it to. Origin by itself
//!    protects nothing here, because a page can request the same without it (an image, a video), and can read neither: no
//!    answer permits other origins (CORS), and requests that ask for permission beforehand (OPTIONS) are refused.
//! 3. What is ours (status, events) is for nobody but pages of the very same origin, and for programs.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{ACCEPT_LANGUAGE, HOST, ORIGIN};
use url::Url;

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// The Host field names somebody else.
    Host,
    /// A foreign page asks.
    Page,
}

/// Whether a request may use the media port.
pub(super) fn media(fields: &HeaderMap, listener: SocketAddr) -> Result<(), Refused> {
    host(fields, listener)?;
    let foreign = text(fields, "sec-fetch-site") == Some("cross-site");
    // A page of this machine's own may play; which port it comes from says nothing against it.
    let near = |origin: &str| {
        let host = origin.strip_prefix("http://").map(|host| host.rsplit_once(':').map_or(host, |(host, _)| host));
        host.is_some_and(|host| is_of(&format!("{host}:{}", listener.port()), listener))
    };
    let origin = fields.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    let is_page = !is_program(fields, listener) && origin.is_some_and(|origin| !near(origin));
    if foreign || is_page { Err(Refused::Page) } else { Ok(()) }
}

/// Whether a program asks rather than a browser. Browsers mark every request to this host itself with Sec-Fetch-Site. They do
/// not mark those to other addresses over plain HTTP, so there a program is one that does not look like a browser either.
pub(super) fn is_program(fields: &HeaderMap, listener: SocketAddr) -> bool {
    if fields.contains_key("sec-fetch-site") {
        return false;
    }
    let host = host(fields, listener).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    let is_here = name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    // No browser leaves Accept-Language out, and no page can take it away.
    let looks_so = text(fields, "user-agent").is_some_and(|agent| agent.starts_with("Mozilla/"));
    is_here || !(looks_so && fields.contains_key(ACCEPT_LANGUAGE))
}

/// Whether a browser vouches that a page of this machine asks, from another port: our player page.
pub(super) fn is_near(fields: &HeaderMap) -> bool {
    text(fields, "sec-fetch-site") == Some("same-site")
}

/// Whether a page's address (Referer) is one of the listener's.
pub(super) fn is_ours(page: &str, listener: SocketAddr) -> bool {
    let Ok(page) = Url::parse(page) else { return false };
    let port = page.port_or_known_default().unwrap_or_default();
    page.host_str().is_some_and(|host| is_of(&format!("{host}:{port}"), listener))
}

/// Whether a request may read what is ours.
pub(super) fn ours(fields: &HeaderMap, listener: SocketAddr) -> Result<(), Refused> {
    let host = host(fields, listener)?;
    if !matches!(text(fields, "sec-fetch-site"), None | Some("none" | "same-origin")) {
        return Err(Refused::Page);
    }
    match fields.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default()) {
        Some(origin) if origin.strip_prefix("http://") != Some(host) => Err(Refused::Page),
        _ => Ok(()),
    }
}

/// The Host field, if it names the listener.
fn host(fields: &HeaderMap, listener: SocketAddr) -> Result<&str, Refused> {
    let mut all = fields.get_all(HOST).iter();
    let (Some(host), None) = (all.next().and_then(|host| host.to_str().ok()), all.next()) else {
        return Err(Refused::Host);
    };
    if is_of(host, listener) { Ok(host) } else { Err(Refused::Host) }
}

fn is_of(host: &str, listener: SocketAddr) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        // The colon of an IPv6 address without a port is within the brackets.
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, Some(80)),
    };
    if port != Some(listener.port()) {
        return false;
    }
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    // An address cannot be rebound: only a name can.
    bare.parse::<IpAddr>().is_ok_and(|ip| {
        let bound = ip == listener.ip() || listener.ip().is_unspecified();
        ip.is_loopback() || (bound && !ip.is_unspecified())
    })
}

fn text<'a>(fields: &'a HeaderMap, name: &str) -> Option<&'a str> {
    fields.get(name).map(|value| value.to_str().unwrap_or("cross-site"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn listener() -> SocketAddr {
        "127.0.0.1:8480".parse().unwrap()
    }

    #[test]
    fn only_names_that_cannot_be_rebound_are_ours() {
        for (host, good) in [
            ("127.0.0.1:8480", true),
            ("localhost:8480", true),
            ("LOCALHOST:8480", true),
            ("[::1]:8480", true),
            ("127.0.0.1", false),
            ("127.0.0.1:80", false),
            ("evil.example:8480", false),
            ("127.0.0.1.evil.example:8480", false),
            ("localhost.evil.example:8480", false),
            ("192.0.2.1:8480", false),
            ("", false),
        ] {
            assert_eq!(media(&fields(&[("host", host)]), listener()).is_ok(), good, "{host}");
        }
        assert_eq!(media(&HeaderMap::new(), listener()), Err(Refused::Host));
        let two = fields(&[("host", "127.0.0.1:8480"), ("host", "evil.example")]);
        let mut both = HeaderMap::new();
        both.append(HOST, "127.0.0.1:8480".parse().unwrap());
        both.append(HOST, "evil.example".parse().unwrap());
        assert_eq!(media(&both, listener()), Err(Refused::Host));
        assert!(media(&two, listener()).is_err());
    }

    #[test]
    fn a_page_that_came_through_the_proxy_is_known_by_any_of_our_names() {
        for (page, ours) in [
            ("http://127.0.0.1:8480/https://me:secret@a.example/list?token=1", true),
            ("http://localhost:8480/https://me:secret@a.example/list?token=1", true),
            ("http://LOCALHOST:8480", true),
            ("http://[::1]:8480/", true),
            ("http://localhost:3000/", false),
            ("https://a.example/127.0.0.1:8480", false),
            ("nonsense", false),
        ] {
            assert_eq!(is_ours(page, listener()), ours, "{page}");
        }
        assert!(is_ours("http://192.0.2.1:8480/https://a.example/", "0.0.0.0:8480".parse().unwrap()));
    }

    #[test]
    fn a_listener_on_all_addresses_takes_any_address_and_no_name() {
        let all = "0.0.0.0:8480".parse().unwrap();
        assert!(is_of("192.0.2.1:8480", all) && is_of("localhost:8480", all));
        assert!(!is_of("home.example:8480", all) && !is_of("0.0.0.0:8480", all));
    }

    #[test]
    fn a_foreign_page_may_neither_play_nor_read() {
        let with = |site| fields(&[("host", "127.0.0.1:8480"), ("sec-fetch-site", site)]);
        for (site, plays, reads) in [
            ("none", true, true),
            ("same-origin", true, true),
            ("same-site", true, false),
            ("cross-site", false, false),
        ] {
            assert_eq!(media(&with(site), listener()).is_ok(), plays, "{site}");
            assert_eq!(ours(&with(site), listener()).is_ok(), reads, "{site}");
        }
        for (origin, good) in [
            ("http://127.0.0.1:8480", true),
            ("http://evil.example", false),
            ("null", false),
            ("https://127.0.0.1:8480", false),
        ] {
            let of_program = fields(&[("host", "127.0.0.1:8480"), ("origin", origin)]);
            assert_eq!(ours(&of_program, listener()).is_ok(), good, "{origin}");
            // A program may name any site; a browser marks what it sends.
            assert_eq!(media(&of_program, listener()), Ok(()), "{origin}");
            for site in ["same-site", "same-origin", "none"] {
                let marked = fields(&[("host", "127.0.0.1:8480"), ("origin", origin), ("sec-fetch-site", site)]);
                assert_eq!(media(&marked, listener()).is_ok(), good, "{origin}");
            }
        }
    }

    #[test]
    fn browsers_on_the_lan_mark_nothing_and_are_known_all_the_same() {
        let all = "0.0.0.0:8480".parse().unwrap();
        let browser = [("user-agent", "Mozilla/5.0 (X11)"), ("accept-language", "de")];
        for (host, pairs, program) in [
            ("127.0.0.1:8480", &browser[..], true),
            ("localhost:8480", &browser, true),
            ("[::1]:8480", &browser, true),
            ("192.0.2.1:8480", &browser, false),
            ("192.0.2.1:8480", &browser[..1], true),
            ("192.0.2.1:8480", &[("user-agent", "VLC/3.0"), ("accept-language", "de")], true),
            ("127.0.0.1:8480", &[("sec-fetch-site", "none")], false),
        ] {
            let mut pairs = pairs.to_vec();
            pairs.push(("host", host));
            assert_eq!(is_program(&fields(&pairs), all), program, "{pairs:?}");
            pairs.push(("origin", "http://evil.example"));
            assert_eq!(media(&fields(&pairs), all).is_ok(), program, "{pairs:?}");
        }
    }
}
