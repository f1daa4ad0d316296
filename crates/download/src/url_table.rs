//! The places where the file can be had: its sources, and where redirects led.
//!
//! 1. Each place has one number, however often it is named. Some servers redirect each request to another URL: of what
//!    redirects led to, the places that were named last and those that are in use are remembered. Numbers come again only
//!    after all others.
//! 2. A redirect from https to http is not followed: everybody on the path could change the file.
//! 3. Where a place may lead to depends on the servers that led there ([`Right`]).
//! 4. User, password, cookies and the user's own header fields stay with the origin (scheme, host and port) that they were
//!    given for. Fields that only describe the program go along with redirects.
//! 5. Cookies that servers set are sent back within the same run, as RFC 6265 has it ([`Jar`]).
//! 6. A login in the target of a redirect goes to the origin of that target, as far as redirects stay there.
//! 7. A source that a server or a Metalink file names gets none of them, and neither does what it redirects to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use base64::Engine as _;
use http::header::{
    ACCEPT, ACCEPT_LANGUAGE, AUTHORIZATION, COOKIE, HeaderName, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT,
};
use marline_core::fetch::{RequestRange, UrlId, Validator};
use marline_net::cookies::CookieJar;
use marline_net::egress::EgressPolicy;
use marline_net::http::GetRequest;
use url::{Host, Url};

use super::request::{Credentials, MirrorUrl};
use crate::name::percent_decode;

/// All places, by number.
#[derive(Debug)]
pub(super) struct UrlTable {
    entries: BTreeMap<UrlId, UrlEntry>,
    ids: BTreeMap<UrlKey, UrlId>,
    /// The number that was given last.
    last_id: UrlId,
    /// Counts what redirects named.
    redirect_count: u64,
    /// The origins that the user named, with what is sent there.
    user_origins: Vec<(Url, Vec<HeaderField>)>,
    /// What is sent wherever the user's URLs lead.
    cross_origin_headers: Vec<HeaderField>,
    /// Logins by host, for places that have no other.
    host_logins: BTreeMap<String, (String, String)>,
    /// Everything is sent wherever the user's URLs lead.
    send_to_all_hosts: bool,
    /// Cookies that servers have set, except for those that a server or a Metalink file named.
    cookie_jar: Rc<CookieJar>,
}

type HeaderField = (HeaderName, HeaderValue);

/// A URL without a login, and the login for it.
type UrlKey = (String, Option<HeaderValue>);

#[derive(Debug)]
struct UrlEntry {
    url: Url,
    /// The login that the redirect named.
    login: Option<HeaderField>,
    /// A redirect led there; the others are sources.
    is_redirect: bool,
    /// When it was named last, in redirects.
    last_redirect: u64,
    /// A server or a Metalink file named it, or what led there.
    is_untrusted: bool,
    /// What it may be connected to.
    egress: EgressPolicy,
}

impl UrlTable {
    /// One URL that the user named. Fields that HTTP does not allow are left out; the command line has refused them
    /// before.
    pub(super) fn new(url: &Url, fields: &[(String, String)], user: Option<&(String, String)>) -> Self {
        let (user, home) = (user.cloned(), Some(url.clone()));
        let credentials =
            Credentials { headers: fields.to_vec(), user, credential_origin: home, ..Credentials::default() };
        Self::from_mirrors(&[MirrorUrl::from_user(url.clone())], &credentials)
    }

    /// The sources of a file, and what the user gave for them.
    pub(super) fn from_mirrors(sources: &[MirrorUrl], credentials: &Credentials) -> Self {
        let fields: Vec<HeaderField> =
            credentials.headers.iter().filter_map(|(name, value)| header_field(name, value)).collect();
        let mut url_table = Self {
            entries: BTreeMap::new(),
            ids: BTreeMap::new(),
            last_id: UrlId(u16::MAX),
            redirect_count: 0,
            user_origins: Vec::new(),
            cross_origin_headers: fields.iter().filter(|(name, _)| is_client_description(name)).cloned().collect(),
            host_logins: credentials.host_logins.hosts.clone(),
            send_to_all_hosts: credentials.send_to_all_hosts,
            cookie_jar: Rc::default(),
        };
        for source in sources {
            if !source.is_untrusted {
                let is_credential_origin =
                    credentials.credential_origin.as_ref().is_some_and(|home| same_origin(home, &source.url));
                let mut sent: Vec<HeaderField> =
                    fields.iter().filter(|(name, _)| is_credential_origin || !is_secret(name)).cloned().collect();
                let given = credentials.user.as_ref().filter(|_| is_credential_origin);
                sent.extend(source.login.as_ref().or(given).and_then(basic_auth));
                url_table.user_origins.push((source.url.clone(), sent));
            }
            let entry = UrlEntry::mirror(&source.url, source.is_untrusted, source.egress);
            url_table.add(entry);
        }
        url_table
    }

