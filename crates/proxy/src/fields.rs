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
use marline_download::{describes, same_origin};
use marline_net::cookies::Jar;
use sha2::{Digest as _, Sha256};
use url::Url;

use super::guard;
use super::memory::Client;

pub(super) type Field = (HeaderName, HeaderValue);

/// Fields that are the same for all that a player requests. See the [module](self).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Fields(Vec<Field>);

/// One user: the SHA-256 digest of a player (address and User-Agent), its login and its fields. Fields that go everywhere
/// and those of CMCD (CTA-5004) do not count: they differ from one request of a player to the next.
pub(super) type User = [u8; 32];

/// What goes with a request beside its URL.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) user: User,
    fields: Rc<Fields>,
    /// A URL of the origin that the fields are for.
    pub(super) home: Url,
    /// What servers have set.
    pub(super) jar: Rc<Jar>,
    /// The home is that of [`Given`](super::Given), whatever lists say.
    is_given: bool,
}

/// The jars of all users.
#[derive(Debug, Default)]
pub(super) struct Jars {
    known: RefCell<BTreeMap<User, Kept>>,
}

#[derive(Debug)]
struct Kept {
    jar: Rc<Jar>,
    client: Client,
    seen: Instant,
}

impl Fields {
    /// Those of a request that go on. None: they are longer than servers take.
    pub(super) fn of(request: &HeaderMap, listener: SocketAddr) -> Option<Self> {
        let is_program = guard::is_program(request, listener);
        let is_ours = |value: &HeaderValue| guard::is_ours(value.to_str().unwrap_or_default(), listener);
        let named = request.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
        let named: Vec<String> =
            named.flat_map(|names| names.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
        let goes_on = |name: &HeaderName, value: &HeaderValue| match name {
            &REFERER | &ORIGIN if is_ours(value) => false,
            &REFERER => true,
            _ if !is_program => *name == header::USER_AGENT || *name == header::ACCEPT_LANGUAGE,
            _ => !(is_own(name) || named.iter().any(|named| named == name.as_str())),
        };
        let fields: Vec<Field> = request
            .iter()
            .filter(|(name, value)| goes_on(name, value))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let len: usize = fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        (len <= LONGEST).then_some(Self(fields))
    }

    /// With fields that the user gave for an origin, in the place of the player's.
    pub(super) fn with(mut self, given: &[Field]) -> Self {
        self.0.retain(|(name, _)| !given.iter().any(|(other, _)| other == name));
        self.0.extend(given.iter().cloned());
        self
    }

    /// Without Authorization: the URL has a login.
    pub(super) fn without_login(mut self) -> Self {
        self.0.retain(|(name, _)| *name != AUTHORIZATION);
        self
    }

    /// The user of a player that has these fields and this login.
    fn user(&self, player: &str, login: Option<&(String, String)>) -> User {
        let is_own = |name: &HeaderName| !goes_everywhere(name) && !name.as_str().starts_with("cmcd-");
        let mut digest = Sha256::new_with_prefix(bytes(self.0.iter().filter(|(name, _)| is_own(name))));
        let login = login.map(|(name, password)| [name, password].map(|text| text.as_bytes())).unwrap_or_default();
        for text in [player.as_bytes(), login[0], login[1]] {
            // No field, User-Agent or login has this byte.
            digest.update([0]);
            digest.update(text);
        }
        digest.finalize().into()
    }

    /// What another origin gets.
    fn elsewhere(&self) -> Vec<Field> {
        let field = |(name, value): &Field| match name {
            &REFERER => {
                let page = Url::parse(value.to_str().ok()?).ok()?;
                let origin = HeaderValue::from_str(&format!("{}/", page.origin().ascii_serialization())).ok()?;
                page.has_host().then_some((REFERER, origin))
            }
            name if goes_everywhere(name) => Some((name.clone(), value.clone())),
            _ => None,
        };
        self.0.iter().filter_map(field).collect()
    }
}

impl Jars {
    /// The jar of a user of a player.
    fn of(&self, player: &str, user: User) -> Rc<Jar> {
        let client = Client::of_player(player);
        let mut known = self.known.borrow_mut();
        known.retain(|_, kept| kept.seen.elapsed() < FORGET);
        if known.len() >= MOST_JARS && !known.contains_key(&user) {
            // A client with many users loses one of its own.
            let loser = Client::with_most(known.values().map(|kept| kept.client), client);
            let own = known.iter().filter(|(_, kept)| kept.client == loser);
            let oldest = own.min_by_key(|(_, kept)| kept.seen).map(|(user, _)| *user);
            oldest.map(|oldest| known.remove(&oldest));
        }
        let now = Instant::now();
        let kept = known.entry(user).or_insert_with(|| Kept { jar: Rc::default(), client, seen: now });
        kept.seen = now;
        Rc::clone(&kept.jar)
    }
}

impl Sent {
    /// What goes with the requests of a player that has these fields for the origin of `home`, and a login for what it
    /// requests.
    pub(super) fn new(
        jars: &Jars,
        player: &str,
        fields: Rc<Fields>,
        home: Url,
        login: Option<&(String, String)>,
    ) -> Self {
        let user = fields.user(player, login);
        let jar = jars.of(player, user);
        Self { user, fields, home, jar, is_given: false }
    }

