//! Decides which header fields of a player's request are forwarded, and to which servers.
//!
//! 1. The fields of a program go to the origin that it named: Cookie, Authorization, Origin, Referer, and any other,
//!    such as `X-Token`. The proxy itself writes fields of the connection, of the message framing and of ranges.
//! 2. Another origin, reached by a redirect or a playlist, gets what a browser would send there: the description of the
//!    program, Origin, and only the origin of Referer.
//! 3. A browser takes all sites that it reaches through the proxy for one. So only fields that describe the browser are
//!    forwarded, and Referer unless it names the proxy.
//! 4. Cookies that servers set stay in a [`CookieJar`] within the proxy. Each [`UserId`] has one: a client with its
//!    User-Agent, login and fields.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::{self, AUTHORIZATION, HeaderName, HeaderValue, ORIGIN, REFERER};
use marline_download::{is_client_description, same_origin};
use marline_net::cookies::CookieJar;
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::client::buffer_budget::Client;
use crate::client::origin_check;

pub(crate) type Header = (HeaderName, HeaderValue);

/// Fields that are equal for all requests of a player; see the [module documentation](self).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct PlayerHeaders(Vec<Header>);

/// Identifies a user: the SHA-256 digest of a player (address and User-Agent), its login and its fields. Fields that
/// are sent to all origins and those of CMCD (CTA-5004) are excluded, because they differ between requests of one
/// player.
pub(crate) type UserId = [u8; 32];

/// Everything but the URL that determines an upstream request.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamHeaders {
    pub(crate) user: UserId,
    headers: Rc<PlayerHeaders>,
    /// A URL of the origin for which the fields are meant.
    pub(crate) origin_url: Url,
    /// Cookies that servers have set.
    pub(crate) cookie_jar: Rc<CookieJar>,
    /// The origin is that of [`OriginHeaders`](crate::OriginHeaders), whatever playlists name.
    has_fixed_origin: bool,
}

/// The cookie jars of all users.
#[derive(Debug, Default)]
pub(crate) struct CookieJars {
    entries: RefCell<BTreeMap<UserId, JarEntry>>,
}

#[derive(Debug)]
struct JarEntry {
    jar: Rc<CookieJar>,
    client: Client,
    last_used: Instant,
}

impl PlayerHeaders {
    /// The fields of a request that are forwarded. `None`: they are longer than servers accept.
    pub(crate) fn from_request(request: &HeaderMap, listener: SocketAddr) -> Option<Self> {
        let is_program = origin_check::is_program(request, listener);
        let is_own_page =
            |value: &HeaderValue| origin_check::is_own_url(value.to_str().unwrap_or_default(), listener);
        let connection_options = request.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
        let connection_options: Vec<String> = connection_options
            .flat_map(|names| names.split(','))
            .map(|name| name.trim().to_ascii_lowercase())
            .collect();
        let is_forwarded = |name: &HeaderName, value: &HeaderValue| match name {
            &REFERER | &ORIGIN if is_own_page(value) => false,
            &REFERER => true,
            _ if !is_program => *name == header::USER_AGENT || *name == header::ACCEPT_LANGUAGE,
            _ => !(is_proxy_owned(name) || connection_options.iter().any(|option| option == name.as_str())),
        };
        let fields: Vec<Header> = request
            .iter()
            .filter(|(name, value)| is_forwarded(name, value))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let len: usize = fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        (len <= MAX_HEADER_BYTES).then_some(Self(fields))
    }

    /// Replaces fields of the player by those that the user set for an origin.
    pub(crate) fn with_overrides(mut self, overrides: &[Header]) -> Self {
        self.0.retain(|(name, _)| !overrides.iter().any(|(other, _)| other == name));
        self.0.extend(overrides.iter().cloned());
        self
    }

    /// Removes Authorization, because the URL contains a login.
    pub(crate) fn without_authorization(mut self) -> Self {
        self.0.retain(|(name, _)| *name != AUTHORIZATION);
        self
    }

    /// The user of a player with these fields and this login.
    fn user_id(&self, player: &str, login: Option<&(String, String)>) -> UserId {
        let is_identifying = |name: &HeaderName| !is_cross_origin(name) && !name.as_str().starts_with("cmcd-");
        let mut digest =
            Sha256::new_with_prefix(header_bytes(self.0.iter().filter(|(name, _)| is_identifying(name))));
        let login = login.map(|(name, password)| [name, password].map(|text| text.as_bytes())).unwrap_or_default();
        for text in [player.as_bytes(), login[0], login[1]] {
            // No field, User-Agent or login contains a NUL.
            digest.update([0]);
            digest.update(text);
        }
        digest.finalize().into()
    }

    /// The fields for another origin.
    fn cross_origin(&self) -> Vec<Header> {
        let forwarded = |(name, value): &Header| match name {
            &REFERER => {
                let page = Url::parse(value.to_str().ok()?).ok()?;
                let origin = HeaderValue::from_str(&format!("{}/", page.origin().ascii_serialization())).ok()?;
                page.has_host().then_some((REFERER, origin))
            }
            name if is_cross_origin(name) => Some((name.clone(), value.clone())),
            _ => None,
        };
        self.0.iter().filter_map(forwarded).collect()
    }
}