    /// The same, for URLs that whoever has this right has named.
    pub(super) fn with_egress(mut self, egress: EgressPolicy) -> Self {
        self.entries.values_mut().for_each(|entry| entry.egress = egress);
        self
    }

    /// The same with these fields for the URLs' own origins, and with these for wherever they lead.
    pub(super) fn with_headers(mut self, fields: &[HeaderField], common: &[HeaderField]) -> Self {
        self.user_origins.iter_mut().for_each(|(_, sent)| sent.extend(fields.iter().cloned()));
        self.cross_origin_headers = common.to_vec();
        self
    }

    /// The same with cookies that are shared with other transfers.
    pub(super) fn with_jar(mut self, cookie_jar: Rc<CookieJar>) -> Self {
        self.cookie_jar = cookie_jar;
        self
    }

    /// A place has set cookies.
    pub(super) fn store_cookies(&self, id: UrlId, set_cookies: &[String]) {
        if let Some(entry) = self.entries.get(&id).filter(|entry| !entry.is_untrusted) {
            self.cookie_jar.store_cookies(&entry.url, set_cookies);
        }
    }

    /// The number of a place that this server, where another one is, has named as a further source; none if it cannot be
    /// one.
    pub(super) fn add_mirror(&mut self, from: UrlId, url: &Url, server: Option<IpAddr>) -> Option<UrlId> {
        let egress = self.egress(from)?.referred_by(server);
        if self.entries.len() >= MAX_URLS || self.ids.contains_key(&(url.to_string(), None)) {
            return None;
        }
        // As with redirects: what is asked for over TLS does not come in plain text.
        let secure = self.entries.first_key_value().is_some_and(|(_, first)| first.url.scheme() == "https");
        if secure && url.scheme() != "https" {
            return None;
        }
        self.add(UrlEntry::mirror(url, true, egress))
    }

    fn add(&mut self, entry: UrlEntry) -> Option<UrlId> {
        let free_ids = (1..=u16::MAX).map(|n| UrlId(self.last_id.0.wrapping_add(n)));
        let id = free_ids.into_iter().find(|id| !self.entries.contains_key(id))?;
        self.last_id = id;
        self.ids.entry(entry.key()).or_insert(id);
        self.entries.insert(id, entry);
        Some(id)
    }

