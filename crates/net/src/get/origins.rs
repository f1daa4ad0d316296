//! The places where the file can be had: the URLs that were given, and where redirects led.
//!
//! In: URLs and `Location` fields. Out: numbers for the machine, and requests for connections.
//!
//! 1. Each place has one number, however often it is named.
//! 2. A redirect from https to http is not followed: it would give the file away to everybody on the path.
//! 3. Where a place may lead to depends on the servers that led there ([`Right`]).
//! 4. User, password, and the fields that carry secrets go to the host of the first URL only.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine as _;
use http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use marline_core::fetch::{Ask, OriginId, Validator};
use url::{Host, Url};

use crate::http::Get;
use crate::reach::Right;

/// All places, by number.
#[derive(Debug)]
pub(super) struct Origins {
    urls: Vec<Url>,
    /// What each of them may be connected to.
    rights: Vec<Right>,
    numbers: BTreeMap<String, OriginId>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Origins {
    /// The URLs of the job, and what is sent with each request. Fields that HTTP does not allow are left out; the
    /// command line has refused them before.
    pub(super) fn new(urls: &[Url], fields: &[(String, String)], user: Option<&(String, String)>) -> Self {
        let mut headers: Vec<_> = fields
            .iter()
            .filter_map(|(name, value)| {
                Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
            })
            .collect();
        if let Some((name, password)) = user {
            let text = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
            if let Ok(mut value) = HeaderValue::from_str(&format!("Basic {text}")) {
                value.set_sensitive(true);
                headers.push((AUTHORIZATION, value));
            }
        }
        let mut origins = Self { urls: Vec::new(), rights: Vec::new(), numbers: BTreeMap::new(), headers };
        for url in urls {
            let id = OriginId(origins.urls.len() as u16);
            origins.numbers.entry(url.as_str().to_owned()).or_insert(id);
            origins.add(url.clone(), Right::user());
        }
        origins
    }

    /// The same, for URLs that whoever has this right has named.
    pub(super) fn for_right(mut self, right: Right) -> Self {
        self.rights.fill(right);
        self
    }

    fn add(&mut self, url: Url, right: Right) {
        self.urls.push(url);
        self.rights.push(right);
    }

    pub(super) fn url(&self, id: OriginId) -> Option<&Url> {
        self.urls.get(usize::from(id.0))
    }

    /// What a place may be connected to.
    pub(super) fn right(&self, id: OriginId) -> Option<Right> {
        self.rights.get(usize::from(id.0)).copied()
    }

    /// Whether there is one place only.
    pub(super) fn is_one(&self) -> bool {
        self.urls.len() == 1
    }

    /// The number of a redirect's target, which this server named; none if it must not or cannot be followed, with the reason for the user.
    pub(super) fn redirect(
        &mut self,
        from: OriginId,
        location: &str,
        server: Option<IpAddr>,
    ) -> Result<OriginId, String> {
        let base = self.url(from).ok_or_else(|| "a redirect from nowhere".to_owned())?;
        let mut target = base.join(location).map_err(|e| format!("the redirect to `{location}` is no URL: {e}"))?;
        target.set_fragment(None);
        match (base.scheme(), target.scheme()) {
            ("https", "http") => return Err(format!("the redirect from https to {target} is not followed")),
            (_, "http" | "https") => {}
            (_, other) => return Err(format!("the redirect to a `{other}` URL cannot be followed")),
        }
        if let Some(id) = self.numbers.get(target.as_str()) {
            return Ok(*id);
        }
        let id = u16::try_from(self.urls.len()).map(OriginId).map_err(|_| "too many redirects".to_owned())?;
        let right = self.right(from).unwrap_or_else(Right::user);
        // Within one host a redirect says nothing new of where it is.
        let right = if base.host() == target.host() { right } else { right.led_by(server) };
        self.numbers.insert(target.as_str().to_owned(), id);
        self.add(target, right);
        Ok(id)
    }

    /// The request for some bytes of a place.
    pub(super) fn get(&self, id: OriginId, ask: Ask, if_range: Option<Validator>) -> Option<Get> {
        let url = self.url(id)?;
        let host = url.host_str()?;
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let path_and_query = url.query().map_or_else(|| url.path().to_owned(), |q| format!("{}?{q}", url.path()));
        let trusted = self.urls.first().is_some_and(|first| same_host(first, url));
        let headers = self.headers.iter().filter(|(name, _)| trusted || !carries_secrets(name)).cloned().collect();
        Some(Get { path_and_query, authority, ask, if_range, headers })
    }
}

/// Whether the first URL's secrets may go there: the same host and port, and not less protected.
fn same_host(first: &Url, other: &Url) -> bool {
    let protected = other.scheme() == "https" || first.scheme() == other.scheme();
    let port = first.port_or_known_default() == other.port_or_known_default();
    first.host_str() == other.host_str() && protected && (port || first.scheme() != other.scheme())
}

fn carries_secrets(name: &HeaderName) -> bool {
    [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].contains(name)
}

/// The host as a resolver takes it: an address without brackets, or a name.
pub(crate) fn host_of(url: &Url) -> String {
    match url.host() {
        Some(Host::Domain(name)) => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        None => String::new(),
    }
}

/// Whether the URL is on this very machine, where no link leads.
pub(crate) fn is_local(url: &Url) -> bool {
    let host = host_of(url);
    // The kernel takes the unspecified address for the loopback.
    let own = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.to_canonical().is_unspecified();
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(own)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn origins(first: &str) -> Origins {
        let fields = [("X-Id".to_owned(), "1".to_owned()), ("Cookie".to_owned(), "secret".to_owned())];
        let user = ("me".to_owned(), "pass".to_owned());
        Origins::new(&[first.parse().unwrap()], &fields, Some(&user))
    }

    fn server() -> Option<IpAddr> {
        "198.51.100.1".parse().ok()
    }

    fn names(origins: &Origins, id: OriginId) -> Vec<String> {
        let get = origins.get(id, Ask::Whole, None).unwrap();
        get.headers.iter().map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn secrets_stay_with_the_first_host() {
        let mut o = origins("http://a.example/f");
        assert_eq!(names(&o, OriginId(0)), ["x-id", "cookie", "authorization"]);
        let secure = o.redirect(OriginId(0), "https://a.example/f", server()).unwrap();
        assert_eq!(names(&o, secure).len(), 3);
        let other = o.redirect(OriginId(0), "https://b.example/f", server()).unwrap();
        assert_eq!(names(&o, other), ["x-id"]);
        let port = o.redirect(OriginId(0), "http://a.example:8080/f", server()).unwrap();
        assert_eq!(names(&o, port), ["x-id"]);
    }

    #[test]
    fn a_place_has_one_number() {
        let mut o = origins("http://a.example/f");
        let one = o.redirect(OriginId(0), "/g?x#frag", server()).unwrap();
        assert_eq!(o.redirect(OriginId(0), "http://a.example/g?x", server()), Ok(one));
        assert_eq!(o.redirect(one, "/f", server()), Ok(OriginId(0)));
        assert_eq!(o.get(one, Ask::Whole, None).unwrap().path_and_query, "/g?x");
    }

    #[test]
    fn a_redirect_may_lead_where_its_server_is_and_not_further() {
        let mut o = origins("http://a.example/f");
        let loopback: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let mut refuses = |from, to: &str, server: &str, address: &str| {
            let id = o.redirect(from, to, server.parse().ok()).unwrap();
            (id, o.right(id).unwrap().check(SocketAddr::new(address.parse().unwrap(), 80)).is_err())
        };
        let (elsewhere, refused) = refuses(OriginId(0), "http://b.example/1", "203.0.113.9", "127.0.0.1");
        assert!(refused);
        // What it led to leads no further, wherever that is.
        assert!(refuses(elsewhere, "http://c.example/", "127.0.0.1", "127.0.0.1").1);
        assert!(refuses(elsewhere, "http://c.example/2", "127.0.0.1", "10.0.0.1").1);
        assert!(!refuses(OriginId(0), "http://d.example/", "127.0.0.1", "127.0.0.1").1);
        assert!(!refuses(OriginId(0), "http://e.example/", "10.0.0.1", "192.168.0.1").1);
        assert!(refuses(OriginId(0), "http://f.example/", "10.0.0.1", "127.0.0.1").1);
        // The host that the user has named stays as free as it was.
        assert!(!refuses(OriginId(0), "https://a.example/g", "203.0.113.9", "127.0.0.1").1);
        assert!(o.right(OriginId(0)).unwrap().check(loopback).is_ok());
    }

    #[test]
    fn https_is_never_left() {
        let mut o = origins("https://a.example/f");
        assert!(o.redirect(OriginId(0), "http://a.example/f", server()).unwrap_err().contains("not followed"));
        assert!(o.redirect(OriginId(0), "file:///etc/passwd", server()).is_err());
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
            assert_eq!(is_local(&url.parse().unwrap()), local, "{url}");
        }
    }
}
