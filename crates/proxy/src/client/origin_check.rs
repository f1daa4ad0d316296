//! Rejects requests with a foreign Host name, and requests from web pages of other sites.
//!
//! Evaluates the request fields Host, Origin, Sec-Fetch-Site, User-Agent, Accept-Language and Referer against the
//! address to which a listener is bound.
//!
//! 1. Host must name an address of the listener or `localhost`. In a DNS rebinding attack it holds the attacker's name
//!    (RFC 9110 section 7.4 provides status 421).
//! 2. A browser reports how the requesting page relates to the target site (Fetch Metadata). Requests of other sites
//!    are refused, because playing a video uses the user's data volume. A program may send any Origin, since the user
//!    has configured it. The Origin field alone is not enough: requests for images and videos carry none. Pages of
//!    other origins cannot read responses: no response permits it (CORS), and preflight requests (OPTIONS) are refused.
//! 3. Status and events are for pages of the same origin, for addresses that the user typed, and for programs that send
//!    no foreign Origin.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use http::header::{ACCEPT_LANGUAGE, HOST, ORIGIN};
use url::{Host, Url};

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rejection {
    /// The Host field names another host.
    ForeignHost,
    /// The request comes from a page of another site.
    CrossSite,
}

/// Whether a request may use the media port.
pub(crate) fn check_media(fields: &HeaderMap, listener: SocketAddr) -> Result<(), Rejection> {
    let is_cross_site = header_text(fields, "sec-fetch-site") == Some("cross-site");
    let host = own_host(fields, listener)?;
    let origin = fields.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    let is_page = !is_program(fields, listener) && origin.is_some_and(|origin| !is_same_host(origin, host));
    if is_cross_site || is_page { Err(Rejection::CrossSite) } else { Ok(()) }
}

/// Whether an origin is on the host that the request names, or on the client's own machine, on any port: a page there may play.
fn is_same_host(origin: &str, host: &str) -> bool {
    let page = Url::parse(origin).ok().filter(|page| page.scheme() == "http");
    let host = Url::parse(&format!("http://{host}")).ok();
    let (Some(page), Some(host)) = (page, host) else { return false };
    page.host() == host.host() || page.host().is_some_and(|page| is_loopback(&page))
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => name.eq_ignore_ascii_case("localhost"),
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.is_loopback(),
    }
}

/// Whether a program sent the request, not a browser. Browsers send Sec-Fetch-Site to loopback addresses. Over plain HTTP they
/// omit it for other addresses; there, User-Agent and Accept-Language decide.
pub(crate) fn is_program(fields: &HeaderMap, listener: SocketAddr) -> bool {
    if fields.contains_key("sec-fetch-site") {
        return false;
    }
    let host = own_host(fields, listener).unwrap_or_default();
    let host = Url::parse(&format!("http://{host}")).ok();
    let is_loopback_host = host.as_ref().and_then(Url::host).is_some_and(|host| is_loopback(&host));
    // Browsers always send Accept-Language, and scripts cannot remove it.
    let looks_like_browser = header_text(fields, "user-agent").is_some_and(|agent| agent.starts_with("Mozilla/"));
    is_loopback_host || !(looks_like_browser && fields.contains_key(ACCEPT_LANGUAGE))
}

/// Whether the browser reports that the page has the same host as this listener, perhaps with another port.
pub(crate) fn is_same_site(fields: &HeaderMap) -> bool {
    header_text(fields, "sec-fetch-site") == Some("same-site")
}

/// Whether the URL of a page (Referer) names the listener.
pub(crate) fn is_own_url(page_url: &str, listener: SocketAddr) -> bool {
    let Ok(page) = Url::parse(page_url) else { return false };
    let port = page.port_or_known_default().unwrap_or_default();
    page.host_str().is_some_and(|host| names_listener(&format!("{host}:{port}"), listener))
}

/// Whether a request may read the status and events.
pub(crate) fn check_status(fields: &HeaderMap, listener: SocketAddr) -> Result<(), Rejection> {
    let host = own_host(fields, listener)?;
    if !matches!(header_text(fields, "sec-fetch-site"), None | Some("none" | "same-origin")) {
        return Err(Rejection::CrossSite);
    }
    match fields.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default()) {
        Some(origin) if origin.strip_prefix("http://") != Some(host) => Err(Rejection::CrossSite),
        _ => Ok(()),
    }
}

/// The Host field, if it names the listener.
fn own_host(fields: &HeaderMap, listener: SocketAddr) -> Result<&str, Rejection> {
    let mut values = fields.get_all(HOST).iter();
    let (Some(host), None) = (values.next().and_then(|host| host.to_str().ok()), values.next()) else {
        return Err(Rejection::ForeignHost);
    };
    if names_listener(host, listener) { Ok(host) } else { Err(Rejection::ForeignHost) }
}

fn names_listener(host: &str, listener: SocketAddr) -> bool {
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
    let host_only = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    // An IP address cannot be rebound, only a name can.
    host_only.parse::<IpAddr>().is_ok_and(|ip| {
        let is_bound_address = ip == listener.ip() || listener.ip().is_unspecified();
        ip.is_loopback() || (is_bound_address && !ip.is_unspecified())
    })
}