    /// Whether [`make_room`](Self::make_room) is due before the next redirect.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= MAX_URLS
    }

    /// Forgets places that redirects have not named for long, except those for which there is a connection.
    pub(super) fn evict_redirects(&mut self, used: &BTreeSet<UrlId>) {
        let before = self.redirect_count.saturating_sub(KEPT_REDIRECTS);
        self.entries.retain(|id, entry| !entry.is_redirect || entry.last_redirect > before || used.contains(id));
        let entries = &self.entries;
        self.ids.retain(|_, id| entries.contains_key(id));
    }

    /// Whether the user has named a place, or what led there.
    pub(super) fn is_from_user(&self, id: UrlId) -> bool {
        self.entries.get(&id).is_some_and(|entry| !entry.is_untrusted)
    }

    pub(super) fn url(&self, id: UrlId) -> Option<&Url> {
        self.entries.get(&id).map(|entry| &entry.url)
    }

    /// What a place may be connected to.
    pub(super) fn egress(&self, id: UrlId) -> Option<EgressPolicy> {
        self.entries.get(&id).map(|entry| entry.egress)
    }

    /// Whether there is one place only.
    pub(super) fn has_single_url(&self) -> bool {
        self.entries.len() == 1
    }

    /// The number of a redirect's target, which this server named; none if it must not or cannot be followed, with the
    /// reason for the user.
    pub(super) fn resolve_redirect(
        &mut self,
        from: UrlId,
        location: &str,
        server: Option<IpAddr>,
    ) -> Result<UrlId, String> {
        let from = self.entries.get(&from).ok_or_else(|| "a redirect from nowhere".to_owned())?;
        let (base, foreign) = (&from.url, from.is_untrusted);
        let mut target = base.join(location).map_err(|e| {
            // What stands before an `@` may be a password.
            let masked = location.rsplit('@').next().unwrap_or_default();
            format!("the redirect to `{masked}` is no URL: {e}")
        })?;
        target.set_fragment(None);
        let url_login = (!target.username().is_empty() || target.password().is_some())
            .then(|| {
                basic_auth(&(
                    percent_decoded(target.username()),
                    percent_decoded(target.password().unwrap_or_default()),
                ))
            })
            .flatten();
        // Only URLs that have a host have a login.
        let _ = (target.set_username(""), target.set_password(None));
        let login = url_login.or_else(|| from.login.clone().filter(|_| base.origin() == target.origin()));
        match (base.scheme(), target.scheme()) {
            ("https", "http") => return Err(format!("the redirect from https to {target} is not followed")),
            (_, "http" | "https") => {}
            (_, scheme) => return Err(format!("the redirect to a `{scheme}` URL cannot be followed")),
        }
        // Within one service a redirect says nothing new of where it is. Another port of the same name may be another service:
        // of a name with public and private addresses, a public server leads to the public ones.
        let is_address = matches!(target.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)));
        let is_within = same_origin(base, &target) || (is_address && base.host() == target.host());
        let egress = if is_within { from.egress } else { from.egress.referred_by(server) };
        self.redirect_count += 1;
        let entry = UrlEntry {
            url: target,
            login,
            is_redirect: true,
            last_redirect: self.redirect_count,
            is_untrusted: foreign,
            egress,
        };
        let known_id = self.ids.get(&entry.key()).copied();
        if let Some((id, known_entry)) = known_id.and_then(|id| Some((id, self.entries.get_mut(&id)?))) {
            known_entry.last_redirect = self.redirect_count;
            if let Some(zone) = egress.referrer_zone().filter(|_| known_entry.is_redirect) {
                known_entry.egress = known_entry.egress.referred_by_zone(zone);
            }
            return Ok(id);
        }
        if self.is_full() {
            return Err("too many places at once".to_owned());
        }
        self.add(entry).ok_or_else(|| "too many places at once".to_owned())
    }

    /// The request for some bytes of a place.
    pub(super) fn request_for(
        &self,
        id: UrlId,
        ask: RequestRange,
        if_range: Option<Validator>,
    ) -> Option<GetRequest> {
        let UrlEntry { url, is_untrusted: foreign, login: named, .. } = self.entries.get(&id)?;
        let host = url.host_str()?;
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let path_and_query = url.query().map_or_else(|| url.path().to_owned(), |q| format!("{}?{q}", url.path()));
        let user_origin = self
            .user_origins
            .iter()
            .find(|(user_origin, _)| same_origin(user_origin, url))
            .or(self.user_origins.first());
        let mut headers = match user_origin {
            _ if *foreign => Vec::new(),
            Some((user_origin, sent)) if self.send_to_all_hosts || same_origin(user_origin, url) => sent.clone(),
            _ => self.cross_origin_headers.clone(),
        };
        if let Some(login) = named {
            headers.retain(|(name, _)| *name != AUTHORIZATION);
            headers.push(login.clone());
        }
        if !foreign {
            self.cookie_jar.add_to_headers(url, &mut headers);
            if !headers.iter().any(|(name, _)| *name == AUTHORIZATION) {
                headers.extend(self.host_logins.get(host).and_then(basic_auth));
            }
        }
        Some(GetRequest { path_and_query, authority, range: ask, if_range, headers })
    }
}

impl UrlEntry {
    fn mirror(url: &Url, foreign: bool, egress: EgressPolicy) -> Self {
        Self { url: url.clone(), login: None, is_redirect: false, last_redirect: 0, is_untrusted: foreign, egress }
    }

    fn key(&self) -> UrlKey {
        (self.url.to_string(), self.login.as_ref().map(|(_, value)| value.clone()))
    }
}

/// A part of a URL's login.
fn percent_decoded(text: &str) -> String {
    String::from_utf8_lossy(&percent_decode(text)).into_owned()
}

fn header_field(name: &str, value: &str) -> Option<HeaderField> {
    Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
}

/// Basic authentication (RFC 7617).
fn basic_auth((name, password): &(String, String)) -> Option<HeaderField> {
    let text = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {text}")).ok()?;
    value.set_sensitive(true);
    Some((AUTHORIZATION, value))
}