    /// The same for a player that has an address of [`Given`](super::Given).
    pub(super) fn of_given(mut self) -> Self {
        self.is_given = true;
        self
    }

    /// The same for something else that the same list has named.
    pub(super) fn beside(
        &self,
        jars: &Jars,
        player: &str,
        login: Option<&(String, String)>,
        home: Option<Url>,
    ) -> Self {
        let home = home.filter(|_| !self.is_given).unwrap_or_else(|| self.home.clone());
        let is_given = self.is_given;
        Self { is_given, ..Self::new(jars, player, Rc::clone(&self.fields), home, login) }
    }

    /// The fields for a URL, without cookies that servers have set.
    pub(super) fn fields_to(&self, url: &Url) -> Vec<Field> {
        if same_origin(&self.home, url) { self.fields.0.clone() } else { self.fields.elsewhere() }
    }

    /// The fields for wherever a redirect leads.
    pub(super) fn elsewhere(&self) -> Vec<Field> {
        self.fields.elsewhere()
    }

    /// What makes two requests for one URL those of different users: all fields, wherever they are sent.
    pub(super) fn key(&self) -> Vec<u8> {
        [self.home.origin().ascii_serialization().into_bytes(), bytes(self.fields.0.iter())].join(&0)
    }
}

fn bytes<'a>(fields: impl Iterator<Item = &'a Field>) -> Vec<u8> {
    let bytes = |(name, value): &Field| [name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"].concat();
    fields.flat_map(bytes).collect()
}

/// Whether a field goes to other origins as well, at least a part of it.
fn goes_everywhere(name: &HeaderName) -> bool {
    describes(name) || *name == ORIGIN || *name == REFERER
}

/// Whether a field is of the connection, the message or the range, which the proxy writes itself. Icy-MetaData would have a
/// server put titles between the bytes of the sound.
fn is_own(name: &HeaderName) -> bool {
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
    let text = name.as_str();
    OWN.contains(name)
        || matches!(text, "keep-alive" | "proxy-connection" | "icy-metadata" | "http2-settings")
        || text.starts_with("sec-")
}

/// As nginx and Apache httpd take for one field. Many requests are remembered, each with its fields.
const LONGEST: usize = 8 * 1024;
/// chosen: the programs of a household; 64 MiB at most, if servers fill all of them.
const MOST_JARS: usize = 32;
/// As long as a playlist is remembered.
const FORGET: Duration = Duration::from_secs(1800);

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

    fn names(fields: &[Field]) -> Vec<&str> {
        let mut names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    fn sent(pairs: &[(&'static str, &'static str)]) -> Sent {
        let fields = Rc::new(Fields::of(&request(pairs), listener()).unwrap());
        Sent::new(&Jars::default(), "player", fields, Url::parse("https://h/list").unwrap(), None)
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
        let sent = sent(&PLAYER);
        let own = sent.fields_to(&Url::parse("https://h/seg.ts").unwrap());
        assert_eq!(names(&own), ["authorization", "cookie", "origin", "referer", "user-agent", "x-token"]);
        for other in ["https://cdn/seg.ts", "http://h/seg.ts", "https://h:8443/seg.ts"] {
            let fields = sent.fields_to(&Url::parse(other).unwrap());
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
        let own = sent(&pairs).fields_to(&Url::parse("https://h/seg.ts").unwrap());
        assert_eq!(names(&own), ["accept-language", "referer", "user-agent"]);
    }

    #[test]
    fn our_own_pages_and_the_fields_of_the_connection_stay_here() {
        let page = "http://localhost:8480/https://me:secret@a.example/list";
        let own = sent(&[("referer", page), ("connection", "x-hop, close"), ("x-hop", "1"), ("te", "trailers")]);
        assert!(own.fields_to(&own.home).is_empty());
        let long = request(&[("x-a", Box::leak("a".repeat(LONGEST).into_boxed_str()))]);
        assert_eq!(Fields::of(&long, listener()), None);
    }

    #[test]
    fn what_the_user_gave_takes_the_place_of_the_player_s() {
        let fields = Fields::of(&request(&PLAYER), listener()).unwrap();
        let given = [(HeaderName::from_static("x-token"), HeaderValue::from_static("2"))];
        let Fields(all) = fields.clone().with(&given);
        let token: Vec<_> = all.iter().filter(|(name, _)| name.as_str() == "x-token").collect();
        assert_eq!(token, [&given[0]]);
        assert!(!fields.without_login().0.iter().any(|(name, _)| *name == AUTHORIZATION));
    }

    #[test]
    fn each_user_has_a_jar_and_there_is_a_bound() {
        let jars = Jars::default();
        let fields = |cookie: &'static str| Fields::of(&request(&[("cookie", cookie)]), listener()).unwrap();
        let login = ("me".to_owned(), "pw".to_owned());
        let of = |player: &str, login, fields: Fields| jars.of(player, fields.user(player, login));
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
        let other = Fields::of(&request(&other), listener()).unwrap();
        assert!(Rc::ptr_eq(&all[0], &of("p", None, other)), "fields of one request make no other user");
        for n in 0..2 * MOST_JARS {
            of(&format!("192.0.2.1 {n}"), None, fields("a=1"));
            assert!(jars.known.borrow().len() <= MOST_JARS);
        }
        assert!(Rc::ptr_eq(&all[2], &of("q", None, fields("a=1"))), "another client keeps its own");
    }
}
