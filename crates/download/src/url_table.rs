//! The URLs of a file: those of its mirrors, and the targets of redirects.
//!
//! 1. Each URL has one ID, even if it is named several times. Some servers redirect each request to another URL. So
//!    of the redirect targets, only the most recent ones and those with open connections are kept. IDs are reused
//!    only after all others have been used.
//! 2. A redirect from https to http is not followed, because everyone on the path could change the file.
//! 3. Which addresses a URL may lead to depends on the servers that named it ([`EgressPolicy`]).
//! 4. Login, cookies and header fields of the user are sent only to the origin (scheme, host and port) for which
//!    they were given, unless the user sends them to all hosts. Fields that describe the client are also sent after
//!    redirects.
//! 5. Cookies that servers set are sent back as RFC 6265 specifies, by all transfers that share the [`CookieJar`].
//! 6. A login in the target of a redirect is sent to the origin of that target, also after redirects within that
//!    origin.
//! 7. A mirror that a server or a Metalink file names gets none of these, and neither do its redirect targets.

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
use marline_net::http::{GetRequest, take_login};
use url::{Host, Url};

use super::request::{Credentials, MirrorUrl};

/// All URLs, by ID.
#[derive(Debug)]
pub(super) struct UrlTable {
    entries: BTreeMap<UrlId, UrlEntry>,
    ids: BTreeMap<UrlKey, UrlId>,
    /// The ID that was assigned last.
    last_id: UrlId,
    /// Number of redirects so far; serves as a clock for [`UrlEntry::last_redirect`].
    redirect_count: u64,
    /// The URLs that the user named, with the header fields that their origins get.
    user_origins: Vec<(Url, Vec<HeaderField>)>,
    /// Header fields that are sent to other origins as well, after redirects from the user's URLs.
    cross_origin_headers: Vec<HeaderField>,
    /// Logins by host (netrc), for URLs without another login.
    host_logins: BTreeMap<String, (String, String)>,
    /// Whether all header fields of the user are sent to every host.
    send_to_all_hosts: bool,
    /// Cookies that servers have set. Mirrors that a server or a Metalink file named can set none.
    cookie_jar: Rc<CookieJar>,
}

type HeaderField = (HeaderName, HeaderValue);

/// A URL without login, and the login for it.
type UrlKey = (String, Option<HeaderValue>);

#[derive(Debug)]
struct UrlEntry {
    url: Url,
    /// The login that was part of the redirect.
    login: Option<HeaderField>,
    /// Whether it is the target of a redirect, not a mirror.
    is_redirect: bool,
    /// When a redirect last named it, as a value of [`UrlTable::redirect_count`].
    last_redirect: u64,
    /// Whether a server or a Metalink file named it, or the mirror that redirected to it.
    is_untrusted: bool,
    /// Which addresses it may be connected to.
    egress: EgressPolicy,
}

impl UrlTable {
    /// A table with one URL that the user named. Header fields that HTTP does not allow are omitted; the command
    /// line rejects them earlier.
    pub(super) fn new(url: &Url, fields: &[(String, String)], user: Option<&(String, String)>) -> Self {
        let (user, credential_origin) = (user.cloned(), Some(url.clone()));
        let credentials =
            Credentials { headers: fields.to_vec(), user, credential_origin, ..Credentials::default() };
        Self::from_mirrors(&[MirrorUrl::from_user(url.clone())], &credentials)
    }

    /// A table with the mirrors of a file, and the credentials that the user gave for them.
    pub(super) fn from_mirrors(mirrors: &[MirrorUrl], credentials: &Credentials) -> Self {
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
        for mirror in mirrors {
            if !mirror.is_untrusted {
                let is_credential_origin = credentials
                    .credential_origin
                    .as_ref()
                    .is_some_and(|credential_origin| same_origin(credential_origin, &mirror.url));
                let mut sent: Vec<HeaderField> =
                    fields.iter().filter(|(name, _)| is_credential_origin || !is_secret(name)).cloned().collect();
                let given = credentials.user.as_ref().filter(|_| is_credential_origin);
                sent.extend(mirror.login.as_ref().or(given).and_then(basic_auth));
                url_table.user_origins.push((mirror.url.clone(), sent));
            }
            let entry = UrlEntry::mirror(&mirror.url, mirror.is_untrusted, mirror.egress);
            url_table.add(entry);
        }
        url_table
    }