/// Whether what was given for the first URL may go to the other: the same scheme, host and port, or the same host with
/// TLS, both at their own ports.
pub fn same_origin(first: &Url, other: &Url) -> bool {
    let ports = (first.port_or_known_default(), other.port_or_known_default());
    let same = first.scheme() == other.scheme() && ports.0 == ports.1;
    let secured = (first.scheme(), other.scheme()) == ("http", "https") && ports == (Some(80), Some(443));
    first.host_str() == other.host_str() && (same || secured)
}

fn is_secret(name: &HeaderName) -> bool {
    [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].contains(name)
}

/// Whether a field tells of the program, and of nobody's rights.
pub fn is_client_description(name: &HeaderName) -> bool {
    [USER_AGENT, ACCEPT, ACCEPT_LANGUAGE].contains(name)
}

/// More places than this are not remembered of what servers name.
const MAX_URLS: usize = 1000;
/// Of these, how many that redirects named last are kept when there are too many. chosen: several for each connection that a
/// download may have.
const KEPT_REDIRECTS: u64 = 250;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn fields() -> Vec<(String, String)> {
        [("X-Id", "1"), ("Cookie", "secret"), ("User-Agent", "me")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec()
    }

    fn origins(first: &str) -> UrlTable {
        let user = ("me".to_owned(), "pass".to_owned());
        UrlTable::new(&first.parse().unwrap(), &fields(), Some(&user))
    }

    fn server() -> Option<IpAddr> {
        "198.51.100.1".parse().ok()
    }

    fn names(origins: &UrlTable, id: UrlId) -> Vec<String> {
        let get = origins.request_for(id, RequestRange::Full, None).unwrap();
        get.headers.iter().map(|(name, _)| name.to_string()).collect()
    }

    const ALL_HEADERS: [&str; 4] = ["x-id", "cookie", "user-agent", "authorization"];

    #[test]
    fn what_was_given_for_an_origin_stays_there() {
        let mut o = origins("http://a.example/f");
        assert_eq!(names(&o, UrlId(0)), ALL_HEADERS);
        for (target, sent) in [
            ("/g", &ALL_HEADERS[..]),
            ("https://a.example/f", &ALL_HEADERS),
            ("https://a.example:9444/f", &["user-agent"]),
            ("http://a.example:8080/f", &["user-agent"]),
            ("https://b.example/f", &["user-agent"]),
        ] {
            let id = o.resolve_redirect(UrlId(0), target, server()).unwrap();
            assert_eq!(names(&o, id), sent, "{target}");
        }
    }

    #[test]
    fn a_mirror_gets_no_secret_and_what_a_server_names_gets_nothing() {
        let url = |text: &str| text.parse::<Url>().unwrap();
        let login = Some(("its".to_owned(), "own".to_owned()));
        let sources = [
            MirrorUrl::from_user(url("https://a.example/f")),
            MirrorUrl::from_user(url("https://b.example/f")),
            MirrorUrl { login, ..MirrorUrl::from_user(url("https://c.example/f")) },
            MirrorUrl { is_untrusted: true, ..MirrorUrl::from_user(url("https://a.example/other")) },
        ];
        let user = Some(("me".to_owned(), "pass".to_owned()));
        let home = Some(url("https://a.example/f"));
        let credentials =
            Credentials { headers: fields(), user, credential_origin: home, ..Credentials::default() };
        let mut o = UrlTable::from_mirrors(&sources, &credentials);
        assert_eq!(names(&o, UrlId(0)), ALL_HEADERS);
        assert_eq!(names(&o, UrlId(1)), ["x-id", "user-agent"]);
        assert_eq!(names(&o, UrlId(2)), ["x-id", "user-agent", "authorization"]);
        assert_eq!(names(&o, UrlId(3)), [""; 0]);
        let led = o.resolve_redirect(UrlId(3), "https://a.example/g", server()).unwrap();
        assert_eq!(names(&o, led), [""; 0]);
        assert_eq!(o.add_mirror(UrlId(0), &url("http://a.example/plain"), server()), None, "TLS is not left");
        let named = o.add_mirror(UrlId(0), &url("https://a.example/duplicate"), server()).unwrap();
        assert_eq!(names(&o, named), [""; 0]);
        let mut o = UrlTable::from_mirrors(&sources[..1], &Credentials { send_to_all_hosts: true, ..credentials });
        let led = o.resolve_redirect(UrlId(0), "https://b.example/g", server()).unwrap();
        assert_eq!(names(&o, led), ALL_HEADERS, "as the user wants");
    }

    #[test]
    fn cookies_come_back_to_those_who_set_them() {
        let url = |text: &str| text.parse::<Url>().unwrap();
        let foreign = MirrorUrl { is_untrusted: true, ..MirrorUrl::from_user(url("https://b.example.com/f")) };
        let credentials = Credentials { headers: fields(), ..Credentials::default() };
        let mut o =
            UrlTable::from_mirrors(&[MirrorUrl::from_user(url("https://a.example.com/f")), foreign], &credentials);
        let led = o.resolve_redirect(UrlId(0), "https://c.example.com/f", server()).unwrap();
        let sent = |o: &UrlTable, id| {
            let get = o.request_for(id, RequestRange::Full, None).unwrap();
            let cookies = get.headers.iter().filter(|(name, _)| *name == COOKIE);
            cookies.map(|(_, value)| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        // A mirror that a server has named sets none.
        o.store_cookies(UrlId(1), &["m=1; Domain=example.com; Path=/".to_owned()]);
        assert_eq!(sent(&o, led), [""; 0]);
        o.store_cookies(UrlId(0), &["own=1; Path=/".to_owned(), "all=1; Domain=example.com; Path=/".to_owned()]);
        assert_eq!(sent(&o, led), ["all=1"]);
        let mut own: Vec<_> = sent(&o, UrlId(0))[0].split("; ").map(str::to_owned).collect();
        own.sort_unstable();
        assert_eq!(own, ["all=1", "own=1"]);
        assert_eq!(sent(&o, UrlId(1)), [""; 0]);
    }

    #[test]
    fn a_place_has_one_number() {
        let mut o = origins("http://a.example/f");
        let one = o.resolve_redirect(UrlId(0), "/g?x#frag", server()).unwrap();
        assert_eq!(o.resolve_redirect(UrlId(0), "http://a.example/g?x", server()), Ok(one));
        assert_eq!(o.resolve_redirect(one, "/f", server()), Ok(UrlId(0)));
        assert_eq!(o.request_for(one, RequestRange::Full, None).unwrap().path_and_query, "/g?x");
    }

    #[test]
    fn a_redirect_may_lead_where_its_server_is_and_not_further() {
        let mut o = origins("http://a.example/f");
        let loopback: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let mut refuses = |from, to: &str, server: &str, address: &str| {
            let id = o.resolve_redirect(from, to, server.parse().ok()).unwrap();
            (id, o.egress(id).unwrap().check(SocketAddr::new(address.parse().unwrap(), 80)).is_err())
        };
        let (elsewhere, refused) = refuses(UrlId(0), "http://b.example/1", "203.0.113.9", "127.0.0.1");
        assert!(refused);
        // What it led to leads no further, wherever that is.
        assert!(refuses(elsewhere, "http://c.example/", "127.0.0.1", "127.0.0.1").1);
        assert!(refuses(elsewhere, "http://c.example/2", "127.0.0.1", "10.0.0.1").1);
        assert!(!refuses(UrlId(0), "http://d.example/", "127.0.0.1", "127.0.0.1").1);
        assert!(!refuses(UrlId(0), "http://e.example/", "10.0.0.1", "192.168.0.1").1);
        assert!(refuses(UrlId(0), "http://f.example/", "10.0.0.1", "127.0.0.1").1);
        // The host that the user has named stays as free as it was.
        assert!(!refuses(UrlId(0), "https://a.example/g", "203.0.113.9", "127.0.0.1").1);
        assert!(o.egress(UrlId(0)).unwrap().check(loopback).is_ok());
    }

    #[test]
    fn another_port_of_a_name_is_another_service() {
        let mut o = origins("http://a.example/f");
        let mut leads = |to: &str, server: &str, address: &str| {
            let id = o.resolve_redirect(UrlId(0), to, server.parse().ok()).unwrap();
            o.egress(id).unwrap().check(SocketAddr::new(address.parse().unwrap(), 80)).is_ok()
        };
        // A name with a public and a private address: the public server leads to the public one.
        assert!(!leads("http://a.example:7001/secret", "203.0.113.9", "10.9.0.1"));
        assert!(!leads("https://a.example:8443/", "203.0.113.9", "192.168.0.1"));
        assert!(leads("http://a.example:7001/secret", "203.0.113.9", "203.0.113.9"));
        assert!(leads("http://a.example:7002/", "10.9.0.1", "10.9.0.1"));
        assert!(leads("http://a.example:7003/", "127.0.0.1", "127.0.0.1"));
        // First from the private server, then from the public one.
        assert!(leads("http://a.example:7004/", "10.9.0.1", "10.9.0.1"));
        assert!(!leads("http://a.example:7004/", "203.0.113.9", "10.9.0.1"));
        // An address is in one zone, whatever the port; behind a proxy it alone is known.
        let mut o = origins("http://192.168.0.1/f");
        let id = o.resolve_redirect(UrlId(0), "http://192.168.0.1:8080/f", None).unwrap();
        assert!(o.egress(id).unwrap().check(([192, 168, 0, 1], 8080).into()).is_ok());
    }

    #[test]
    fn redirects_to_ever_new_places_are_followed() {
        let mut o = origins("http://a.example/f");
        let first = o.resolve_redirect(UrlId(0), "/first", server()).unwrap();
        let mut ids = BTreeSet::from([UrlId(0), first]);
        for n in 0..70_000_u32 {
            if o.is_full() {
                o.evict_redirects(&BTreeSet::from([first]));
            }
            let id = o.resolve_redirect(UrlId(0), &format!("/once/{n}"), server()).unwrap();
            assert_eq!(o.url(id).map(Url::path), Some(&*format!("/once/{n}")));
            if n < 60_000 {
                assert!(ids.insert(id), "a number came again");
            }
            let before =
                o.resolve_redirect(UrlId(0), &format!("/once/{}", n.saturating_sub(100)), server()).unwrap();
            assert_eq!(o.url(before).map(Url::path), Some(&*format!("/once/{}", n.saturating_sub(100))));
            assert!(o.entries.len() <= MAX_URLS && o.ids.len() <= MAX_URLS);
        }
        // Sources and what is in use stay.
        assert_eq!(o.url(UrlId(0)).map(Url::path), Some("/f"));
        assert_eq!(o.url(first).map(Url::path), Some("/first"));
    }

    #[test]
    fn a_login_in_a_redirect_goes_to_its_origin_alone() {
        let sent = |o: &UrlTable, id| {
            let get = o.request_for(id, RequestRange::Full, None).unwrap();
            let mut fields = get.headers.iter().filter(|(name, _)| *name == AUTHORIZATION);
            let one = fields.next().map(|(_, value)| {
                let text = value.to_str().unwrap().strip_prefix("Basic ").unwrap().to_owned();
                assert!(value.is_sensitive());
                String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
            });
            assert!(fields.next().is_none());
            one
        };
        let mut o = UrlTable::new(&"http://a.example/f".parse().unwrap(), &[], None);
        let there = o.resolve_redirect(UrlId(0), "http://u:p%40:q@b.example/g", server()).unwrap();
        assert_eq!(sent(&o, there).as_deref(), Some("u:p@:q"));
        assert_eq!(o.url(there).map(Url::as_str), Some("http://b.example/g"));
        assert_eq!(sent(&o, UrlId(0)), None);
        let further = o.resolve_redirect(there, "/h", server()).unwrap();
        assert_eq!(sent(&o, further).as_deref(), Some("u:p@:q"));
        for elsewhere in
            ["http://b.example:81/h", "https://b.example/h", "http://c.example/h", "http://a.example/f"]
        {
            let id = o.resolve_redirect(there, elsewhere, server()).unwrap();
            assert_eq!(sent(&o, id), None, "{elsewhere}");
        }
        // The same URL without the login is another place; with another login, too.
        let bare = o.resolve_redirect(UrlId(0), "http://b.example/g", server()).unwrap();
        assert_eq!(sent(&o, bare), None);
        let other = o.resolve_redirect(UrlId(0), "http://v@b.example/g", server()).unwrap();
        assert_eq!(sent(&o, other).as_deref(), Some("v:"));
        // Instead of the user's own at the same origin, and never in a message.
        let mut o = origins("https://a.example/f");
        let own = o.resolve_redirect(UrlId(0), "https://u:p@a.example/g", server()).unwrap();
        assert_eq!(sent(&o, own).as_deref(), Some("u:p"));
        assert_eq!(sent(&o, UrlId(0)).as_deref(), Some("me:pass"));
        for bad in ["http://u:hidden@a.example/", "ftp://u:hidden@a.example/", "http://u:hidden@[::1"] {
            let why = o.resolve_redirect(UrlId(0), bad, server()).unwrap_err();
            assert!(!why.contains("hidden"), "{why}");
        }
    }

    #[test]
    fn https_is_never_left() {
        let mut o = origins("https://a.example/f");
        assert!(o.resolve_redirect(UrlId(0), "http://a.example/f", server()).unwrap_err().contains("not followed"));
        assert!(o.resolve_redirect(UrlId(0), "file:///etc/passwd", server()).is_err());
    }
}