/// The value of a field. One that is not visible ASCII counts as the value of Sec-Fetch-Site that is refused.
fn header_text<'a>(fields: &'a HeaderMap, name: &str) -> Option<&'a str> {
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
    fn only_hosts_that_cannot_be_rebound_are_accepted() {
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
            assert_eq!(check_media(&fields(&[("host", host)]), listener()).is_ok(), good, "{host}");
        }
        assert_eq!(check_media(&HeaderMap::new(), listener()), Err(Rejection::ForeignHost));
        let two = fields(&[("host", "127.0.0.1:8480"), ("host", "evil.example")]);
        let mut both = HeaderMap::new();
        both.append(HOST, "127.0.0.1:8480".parse().unwrap());
        both.append(HOST, "evil.example".parse().unwrap());
        assert_eq!(check_media(&both, listener()), Err(Rejection::ForeignHost));
        assert!(check_media(&two, listener()).is_err());
    }

    #[test]
    fn a_referer_is_recognized_by_any_address_of_the_listener() {
        for (page, expected) in [
            ("http://127.0.0.1:8480/https://me:secret@a.example/list?token=1", true),
            ("http://localhost:8480/https://me:secret@a.example/list?token=1", true),
            ("http://LOCALHOST:8480", true),
            ("http://[::1]:8480/", true),
            ("http://localhost:3000/", false),
            ("https://a.example/127.0.0.1:8480", false),
            ("nonsense", false),
        ] {
            assert_eq!(is_own_url(page, listener()), expected, "{page}");
        }
        assert!(is_own_url("http://192.0.2.1:8480/https://a.example/", "0.0.0.0:8480".parse().unwrap()));
    }

    #[test]
    fn a_listener_on_all_addresses_takes_any_address_and_no_name() {
        let all = "0.0.0.0:8480".parse().unwrap();
        assert!(names_listener("192.0.2.1:8480", all) && names_listener("localhost:8480", all));
        assert!(!names_listener("home.example:8480", all) && !names_listener("0.0.0.0:8480", all));
    }

    #[test]
    fn a_page_of_another_site_may_neither_play_nor_read_the_status() {
        let with = |site| fields(&[("host", "127.0.0.1:8480"), ("sec-fetch-site", site)]);
        for (site, plays, reads) in [
            ("none", true, true),
            ("same-origin", true, true),
            ("same-site", true, false),
            ("cross-site", false, false),
        ] {
            assert_eq!(check_media(&with(site), listener()).is_ok(), plays, "{site}");
            assert_eq!(check_status(&with(site), listener()).is_ok(), reads, "{site}");
        }
        for (origin, good) in [
            ("http://127.0.0.1:8480", true),
            ("http://evil.example", false),
            ("null", false),
            ("https://127.0.0.1:8480", false),
        ] {
            let of_program = fields(&[("host", "127.0.0.1:8480"), ("origin", origin)]);
            assert_eq!(check_status(&of_program, listener()).is_ok(), good, "{origin}");
            // A program may send any Origin. Requests of a browser carry Sec-Fetch-Site.
            assert_eq!(check_media(&of_program, listener()), Ok(()), "{origin}");
            for site in ["same-site", "same-origin", "none"] {
                let marked = fields(&[("host", "127.0.0.1:8480"), ("origin", origin), ("sec-fetch-site", site)]);
                assert_eq!(check_media(&marked, listener()).is_ok(), good, "{origin}");
            }
        }
    }

    #[test]
    fn browsers_on_the_lan_are_detected_without_fetch_metadata() {
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
            assert_eq!(check_media(&fields(&pairs), all).is_ok(), program, "{pairs:?}");
        }
    }

    #[test]
    fn a_page_of_another_address_may_not_play_through_a_listener_on_all_addresses() {
        let all = "0.0.0.0:8480".parse().unwrap();
        for (host, origin, good) in [
            ("192.0.2.1:8480", "http://192.0.2.1", true),
            ("192.0.2.1:8480", "http://192.0.2.1:3000", true),
            ("192.0.2.1:8480", "http://localhost:3000", true),
            ("192.0.2.1:8480", "http://198.51.100.7", false),
            ("192.0.2.1:8480", "http://198.51.100.7:8480", false),
            ("192.0.2.1:8480", "http://0.0.0.0:8480", false),
            ("[2001:db8::1]:8480", "http://[2001:db8::1]", true),
            ("[2001:db8::1]:8480", "http://[2001:db8::2]", false),
            ("127.0.0.1:8480", "http://[::1]", true),
        ] {
            let browser =
                [("host", host), ("origin", origin), ("user-agent", "Mozilla/5.0"), ("accept-language", "de")];
            let marked = [("host", host), ("origin", origin), ("sec-fetch-site", "none")];
            let fields = if host.starts_with("127") { fields(&marked) } else { fields(&browser) };
            assert_eq!(check_media(&fields, all).is_ok(), good, "{host} {origin}");
        }
    }
}