    /// Applies an egress policy to all URLs of the table.
    pub(super) fn with_egress(mut self, egress: EgressPolicy) -> Self {
        self.entries.values_mut().for_each(|entry| entry.egress = egress);
        self
    }

    /// Adds header fields for the origins of the URLs, and sets those that are sent to other origins.
    pub(super) fn with_headers(mut self, fields: &[HeaderField], common: &[HeaderField]) -> Self {
        self.user_origins.iter_mut().for_each(|(_, sent)| sent.extend(fields.iter().cloned()));
        self.cross_origin_headers = common.to_vec();
        self
    }

    /// Uses cookies that are shared with other transfers.
    pub(super) fn with_jar(mut self, cookie_jar: Rc<CookieJar>) -> Self {
        self.cookie_jar = cookie_jar;
        self
    }

    /// Stores cookies that a response from this URL has set.
    pub(super) fn store_cookies(&self, id: UrlId, set_cookies: &[String]) {
        if let Some(entry) = self.entries.get(&id).filter(|entry| !entry.is_untrusted) {
            self.cookie_jar.store_cookies(&entry.url, set_cookies);
        }
    }

    /// Adds a mirror that the server of another URL advertises, and returns its ID; none if it cannot be used.
    pub(super) fn add_mirror(&mut self, from: UrlId, url: &Url, server: Option<IpAddr>) -> Option<UrlId> {
        let egress = self.egress(from)?.referred_by(server);
        if self.entries.len() >= MAX_URLS || self.ids.contains_key(&(url.to_string(), None)) {
            return None;
        }
        // As with redirects, a download over TLS must not continue in plain text.
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

    /// Whether [`evict_redirects`](Self::evict_redirects) is due before the next redirect.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= MAX_URLS
    }

    /// Removes redirect targets that were not named recently, except those with open connections (`used`).
    pub(super) fn evict_redirects(&mut self, used: &BTreeSet<UrlId>) {
        let before = self.redirect_count.saturating_sub(KEPT_REDIRECTS);
        self.entries.retain(|id, entry| !entry.is_redirect || entry.last_redirect > before || used.contains(id));
        let entries = &self.entries;
        self.ids.retain(|_, id| entries.contains_key(id));
    }

    /// Whether the user named the URL, or a URL that redirected to it.
    pub(super) fn is_from_user(&self, id: UrlId) -> bool {
        self.entries.get(&id).is_some_and(|entry| !entry.is_untrusted)
    }

    pub(super) fn url(&self, id: UrlId) -> Option<&Url> {
        self.entries.get(&id).map(|entry| &entry.url)
    }

    /// Which addresses the URL may be connected to.
    pub(super) fn egress(&self, id: UrlId) -> Option<EgressPolicy> {
        self.entries.get(&id).map(|entry| entry.egress)
    }

    /// Whether the table has exactly one URL.
    pub(super) fn has_single_url(&self) -> bool {
        self.entries.len() == 1
    }

