//! Cookies that servers set (RFC 6265), kept in memory: one jar for a program, or for each user of the proxy.
//!
//! The crate `cookie_store` decides which cookie is sent to which host, path and scheme. This module adds limits that
//! it does not have: the number and length of cookies and the length of the `Cookie` field. It also applies the list
//! of public suffixes, so that a server below `co.uk` or `github.io` cannot set cookies for its neighbors.

mod netscape;

use std::borrow::Cow;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::convert::Infallible;

use cookie_store::{CookieStore, RawCookie};
use http::header::{COOKIE, HeaderName, HeaderValue};
use url::{Host, Url};

/// The cookies that one user has received from servers.
#[derive(Debug, Default)]
pub struct CookieJar(RefCell<CookieStore>);

impl CookieJar {
    /// Stores the `Set-Cookie` fields of a response to a request for this URL.
    pub fn store_cookies(&self, url: &Url, lines: &[String]) {
        // A field with a control character could not be sent back, and would make the other cookies of the request
        // unsendable.
        let is_storable =
            |line: &&String| line.len() <= MAX_COOKIE_LEN && !line.chars().any(|c| c.is_control() && c != '\t');
        for line in lines.iter().filter(is_storable) {
            let Ok(cookie) = RawCookie::parse(line.as_str()) else { continue };
            if let Some(cookie) = restrict_domain(cookie.into_owned(), url) {
                self.insert(&cookie, url);
            }
        }
    }

    fn insert(&self, cookie: &RawCookie<'_>, url: &Url) {
        let mut store = self.0.borrow_mut();
        let url_cookies = store.matches(url);
        if url_cookies.len() >= MAX_PER_DOMAIN && !url_cookies.iter().any(|known| known.name() == cookie.name()) {
            return;
        }
        if store.iter_any().count() >= MAX_COOKIES {
            // Servers that set this many cookies do not justify an eviction order: the cookies of all other hosts are
            // dropped, and those hosts require a new login.
            let cookies: Vec<_> = url_cookies.into_iter().cloned().collect();
            let Ok(of_url_only) = CookieStore::from_cookies(cookies.into_iter().map(Ok::<_, Infallible>), false);
            *store = of_url_only;
        }
        // An error means that the cookie is not for this host or scheme, or that it has expired.
        let _ = store.insert_raw(cookie, url);
    }

    /// Adds the cookies for a URL to the fields of a request. A cookie of the same name that the fields already
    /// contain takes precedence.
    pub fn add_to_headers(&self, url: &Url, fields: &mut Vec<(HeaderName, HeaderValue)>) {
        let store = self.0.borrow();
        let mut cookies = store.matches(url);
        if cookies.is_empty() {
            return;
        }
        // RFC 6265 section 5.4: longer paths first.
        cookies.sort_by_key(|cookie| Reverse(cookie.path.len()));
        let mut field: Vec<u8> = Vec::new();
        for (_, value) in fields.iter().filter(|(name, _)| *name == COOKIE) {
            append_pairs(&mut field, value.as_bytes());
        }
        let existing = String::from_utf8_lossy(&field).into_owned();
        let is_existing =
            |name: &str| existing.split(';').any(|pair| pair.split('=').next().map(str::trim) == Some(name));
        for cookie in cookies.into_iter().filter(|cookie| !is_existing(cookie.name())) {
            let pair = cookie_bytes(&format!("{}={}", cookie.name(), cookie.value()));
            if field.len() + pair.len() <= MAX_FIELD_LEN {
                append_pairs(&mut field, &pair);
            }
        }
        if let Ok(mut value) = HeaderValue::from_bytes(&field) {
            value.set_sensitive(true);
            fields.retain(|(name, _)| *name != COOKIE);
            fields.push((COOKIE, value));
        }
    }
}

/// The value of a `Set-Cookie` field as text. Cookies must be sent back byte for byte (RFC 6265 section 5.4), and
/// some servers write Latin-1. If the bytes are not UTF-8, each byte from 0x80 on is represented by a character of a
/// private range. So is each such character of a valid UTF-8 value, byte by byte.
pub(crate) fn cookie_text(value: &[u8]) -> Cow<'_, str> {
    let is_private = |c: char| (PRIVATE_BASE + 0x80..=PRIVATE_BASE + 0xff).contains(&u32::from(c));
    match std::str::from_utf8(value) {
        Ok(text) if !text.contains(is_private) => Cow::Borrowed(text),
        _ => {
            let encode_byte = |byte: &u8| match byte {
                0x80.. => char::from_u32(PRIVATE_BASE + u32::from(*byte)).unwrap_or('?'),
                _ => char::from(*byte),
            };
            Cow::Owned(value.iter().map(encode_byte).collect())
        }
    }
}