impl CookieJars {
    /// The cookie jar of a user.
    fn jar_of(&self, player: &str, user: UserId) -> Rc<CookieJar> {
        let client = Client::of_player(player);
        let mut entries = self.entries.borrow_mut();
        entries.retain(|_, entry| entry.last_used.elapsed() < JAR_TTL);
        if entries.len() >= MAX_JARS && !entries.contains_key(&user) {
            // The client with the most jars loses one.
            let evicted_client = Client::largest(entries.values().map(|entry| entry.client), client);
            let of_client = entries.iter().filter(|(_, entry)| entry.client == evicted_client);
            let oldest = of_client.min_by_key(|(_, entry)| entry.last_used).map(|(user, _)| *user);
            oldest.map(|oldest| entries.remove(&oldest));
        }
        let now = Instant::now();
        let entry = entries.entry(user).or_insert_with(|| JarEntry { jar: Rc::default(), client, last_used: now });
        entry.last_used = now;
        Rc::clone(&entry.jar)
    }
}

impl UpstreamHeaders {
    /// The fields for requests of a player that sends `fields` to the origin of `origin_url`, and uses this login.
    pub(crate) fn new(
        jars: &CookieJars,
        player: &str,
        fields: Rc<PlayerHeaders>,
        origin_url: Url,
        login: Option<&(String, String)>,
    ) -> Self {
        let user = fields.user_id(player, login);
        let jar = jars.jar_of(player, user);
        Self { user, headers: fields, origin_url, cookie_jar: jar, has_fixed_origin: false }
    }

    /// The same for a URL that carries the token of [`OriginHeaders`](crate::OriginHeaders).
    pub(crate) fn with_fixed_origin(mut self) -> Self {
        self.has_fixed_origin = true;
        self
    }

    /// The fields for another URL that the same playlist names.
    pub(crate) fn for_sibling(
        &self,
        jars: &CookieJars,
        player: &str,
        login: Option<&(String, String)>,
        origin_url: Option<Url>,
    ) -> Self {
        let url = origin_url.filter(|_| !self.has_fixed_origin).unwrap_or_else(|| self.origin_url.clone());
        let is_given = self.has_fixed_origin;
        Self { has_fixed_origin: is_given, ..Self::new(jars, player, Rc::clone(&self.headers), url, login) }
    }

    /// The fields for a URL, without cookies that servers have set.
    pub(crate) fn headers_for(&self, url: &Url) -> Vec<Header> {
        if same_origin(&self.origin_url, url) { self.headers.0.clone() } else { self.headers.cross_origin() }
    }

    /// The fields for any other origin, to which a redirect may lead.
    pub(crate) fn cross_origin(&self) -> Vec<Header> {
        self.headers.cross_origin()
    }

    /// Distinguishes users of one URL: all fields and their origin.
    pub(crate) fn session_key(&self) -> Vec<u8> {
        [self.origin_url.origin().ascii_serialization().into_bytes(), header_bytes(self.headers.0.iter())].join(&0)
    }
}