    /// Returns the ID of a redirect's target, which `server` named. Fails with a message for the user if the
    /// redirect must not or cannot be followed.
    pub(super) fn resolve_redirect(
        &mut self,
        from: UrlId,
        location: &str,
        server: Option<IpAddr>,
    ) -> Result<UrlId, String> {
        let from = self.entries.get(&from).ok_or_else(|| "the redirect comes from an unknown URL".to_owned())?;
        let (base, is_untrusted) = (&from.url, from.is_untrusted);
        let mut target = base.join(location).map_err(|e| {
            // The text before an `@` may be a password, so it is not shown.
            let masked = location.rsplit('@').next().unwrap_or_default();
            format!("the redirect target `{masked}` is not a valid URL: {e}")
        })?;
        target.set_fragment(None);
        let url_login = take_login(&mut target).and_then(|login| basic_auth(&login));
        let login = url_login.or_else(|| from.login.clone().filter(|_| base.origin() == target.origin()));
        match (base.scheme(), target.scheme()) {
            ("https", "http") => return Err(format!("the redirect from https to {target} is not followed")),
            (_, "http" | "https") => {}
            (_, scheme) => return Err(format!("the redirect to a `{scheme}` URL cannot be followed")),
        }
        // A redirect within one origin gives no new information about its location, so it adds no restriction.
        // Another port of the same name may be another service. If a name has public and private addresses, its
        // public server can thus only lead to the public ones.
        let is_address = matches!(target.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)));
        let is_within = same_origin(base, &target) || (is_address && base.host() == target.host());
        let egress = if is_within { from.egress } else { from.egress.referred_by(server) };
        self.redirect_count += 1;
        let entry = UrlEntry {
            url: target,
            login,
            is_redirect: true,
            last_redirect: self.redirect_count,
            is_untrusted,
            egress,
        };
        // A known URL keeps its ID. If it is a redirect target, its policy becomes as strict as the strictest
        // redirect to it.
        let known_id = self.ids.get(&entry.key()).copied();
        if let Some((id, known_entry)) = known_id.and_then(|id| Some((id, self.entries.get_mut(&id)?))) {
            known_entry.last_redirect = self.redirect_count;
            if let Some(zone) = egress.referrer_zone().filter(|_| known_entry.is_redirect) {
                known_entry.egress = known_entry.egress.referred_by_zone(zone);
            }
            return Ok(id);
        }
        if self.is_full() {
            return Err("too many redirect targets".to_owned());
        }
        self.add(entry).ok_or_else(|| "too many redirect targets".to_owned())
    }

    /// The request for a range of a URL.
    pub(super) fn request_for(
        &self,
        id: UrlId,
        range: RequestRange,
        if_range: Option<Validator>,
    ) -> Option<GetRequest> {
        let UrlEntry { url, is_untrusted, login: redirect_login, .. } = self.entries.get(&id)?;
        let host = url.host_str()?;
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let path_and_query = url.query().map_or_else(|| url.path().to_owned(), |q| format!("{}?{q}", url.path()));
        let user_origin = self
            .user_origins
            .iter()
            .find(|(user_origin, _)| same_origin(user_origin, url))
            .or(self.user_origins.first());
        let mut headers = match user_origin {
            _ if *is_untrusted => Vec::new(),
            Some((user_origin, sent)) if self.send_to_all_hosts || same_origin(user_origin, url) => sent.clone(),
            _ => self.cross_origin_headers.clone(),
        };
        // A login from a redirect replaces the user's own for this request.
        if let Some(login) = redirect_login {
            headers.retain(|(name, _)| *name != AUTHORIZATION);
            headers.push(login.clone());
        }
        if !is_untrusted {
            self.cookie_jar.add_to_headers(url, &mut headers);
            if !headers.iter().any(|(name, _)| *name == AUTHORIZATION) {
                headers.extend(self.host_logins.get(host).and_then(basic_auth));
            }
        }
        Some(GetRequest { path_and_query, authority, range, if_range, headers })
    }
}

impl UrlEntry {
    fn mirror(url: &Url, is_untrusted: bool, egress: EgressPolicy) -> Self {
        Self { url: url.clone(), login: None, is_redirect: false, last_redirect: 0, is_untrusted, egress }
    }

    fn key(&self) -> UrlKey {
        (self.url.to_string(), self.login.as_ref().map(|(_, value)| value.clone()))
    }
}

fn header_field(name: &str, value: &str) -> Option<HeaderField> {
    Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
}

/// Header field for Basic authentication (RFC 7617).
fn basic_auth((name, password): &(String, String)) -> Option<HeaderField> {
    let text = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {text}")).ok()?;
    value.set_sensitive(true);
    Some((AUTHORIZATION, value))
}