/// The original bytes of a text from [`cookie_text`].
fn cookie_bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match u32::from(c)
            .checked_sub(PRIVATE_BASE)
            .and_then(|byte| u8::try_from(byte).ok())
            .filter(|byte| *byte >= 0x80)
        {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn append_pairs(field: &mut Vec<u8>, pairs: &[u8]) {
    if !field.is_empty() {
        field.extend(b"; ");
    }
    field.extend(pairs);
}

/// Applies the list of public suffixes to the cookie's domain. If the domain is a public suffix, the cookie is
/// limited to the host itself, or refused if the host is another one (RFC 6265 section 5.3, step 5).
fn restrict_domain(mut cookie: RawCookie<'static>, url: &Url) -> Option<RawCookie<'static>> {
    let Some(domain) = cookie.domain().map(|domain| domain.trim_start_matches('.')).filter(|name| !name.is_empty())
    else {
        return Some(cookie);
    };
    if let Host::Domain(domain) = Host::parse(domain).ok()?
        && psl::suffix_str(&domain) == Some(domain.trim_end_matches('.'))
    {
        if url.host_str() != Some(&domain) {
            return None;
        }
        cookie.unset_domain();
    }
    Some(cookie)
}

/// Entry points for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    /// Reads a cookie file and writes it again.
    pub fn cookie_file(bytes: &[u8]) -> Option<String> {
        super::netscape::round_trip(bytes)
    }

    use super::{COOKIE, CookieJar, Url};

    /// Stores the fields that a server at the first URL sets, and returns what would be sent to each of the others.
    pub fn cookies(from: &Url, lines: &[String], targets: &[Url]) -> Vec<Option<Vec<u8>>> {
        let cookie_jar = CookieJar::default();
        cookie_jar.store_cookies(from, lines);
        let sent = |url| {
            let mut fields = Vec::new();
            cookie_jar.add_to_headers(url, &mut fields);
            fields.into_iter().find(|(name, _)| *name == COOKIE).map(|(_, value)| value.as_bytes().to_vec())
        };
        targets.iter().map(sent).collect()
    }
}

/// Maximum number of stored cookies that match one URL; further ones are ignored. RFC 6265 section 6.1 requires at
/// least 50 per domain.
const MAX_PER_DOMAIN: usize = 50;
/// Maximum length of a `Set-Cookie` field in bytes, from the same section.
const MAX_COOKIE_LEN: usize = 4096;
/// Maximum number of cookies in a jar. Our choice: ten servers that each set the maximum; 2 MiB in total.
const MAX_COOKIES: usize = 500;
/// Byte B (from 0x80 on) is represented by the character at this code point plus B ([`cookie_text`]). The characters
/// are in Unicode's private use area.
const PRIVATE_BASE: u32 = 0xf700;
/// Maximum length of the `Cookie` field in bytes. As in curl: nginx and Apache httpd accept 8 KiB per field.
const MAX_FIELD_LEN: usize = 8190;

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn cookies_sent(jar: &CookieJar, to: &str, cookie: Option<&'static str>) -> Option<String> {
        let mut fields: Vec<_> =
            cookie.map(|cookie| (COOKIE, HeaderValue::from_static(cookie))).into_iter().collect();
        jar.add_to_headers(&url(to), &mut fields);
        assert!(fields.len() <= 1);
        fields.pop().map(|(_, value)| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    fn jar_after(from: &str, lines: &[&str]) -> CookieJar {
        let jar = CookieJar::default();
        jar.store_cookies(&url(from), &lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
        jar
    }

    #[test]
    fn cookies_are_sent_to_the_hosts_they_were_set_for() {
        let lines =
            ["k=1; Path=/", "s=2; Secure", "d=3; Domain=example.com; Path=/", "p=4; Path=/y", "ü=ä; Path=/"];
        let jar = jar_after("https://a.example.com/x/m.m3u8", &lines);
        assert_eq!(cookies_sent(&jar, "https://b.example.com/", None).as_deref(), Some("d=3"));
        assert_eq!(cookies_sent(&jar, "https://example.org/", None), None);
        assert_eq!(cookies_sent(&jar, "https://notexample.com/", None), None);
        let all = cookies_sent(&jar, "https://a.example.com/x/s.ts", None).unwrap();
        let mut sorted: Vec<_> = all.split("; ").collect();
        assert_eq!(sorted[0], "s=2", "the longest path first");
        sorted.sort_unstable();
        assert_eq!(sorted, ["d=3", "k=1", "s=2", "ü=ä"]);
        assert!(!cookies_sent(&jar, "http://a.example.com/x/s.ts", None).unwrap().contains("s=2"));
        // Different ports are the same host (RFC 6265 section 8.5).
        assert!(cookies_sent(&jar, "https://a.example.com:8443/", None).unwrap().contains("k=1"));
    }

    #[test]
    fn a_cookie_is_sent_back_byte_for_byte() {
        let values: [&[u8]; 6] = [
            b"plain",
            "\u{e4}\u{a0}\u{1f600}".as_bytes(),
            b"\xe9",
            b"a\xff\x80z",
            b"\x85mid\xa0",
            "\u{f7e9}".as_bytes(),
        ];
        for value in values {
            let line = [b"k=", value, b"; Path=/"].concat();
            let jar = jar_after("https://a.example.com/", &[&cookie_text(&line)]);
            let mut fields = Vec::new();
            jar.add_to_headers(&url("https://a.example.com/x"), &mut fields);
            let sent = fields.pop().map(|(_, sent)| sent.as_bytes().to_vec());
            assert_eq!(sent, Some([b"k=", value].concat()), "{value:?}");
        }
    }

    #[test]
    fn a_server_cannot_set_cookies_for_unrelated_hosts() {
        for (from, domain, to) in [
            ("https://a.example.com/", "other.com", "https://other.com/"),
            ("https://a.example.com/", "com", "https://b.com/"),
            ("https://a.example.com/", "b.a.example.com", "https://b.a.example.com/"),
            ("https://a.co.uk/", ".co.uk", "https://b.co.uk/"),
            ("https://a.github.io/", "GitHub.io", "https://b.github.io/"),
            ("https://a.test/", "test", "https://b.test/"),
            ("https://a.com./", "com.", "https://b.com./"),
            ("http://203.0.113.9/", "113.9", "http://198.51.113.9/"),
            ("http://203.0.113.9/", "203.0.113.10", "http://203.0.113.10/"),
            ("http://localhost/", "localhost", "http://a.localhost/"),
            ("https://github.io/", "github.io", "https://a.github.io/"),
        ] {
            let jar = jar_after(from, &[&format!("x=1; Path=/; Domain={domain}")]);
            assert_eq!(cookies_sent(&jar, to, None), None, "{from} {domain}");
        }
        for (from, domain) in [
            ("https://github.io/", "github.io"),
            ("http://localhost/", "localhost"),
            ("http://127.0.0.1/", "127.0.0.1"),
        ] {
            let jar = jar_after(from, &[&format!("x=1; Path=/; Domain={domain}")]);
            assert_eq!(cookies_sent(&jar, from, None).as_deref(), Some("x=1"), "{from}");
        }
    }

    #[test]
    fn a_cookie_is_replaced_and_removed_by_its_server() {
        let jar = jar_after(
            "http://h/",
            &["a=1; Path=/", "a=2; Path=/", "b=3; Path=/; Max-Age=99999999999999999999", "c=\r; Path=/"],
        );
        // In either order: the store does not order cookies of equal paths.
        let both = cookies_sent(&jar, "http://h/", None);
        assert!(matches!(both.as_deref(), Some("a=2; b=3" | "b=3; a=2")), "{both:?}");
        for line in ["a=; Path=/; Max-Age=0", "b=; Path=/; Expires=Thu, 01 Jan 1970 00:00:00 GMT"] {
            jar.store_cookies(&url("http://h/"), &[line.to_owned()]);
        }
        assert_eq!(cookies_sent(&jar, "http://h/", None), None);
    }

    #[test]
    fn cookies_of_the_program_itself_take_precedence() {
        let jar = jar_after("http://h/", &["a=server; Path=/", "b=server; Path=/"]);
        assert_eq!(cookies_sent(&jar, "http://h/", Some("a=mine")).as_deref(), Some("a=mine; b=server"));
        assert_eq!(cookies_sent(&jar, "http://g/", Some("a=mine")).as_deref(), Some("a=mine"));
    }

    #[test]
    fn number_and_length_are_bounded() {
        let lines: Vec<String> = (0..1000).map(|n| format!("n{n}=x; Path=/")).collect();
        let jar = CookieJar::default();
        jar.store_cookies(&url("http://h/"), &lines);
        jar.store_cookies(&url("http://h/"), &[format!("long={}; Path=/", "x".repeat(5000))]);
        let sent = cookies_sent(&jar, "http://h/", None).unwrap();
        assert!(sent.contains("n0=x") && !sent.contains("n60=x") && !sent.contains("long"), "{sent}");
        for n in 0..100 {
            jar.store_cookies(&url(&format!("http://h{n}/")), &lines);
            assert!(jar.0.borrow().iter_any().count() <= MAX_COOKIES);
        }
        let long: Vec<String> = (0..50).map(|n| format!("l{n}={}; Path=/", "x".repeat(1000))).collect();
        let jar = CookieJar::default();
        jar.store_cookies(&url("http://h/"), &long);
        assert!((4000..=MAX_FIELD_LEN).contains(&cookies_sent(&jar, "http://h/", None).unwrap().len()));
    }
}
