//! The fields of a player's request that go on to servers, and to which.
//!
//! 1. The fields of a program go to the origin that it named: Cookie, Authorization, Origin, Referer, and any other, such as
//!    `X-Token`. Fields that belong to the connection, to the message or to ranges are the proxy's own.
//! 2. Another origin, where a redirect or a playlist leads, gets what a browser would send there: what describes the
//!    program, Origin, and of Referer the origin alone.
//! 3. A browser takes all sites that come through the proxy for one. So only those of its fields are passed on that describe
//!    it, and Referer unless it is the proxy's own address.
//! 4. Cookies that servers set stay in a [`Jar`] within the proxy. There is one for each [`User`]: a client with its
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

use super::buffer_budget::Client;
use super::origin_check;

pub(super) type Header = (HeaderName, HeaderValue);

/// Fields that are the same for all that a player requests. See the [module](self).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct PlayerHeaders(Vec<Header>);

/// One user: the SHA-256 digest of a player (address and User-Agent), its login and its fields. Fields that go everywhere
/// and those of CMCD (CTA-5004) do not count: they differ from one request of a player to the next.
pub(super) type UserId = [u8; 32];

/// What goes with a request beside its URL.
#[derive(Clone, Debug)]
pub(super) struct UpstreamHeaders {
    pub(super) user: UserId,
    headers: Rc<PlayerHeaders>,
    /// A URL of the origin that the fields are for.
    pub(super) origin_url: Url,
    /// What servers have set.
    pub(super) cookie_jar: Rc<CookieJar>,
    /// The home is that of [`Given`](super::Given), whatever lists say.
    has_fixed_origin: bool,
}

/// The jars of all users.
#[derive(Debug, Default)]
pub(super) struct CookieJars {
    entries: RefCell<BTreeMap<UserId, JarEntry>>,
}

#[derive(Debug)]
struct JarEntry {
    jar: Rc<CookieJar>,
    client: Client,
    last_used: Instant,
}