fn header_bytes<'a>(fields: impl Iterator<Item = &'a Header>) -> Vec<u8> {
    let bytes = |(name, value): &Header| [name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"].concat();
    fields.flat_map(bytes).collect()
}

/// Whether at least part of a field is sent to other origins as well.
fn is_cross_origin(name: &HeaderName) -> bool {
    is_client_description(name) || *name == ORIGIN || *name == REFERER
}

/// Whether the proxy itself writes or drops this field, because it concerns the connection, the message, the range or
/// a cache. Icy-MetaData would make a server insert titles between the audio bytes.
fn is_proxy_owned(name: &HeaderName) -> bool {
    const PROXY_OWNED: [HeaderName; 22] = [
        header::HOST,
        header::CONNECTION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::EXPECT,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
        header::ACCEPT_ENCODING,
        header::RANGE,
        header::IF_RANGE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
        header::PROXY_AUTHORIZATION,
        header::CACHE_CONTROL,
        header::PRAGMA,
        header::MAX_FORWARDS,
        header::UPGRADE_INSECURE_REQUESTS,
    ];
    let name_text = name.as_str();
    PROXY_OWNED.contains(name)
        || matches!(name_text, "keep-alive" | "proxy-connection" | "icy-metadata" | "http2-settings")
        || name_text.starts_with("sec-")
}

/// Maximum length of all forwarded fields of a request together. nginx and Apache httpd accept this much for one
/// field. It is bounded because many requests are remembered, each with its fields.
const MAX_HEADER_BYTES: usize = 8 * 1024;
/// Our choice: the programs of a household. At most 64 MiB, if servers fill all jars.
const MAX_JARS: usize = 32;
/// As long as a playlist is remembered.
const JAR_TTL: Duration = Duration::from_secs(1800);

#[cfg(test)]
mod tests {
    use super::*;

    fn listener() -> SocketAddr {
        "127.0.0.1:8480".parse().unwrap()
    }

    fn request(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let host = [("host", "127.0.0.1:8480")];
        host.iter().chain(pairs).map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn names(fields: &[Header]) -> Vec<&str> {
        let mut names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    fn upstream_headers(pairs: &[(&'static str, &'static str)]) -> UpstreamHeaders {
        let fields = Rc::new(PlayerHeaders::from_request(&request(pairs), listener()).unwrap());
        UpstreamHeaders::new(&CookieJars::default(), "player", fields, Url::parse("https://h/list").unwrap(), None)
    }

    const PLAYER: [(&str, &str); 8] = [
        ("user-agent", "Mozilla/5.0 like a browser"),
        ("origin", "https://site.example"),
        ("referer", "https://site.example/page?token=1"),
        ("cookie", "a=b"),
        ("authorization", "Bearer x"),
        ("x-token", "1"),
        ("range", "bytes=0-"),
        ("icy-metadata", "1"),
    ];

    #[test]
    fn a_program_s_fields_are_sent_to_the_origin_that_it_named() {
        let sent = upstream_headers(&PLAYER);
        let headers = sent.headers_for(&Url::parse("https://h/seg.ts").unwrap());
        assert_eq!(names(&headers), ["authorization", "cookie", "origin", "referer", "user-agent", "x-token"]);
        for other in ["https://cdn/seg.ts", "http://h/seg.ts", "https://h:8443/seg.ts"] {
            let fields = sent.headers_for(&Url::parse(other).unwrap());
            assert_eq!(names(&fields), ["origin", "referer", "user-agent"], "{other}");
            let referer = fields.iter().find(|(name, _)| *name == REFERER).unwrap();
            assert_eq!(referer.1, "https://site.example/");
        }
    }

    #[test]
    fn a_browser_s_cookies_are_not_forwarded() {
        let mut pairs = PLAYER.to_vec();
        pairs.push(("sec-fetch-site", "same-site"));
        pairs.push(("accept-language", "de"));
        let headers = upstream_headers(&pairs).headers_for(&Url::parse("https://h/seg.ts").unwrap());
        assert_eq!(names(&headers), ["accept-language", "referer", "user-agent"]);
    }

    #[test]
    fn referers_of_the_proxy_and_hop_by_hop_fields_are_not_forwarded() {
        let page = "http://localhost:8480/https://me:secret@a.example/list";
        let headers = upstream_headers(&[
            ("referer", page),
            ("connection", "x-hop, close"),
            ("x-hop", "1"),
            ("te", "trailers"),
        ]);
        assert!(headers.headers_for(&headers.origin_url).is_empty());
        let long = request(&[("x-a", Box::leak("a".repeat(MAX_HEADER_BYTES).into_boxed_str()))]);
        assert_eq!(PlayerHeaders::from_request(&long, listener()), None);
    }

    #[test]
    fn header_fields_of_the_user_replace_those_of_the_player() {
        let fields = PlayerHeaders::from_request(&request(&PLAYER), listener()).unwrap();
        let given = [(HeaderName::from_static("x-token"), HeaderValue::from_static("2"))];
        let PlayerHeaders(all) = fields.clone().with_overrides(&given);
        let token: Vec<_> = all.iter().filter(|(name, _)| name.as_str() == "x-token").collect();
        assert_eq!(token, [&given[0]]);
        assert!(!fields.without_authorization().0.iter().any(|(name, _)| *name == AUTHORIZATION));
    }

    #[test]
    fn each_user_has_a_cookie_jar_and_their_number_is_bounded() {
        let jars = CookieJars::default();
        let fields = |cookie: &'static str| {
            PlayerHeaders::from_request(&request(&[("cookie", cookie)]), listener()).unwrap()
        };
        let login = ("me".to_owned(), "pw".to_owned());
        let jar_of =
            |player: &str, login, fields: PlayerHeaders| jars.jar_of(player, fields.user_id(player, login));
        let all = [
            jar_of("p", None, fields("a=1")),
            jar_of("p", None, fields("a=2")),
            jar_of("q", None, fields("a=1")),
            jar_of("p", Some(&login), fields("a=1")),
        ];
        for (n, one) in all.iter().enumerate() {
            assert!(!all.iter().skip(n + 1).any(|other| Rc::ptr_eq(one, other)), "{n}");
        }
        assert!(Rc::ptr_eq(&all[0], &jar_of("p", None, fields("a=1"))));
        let other = [("cookie", "a=1"), ("accept", "*/*"), ("cmcd-request", "bl=2000")];
        let other = PlayerHeaders::from_request(&request(&other), listener()).unwrap();
        assert!(Rc::ptr_eq(&all[0], &jar_of("p", None, other)), "fields of one request make no other user");
        for n in 0..2 * MAX_JARS {
            jar_of(&format!("192.0.2.1 {n}"), None, fields("a=1"));
            assert!(jars.entries.borrow().len() <= MAX_JARS);
        }
        assert!(Rc::ptr_eq(&all[2], &jar_of("q", None, fields("a=1"))), "another client keeps its own");
    }
}