/// Whether credentials for the first URL may be sent to the other: scheme, host and port are equal, or the other
/// URL uses TLS on the same host, both with default ports.
pub fn same_origin(first: &Url, other: &Url) -> bool {
    let ports = (first.port_or_known_default(), other.port_or_known_default());
    let same = first.scheme() == other.scheme() && ports.0 == ports.1;
    let secured = (first.scheme(), other.scheme()) == ("http", "https") && ports == (Some(80), Some(443));
    first.host_str() == other.host_str() && (same || secured)
}

fn is_secret(name: &HeaderName) -> bool {
    [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].contains(name)
}

/// Whether a header field describes only the client program, and contains no credentials.
pub fn is_client_description(name: &HeaderName) -> bool {
    [USER_AGENT, ACCEPT, ACCEPT_LANGUAGE].contains(name)
}

/// Maximum number of URLs in a table.
const MAX_URLS: usize = 1000;
/// Number of recent redirect targets that are kept when the table is full. Our choice: several for each connection
/// that a download may have.
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
    fn credentials_stay_with_their_origin() {
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
    fn a_mirror_gets_no_secret_and_an_advertised_url_gets_no_headers() {
        let url = |text: &str| text.parse::<Url>().unwrap();
        let login = Some(("its".to_owned(), "own".to_owned()));
        let mirrors = [
            MirrorUrl::from_user(url("https://a.example/f")),
            MirrorUrl::from_user(url("https://b.example/f")),
            MirrorUrl { login, ..MirrorUrl::from_user(url("https://c.example/f")) },
            MirrorUrl { is_untrusted: true, ..MirrorUrl::from_user(url("https://a.example/other")) },
        ];
        let user = Some(("me".to_owned(), "pass".to_owned()));
        let credential_origin = Some(url("https://a.example/f"));
        let credentials = Credentials { headers: fields(), user, credential_origin, ..Credentials::default() };
        let mut table = UrlTable::from_mirrors(&mirrors, &credentials);
        assert_eq!(names(&table, UrlId(0)), ALL_HEADERS);
        assert_eq!(names(&table, UrlId(1)), ["x-id", "user-agent"]);
        assert_eq!(names(&table, UrlId(2)), ["x-id", "user-agent", "authorization"]);
        assert_eq!(names(&table, UrlId(3)), [""; 0]);
        let redirected = table.resolve_redirect(UrlId(3), "https://a.example/g", server()).unwrap();
        assert_eq!(names(&table, redirected), [""; 0]);
        assert_eq!(
            table.add_mirror(UrlId(0), &url("http://a.example/plain"), server()),
            None,
            "an https download gets no http mirror"
        );
        let advertised = table.add_mirror(UrlId(0), &url("https://a.example/duplicate"), server()).unwrap();
        assert_eq!(names(&table, advertised), [""; 0]);
        let mut o = UrlTable::from_mirrors(&mirrors[..1], &Credentials { send_to_all_hosts: true, ..credentials });
        let redirected = o.resolve_redirect(UrlId(0), "https://b.example/g", server()).unwrap();
        assert_eq!(names(&o, redirected), ALL_HEADERS, "the user allows it");
    }

    #[test]
    fn cookies_are_sent_only_to_the_hosts_that_set_them() {
        let url = |text: &str| text.parse::<Url>().unwrap();
        let untrusted = MirrorUrl { is_untrusted: true, ..MirrorUrl::from_user(url("https://b.example.com/f")) };
        let credentials = Credentials { headers: fields(), ..Credentials::default() };
        let mut table = UrlTable::from_mirrors(
            &[MirrorUrl::from_user(url("https://a.example.com/f")), untrusted],
            &credentials,
        );
        let redirected = table.resolve_redirect(UrlId(0), "https://c.example.com/f", server()).unwrap();
        let sent = |o: &UrlTable, id| {
            let get = o.request_for(id, RequestRange::Full, None).unwrap();
            let cookies = get.headers.iter().filter(|(name, _)| *name == COOKIE);
            cookies.map(|(_, value)| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        // A mirror that a server named cannot set cookies.
        table.store_cookies(UrlId(1), &["m=1; Domain=example.com; Path=/".to_owned()]);
        assert_eq!(sent(&table, redirected), [""; 0]);
        table
            .store_cookies(UrlId(0), &["own=1; Path=/".to_owned(), "all=1; Domain=example.com; Path=/".to_owned()]);
        assert_eq!(sent(&table, redirected), ["all=1"]);
        let mut cookies: Vec<_> = sent(&table, UrlId(0))[0].split("; ").map(str::to_owned).collect();
        cookies.sort_unstable();
        assert_eq!(cookies, ["all=1", "own=1"]);
        assert_eq!(sent(&table, UrlId(1)), [""; 0]);
    }

    #[test]
    fn a_url_has_one_id() {
        let mut o = origins("http://a.example/f");
        let one = o.resolve_redirect(UrlId(0), "/g?x#frag", server()).unwrap();
        assert_eq!(o.resolve_redirect(UrlId(0), "http://a.example/g?x", server()), Ok(one));
        assert_eq!(o.resolve_redirect(one, "/f", server()), Ok(UrlId(0)));
        assert_eq!(o.request_for(one, RequestRange::Full, None).unwrap().path_and_query, "/g?x");
    }

    #[test]
    fn a_redirect_leads_at_most_to_the_zone_of_its_server() {
        let mut table = origins("http://a.example/f");
        let loopback: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let mut refuses = |from, to: &str, server: &str, address: &str| {
            let id = table.resolve_redirect(from, to, server.parse().ok()).unwrap();
            (id, table.egress(id).unwrap().check(SocketAddr::new(address.parse().unwrap(), 80)).is_err())
        };
        let (other_id, refused) = refuses(UrlId(0), "http://b.example/1", "203.0.113.9", "127.0.0.1");
        assert!(refused);
        // The target inherits the restriction, whatever the address of the redirecting server.
        assert!(refuses(other_id, "http://c.example/", "127.0.0.1", "127.0.0.1").1);
        assert!(refuses(other_id, "http://c.example/2", "127.0.0.1", "10.0.0.1").1);
        assert!(!refuses(UrlId(0), "http://d.example/", "127.0.0.1", "127.0.0.1").1);
        assert!(!refuses(UrlId(0), "http://e.example/", "10.0.0.1", "192.168.0.1").1);
        assert!(refuses(UrlId(0), "http://f.example/", "10.0.0.1", "127.0.0.1").1);
        // The host that the user named is not restricted.
        assert!(!refuses(UrlId(0), "https://a.example/g", "203.0.113.9", "127.0.0.1").1);
        assert!(table.egress(UrlId(0)).unwrap().check(loopback).is_ok());
    }

    #[test]
    fn another_port_of_a_name_counts_as_another_service() {
        let mut table = origins("http://a.example/f");
        let mut leads = |to: &str, server: &str, address: &str| {
            let id = table.resolve_redirect(UrlId(0), to, server.parse().ok()).unwrap();
            table.egress(id).unwrap().check(SocketAddr::new(address.parse().unwrap(), 80)).is_ok()
        };
        // A name with a public and a private address: the public server leads only to the public address.
        assert!(!leads("http://a.example:7001/secret", "203.0.113.9", "10.9.0.1"));
        assert!(!leads("https://a.example:8443/", "203.0.113.9", "192.168.0.1"));
        assert!(leads("http://a.example:7001/secret", "203.0.113.9", "203.0.113.9"));
        assert!(leads("http://a.example:7002/", "10.9.0.1", "10.9.0.1"));
        assert!(leads("http://a.example:7003/", "127.0.0.1", "127.0.0.1"));
        // The first redirect comes from the private server, the second from the public one.
        assert!(leads("http://a.example:7004/", "10.9.0.1", "10.9.0.1"));
        assert!(!leads("http://a.example:7004/", "203.0.113.9", "10.9.0.1"));
        // An address is in one zone, whatever the port. Behind a proxy, only the address in the URL is known.
        let mut o = origins("http://192.168.0.1/f");
        let id = o.resolve_redirect(UrlId(0), "http://192.168.0.1:8080/f", None).unwrap();
        assert!(o.egress(id).unwrap().check(([192, 168, 0, 1], 8080).into()).is_ok());
    }

    #[test]
    fn redirects_to_ever_new_urls_are_followed() {
        let mut table = origins("http://a.example/f");
        let first = table.resolve_redirect(UrlId(0), "/first", server()).unwrap();
        let mut ids = BTreeSet::from([UrlId(0), first]);
        for index in 0..70_000_u32 {
            if table.is_full() {
                table.evict_redirects(&BTreeSet::from([first]));
            }
            let id = table.resolve_redirect(UrlId(0), &format!("/once/{index}"), server()).unwrap();
            assert_eq!(table.url(id).map(Url::path), Some(&*format!("/once/{index}")));
            if index < 60_000 {
                assert!(ids.insert(id), "an ID was reused early");
            }
            let before = table
                .resolve_redirect(UrlId(0), &format!("/once/{}", index.saturating_sub(100)), server())
                .unwrap();
            assert_eq!(table.url(before).map(Url::path), Some(&*format!("/once/{}", index.saturating_sub(100))));
            assert!(table.entries.len() <= MAX_URLS && table.ids.len() <= MAX_URLS);
        }
        // Mirrors and URLs in use are kept.
        assert_eq!(table.url(UrlId(0)).map(Url::path), Some("/f"));
        assert_eq!(table.url(first).map(Url::path), Some("/first"));
    }

    #[test]
    fn a_login_in_a_redirect_is_sent_only_to_its_origin() {
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
        let mut table = UrlTable::new(&"http://a.example/f".parse().unwrap(), &[], None);
        let target = table.resolve_redirect(UrlId(0), "http://u:p%40:q@b.example/g", server()).unwrap();
        assert_eq!(sent(&table, target).as_deref(), Some("u:p@:q"));
        assert_eq!(table.url(target).map(Url::as_str), Some("http://b.example/g"));
        assert_eq!(sent(&table, UrlId(0)), None);
        let further = table.resolve_redirect(target, "/h", server()).unwrap();
        assert_eq!(sent(&table, further).as_deref(), Some("u:p@:q"));
        for other_url in
            ["http://b.example:81/h", "https://b.example/h", "http://c.example/h", "http://a.example/f"]
        {
            let id = table.resolve_redirect(target, other_url, server()).unwrap();
            assert_eq!(sent(&table, id), None, "{other_url}");
        }
        // The same URL without the login, or with another one, is another entry.
        let bare = table.resolve_redirect(UrlId(0), "http://b.example/g", server()).unwrap();
        assert_eq!(sent(&table, bare), None);
        let other = table.resolve_redirect(UrlId(0), "http://v@b.example/g", server()).unwrap();
        assert_eq!(sent(&table, other).as_deref(), Some("v:"));
        // It replaces the user's own login at the same origin, and never appears in a message.
        let mut o = origins("https://a.example/f");
        let redirected = o.resolve_redirect(UrlId(0), "https://u:p@a.example/g", server()).unwrap();
        assert_eq!(sent(&o, redirected).as_deref(), Some("u:p"));
        assert_eq!(sent(&o, UrlId(0)).as_deref(), Some("me:pass"));
        for bad in ["http://u:hidden@a.example/", "ftp://u:hidden@a.example/", "http://u:hidden@[::1"] {
            let why = o.resolve_redirect(UrlId(0), bad, server()).unwrap_err();
            assert!(!why.contains("hidden"), "{why}");
        }
    }

    #[test]
    fn a_redirect_from_https_to_http_is_not_followed() {
        let mut o = origins("https://a.example/f");
        assert!(o.resolve_redirect(UrlId(0), "http://a.example/f", server()).unwrap_err().contains("not followed"));
        assert!(o.resolve_redirect(UrlId(0), "file:///etc/passwd", server()).is_err());
    }
}