impl PlayerHeaders {
    /// Those of a request that go on. None: they are longer than servers take.
    pub(super) fn from_request(request: &HeaderMap, listener: SocketAddr) -> Option<Self> {
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
            _ => !(is_proxy_owned(name) || connection_options.iter().any(|named| named == name.as_str())),
        };
        let fields: Vec<Header> = request
            .iter()
            .filter(|(name, value)| is_forwarded(name, value))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let len: usize = fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        (len <= MAX_HEADER_BYTES).then_some(Self(fields))
    }

    /// With fields that the user gave for an origin, in the place of the player's.
    pub(super) fn with_overrides(mut self, overrides: &[Header]) -> Self {
        self.0.retain(|(name, _)| !overrides.iter().any(|(other, _)| other == name));
        self.0.extend(overrides.iter().cloned());
        self
    }

    /// Without Authorization: the URL has a login.
    pub(super) fn without_authorization(mut self) -> Self {
        self.0.retain(|(name, _)| *name != AUTHORIZATION);
        self
    }

    /// The user of a player that has these fields and this login.
    fn user_id(&self, player: &str, login: Option<&(String, String)>) -> UserId {
        let is_identifying = |name: &HeaderName| !is_cross_origin(name) && !name.as_str().starts_with("cmcd-");
        let mut digest =
            Sha256::new_with_prefix(header_bytes(self.0.iter().filter(|(name, _)| is_identifying(name))));
        let login = login.map(|(name, password)| [name, password].map(|text| text.as_bytes())).unwrap_or_default();
        for text in [player.as_bytes(), login[0], login[1]] {
            // No field, User-Agent or login has this byte.
            digest.update([0]);
            digest.update(text);
        }
        digest.finalize().into()
    }

    /// What another origin gets.
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
    /// The jar of a user of a player.
    fn jar_of(&self, player: &str, user: UserId) -> Rc<CookieJar> {
        let client = Client::of_player(player);
        let mut entries = self.entries.borrow_mut();
        entries.retain(|_, entry| entry.last_used.elapsed() < JAR_TTL);
        if entries.len() >= MAX_JARS && !entries.contains_key(&user) {
            // A client with many users loses one of its own.
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
    /// What goes with the requests of a player that has these fields for the origin of `index_page`, and a login for what it
    /// requests.
    pub(super) fn new(
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

    /// The same for a player that has an address of [`Given`](super::Given).
    pub(super) fn with_fixed_origin(mut self) -> Self {
        self.has_fixed_origin = true;
        self
    }

    /// The same for something else that the same list has named.
    pub(super) fn for_sibling(
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
    pub(super) fn headers_for(&self, url: &Url) -> Vec<Header> {
        if same_origin(&self.origin_url, url) { self.headers.0.clone() } else { self.headers.cross_origin() }
    }

    /// The fields for wherever a redirect leads.
    pub(super) fn cross_origin(&self) -> Vec<Header> {
        self.headers.cross_origin()
    }

    /// What makes two requests for one URL those of different users: all fields, wherever they are sent.
    pub(super) fn session_key(&self) -> Vec<u8> {
        [self.origin_url.origin().ascii_serialization().into_bytes(), header_bytes(self.headers.0.iter())].join(&0)
    }
}

fn header_bytes<'a>(fields: impl Iterator<Item = &'a Header>) -> Vec<u8> {
    let bytes = |(name, value): &Header| [name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"].concat();
    fields.flat_map(bytes).collect()
}

/// Whether a field goes to other origins as well, at least a part of it.
fn is_cross_origin(name: &HeaderName) -> bool {
    is_client_description(name) || *name == ORIGIN || *name == REFERER
}

/// Whether a field is of the connection, the message or the range, which the proxy writes itself. Icy-MetaData would have a
/// server put titles between the bytes of the sound.
fn is_proxy_owned(name: &HeaderName) -> bool {
    const OWN: [HeaderName; 22] = [
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
    OWN.contains(name)
        || matches!(name_text, "keep-alive" | "proxy-connection" | "icy-metadata" | "http2-settings")
        || name_text.starts_with("sec-")
}

/// As nginx and Apache httpd take for one field. Many requests are remembered, each with its fields.
const MAX_HEADER_BYTES: usize = 8 * 1024;
/// chosen: the programs of a household; 64 MiB at most, if servers fill all of them.
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
    fn a_program_s_fields_go_to_the_origin_that_it_named() {
        let sent = upstream_headers(&PLAYER);
        let own = sent.headers_for(&Url::parse("https://h/seg.ts").unwrap());
        assert_eq!(names(&own), ["authorization", "cookie", "origin", "referer", "user-agent", "x-token"]);
        for other in ["https://cdn/seg.ts", "http://h/seg.ts", "https://h:8443/seg.ts"] {
            let fields = sent.headers_for(&Url::parse(other).unwrap());
            assert_eq!(names(&fields), ["origin", "referer", "user-agent"], "{other}");
            let referer = fields.iter().find(|(name, _)| *name == REFERER).unwrap();
            assert_eq!(referer.1, "https://site.example/");
        }
    }

    #[test]
    fn a_browser_s_cookies_go_nowhere() {
        let mut pairs = PLAYER.to_vec();
        pairs.push(("sec-fetch-site", "same-site"));
        pairs.push(("accept-language", "de"));
        let own = upstream_headers(&pairs).headers_for(&Url::parse("https://h/seg.ts").unwrap());
        assert_eq!(names(&own), ["accept-language", "referer", "user-agent"]);
    }

    #[test]
    fn our_own_pages_and_the_fields_of_the_connection_stay_here() {
        let page = "http://localhost:8480/https://me:secret@a.example/list";
        let own = upstream_headers(&[
            ("referer", page),
            ("connection", "x-hop, close"),
            ("x-hop", "1"),
            ("te", "trailers"),
        ]);
        assert!(own.headers_for(&own.origin_url).is_empty());
        let long = request(&[("x-a", Box::leak("a".repeat(MAX_HEADER_BYTES).into_boxed_str()))]);
        assert_eq!(PlayerHeaders::from_request(&long, listener()), None);
    }

    #[test]
    fn what_the_user_gave_takes_the_place_of_the_player_s() {
        let fields = PlayerHeaders::from_request(&request(&PLAYER), listener()).unwrap();
        let given = [(HeaderName::from_static("x-token"), HeaderValue::from_static("2"))];
        let PlayerHeaders(all) = fields.clone().with_overrides(&given);
        let token: Vec<_> = all.iter().filter(|(name, _)| name.as_str() == "x-token").collect();
        assert_eq!(token, [&given[0]]);
        assert!(!fields.without_authorization().0.iter().any(|(name, _)| *name == AUTHORIZATION));
    }

    #[test]
    fn each_user_has_a_jar_and_there_is_a_bound() {
        let jars = CookieJars::default();
        let fields = |cookie: &'static str| {
            PlayerHeaders::from_request(&request(&[("cookie", cookie)]), listener()).unwrap()
        };
        let login = ("me".to_owned(), "pw".to_owned());
        let of = |player: &str, login, fields: PlayerHeaders| jars.jar_of(player, fields.user_id(player, login));
        let all = [
            of("p", None, fields("a=1")),
            of("p", None, fields("a=2")),
            of("q", None, fields("a=1")),
            of("p", Some(&login), fields("a=1")),
        ];
        for (n, one) in all.iter().enumerate() {
            assert!(!all.iter().skip(n + 1).any(|other| Rc::ptr_eq(one, other)), "{n}");
        }
        assert!(Rc::ptr_eq(&all[0], &of("p", None, fields("a=1"))));
        let other = [("cookie", "a=1"), ("accept", "*/*"), ("cmcd-request", "bl=2000")];
        let other = PlayerHeaders::from_request(&request(&other), listener()).unwrap();
        assert!(Rc::ptr_eq(&all[0], &of("p", None, other)), "fields of one request make no other user");
        for n in 0..2 * MAX_JARS {
            of(&format!("192.0.2.1 {n}"), None, fields("a=1"));
            assert!(jars.entries.borrow().len() <= MAX_JARS);
        }
        assert!(Rc::ptr_eq(&all[2], &of("q", None, fields("a=1"))), "another client keeps its own");
    }
}
