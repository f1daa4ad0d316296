//! Reads and writes cookie files in Netscape's format, which curl, wget and browser extensions use.
//!
//! One cookie per line, with tabs between the fields: domain, whether subdomains get the cookie (`TRUE`), path,
//! whether it requires TLS, expiry (seconds since 1970; 0: end of the session), name, value. `#HttpOnly_` before the
//! domain marks a cookie that is hidden from scripts. Other lines that begin with `#` are comments. Lines that are
//! not cookies are skipped, as in curl. Messages never repeat a line, since it may contain a secret.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cookie_store::{CookieDomain, CookieExpiration};
use url::Url;

use super::{CookieJar, cookie_bytes, cookie_text};
use crate::private_file::create_log;

impl CookieJar {
    /// Adds the cookies of a file, except expired ones. Returns the numbers of the lines that are not cookies.
    ///
    /// # Errors
    /// The file cannot be read, is longer than 4 MiB, or contains text and no cookie.
    pub fn load(&self, path: &Path) -> io::Result<Vec<usize>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE_LEN + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE_LEN {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the file is too long for a cookie file (at most 4 MiB)",
            ));
        }
        self.load_bytes(&bytes)
    }

    fn load_bytes(&self, bytes: &[u8]) -> io::Result<Vec<usize>> {
        let (mut skipped, mut has_cookies) = (Vec::new(), false);
        let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        for (n, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            match self.load_line(cookie_text(line).trim_end_matches('\r'), unix_now()) {
                Some(is_cookie) => has_cookies |= is_cookie,
                None => skipped.push(n + 1),
            }
        }
        match skipped.first() {
            Some(first) if !has_cookies => {
                let text = format!("line {first} is not a cookie: a cookie has seven fields separated by tabs");
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
            _ => Ok(skipped),
        }
    }

    /// `true` for a cookie, `false` for a comment or an empty line, `None` for anything else.
    fn load_line(&self, line: &str, now: i64) -> Option<bool> {
        let line = line.strip_prefix("#HttpOnly_").map_or(line, str::trim_start);
        if line.trim().is_empty() || line.starts_with('#') {
            return Some(false);
        }
        // Some editors replace tabs by blanks.
        let fields: Vec<&str> = if line.contains('\t') {
            line.split('\t').take(7).collect()
        } else {
            line.split_whitespace().collect()
        };
        let (domain, include_subdomains, path, secure, expires, name, value) = match fields[..] {
            [domain, include_subdomains, path, secure, expires, name, value] => {
                (domain, include_subdomains, path, secure, expires, name, value)
            }
            // curl omits the field of an empty value.
            [domain, include_subdomains, path, secure, expires, name] => {
                (domain, include_subdomains, path, secure, expires, name, "")
            }
            _ => return None,
        };
        let host = domain.trim_start_matches('.');
        let scheme = if secure.eq_ignore_ascii_case("true") { "https" } else { "http" };
        // Some programs write a fraction, and some a word for session cookies.
        let is_session = expires.eq_ignore_ascii_case("session") || expires.trim().is_empty();
        let expires: i64 = if is_session { 0 } else { expires.split('.').next()?.trim().parse().ok()? };
        let ipv6: Result<std::net::Ipv6Addr, _> = host.parse();
        let host = ipv6.map_or_else(|_| host.to_owned(), |address| format!("[{address}]"));
        let url = Url::parse(&format!("{scheme}://{host}/")).ok().filter(|_| !name.is_empty())?;
        let mut set_cookie = format!("{name}={value}; Path={path}");
        if include_subdomains.eq_ignore_ascii_case("true") {
            set_cookie.push_str(&format!("; Domain={host}"));
        }
        if scheme == "https" {
            set_cookie.push_str("; Secure");
        }
        match expires {
            0 => {}
            expires if expires <= now => return Some(true),
            expires => set_cookie.push_str(&format!("; Max-Age={}", expires - now)),
        }
        self.store_cookies(&url, &[set_cookie]);
        Some(true)
    }

    /// Writes all cookies to a file that only its owner may read, replacing its content.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut file = create_log(path)?;
        file.write_all(&cookie_bytes(&self.to_netscape()))
    }

    fn to_netscape(&self) -> String {
        let store = self.0.borrow();
        let flag_text = |flag: bool| if flag { "TRUE" } else { "FALSE" };
        let mut lines: Vec<String> = store
            .iter_any()
            .filter_map(|cookie| {
                let (domain, include_subdomains) = match &cookie.domain {
                    CookieDomain::HostOnly(host) => (host.clone(), false),
                    CookieDomain::Suffix(domain) => (format!(".{domain}"), true),
                    CookieDomain::NotPresent | CookieDomain::Empty => return None,
                };
                let expires = match cookie.expires {
                    CookieExpiration::AtUtc(at) => at.unix_timestamp(),
                    CookieExpiration::SessionEnd => 0,
                };
                if expires != 0 && expires <= unix_now() {
                    return None;
                }
                let http_only = if cookie.http_only() == Some(true) { "#HttpOnly_" } else { "" };
                let secure = flag_text(cookie.secure() == Some(true));
                let (path, name, value) = (String::from(&cookie.path), cookie.name(), cookie.value());
                Some(format!(
                    "{http_only}{domain}\t{}\t{path}\t{secure}\t{expires}\t{name}\t{value}\n",
                    flag_text(include_subdomains)
                ))
            })
            .collect();
        lines.sort();
        format!("# Netscape HTTP Cookie File\n{}", lines.concat())
    }
}

/// Reads cookies from these bytes and writes them again; `None`: they are not a cookie file.
#[cfg(feature = "fuzzing")]
pub(crate) fn round_trip(bytes: &[u8]) -> Option<String> {
    let cookie_jar = CookieJar::default();
    cookie_jar.load_bytes(bytes).ok().map(|_| cookie_jar.to_netscape())
}

fn unix_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed())
}

/// Our choice: about a hundred times what a browser keeps for the sites that a user downloads from.
const MAX_FILE_LEN: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn jar_from(text: &str) -> CookieJar {
        let jar = CookieJar::default();
        for line in text.lines() {
            let _: bool = jar.load_line(line, 1_000_000_000).unwrap_or_else(|| panic!("{line}"));
        }
        jar
    }

    fn cookies_sent(jar: &CookieJar, url: &str) -> Option<String> {
        let mut fields = Vec::new();
        jar.add_to_headers(&url.parse().unwrap(), &mut fields);
        fields.pop().map(|(_, value)| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_file_written_by_other_programs_is_read() {
        let jar = jar_from(
            "# Netscape HTTP Cookie File\n# comment\n\n\
            .example.com\tTRUE\t/\tFALSE\t0\tall\t1\n\
            a.example.com\tFALSE\t/d\tTRUE\t4102444800\ts\t2\n\
            #HttpOnly_a.example.com\tFALSE\t/\tFALSE\t4102444800.5\th\t\n\
            a.example.com\tFALSE\t/\tFALSE\t5\texpired\t3\n\
            b.example.com\tFALSE\t/\tFALSE\t0\tempty\n",
        );
        let all = cookies_sent(&jar, "https://a.example.com/d/f").unwrap();
        assert!(["s=2; h=; all=1", "s=2; all=1; h="].contains(&all.as_str()), "{all}");
        assert_eq!(cookies_sent(&jar, "http://c.example.com/").as_deref(), Some("all=1"));
        // The order of cookies with equal paths does not matter.
        assert!(
            ["all=1; empty=", "empty=; all=1"]
                .contains(&cookies_sent(&jar, "http://b.example.com/").unwrap().as_str())
        );
        assert_eq!(cookies_sent(&jar, "http://example.org/"), None);
    }

    #[test]
    fn written_cookies_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cookies");
        let saved = CookieJar::default();
        let lines = ["a=1; Path=/; Domain=example.com", "b=2; Path=/x; Secure; HttpOnly; Max-Age=1000"];
        saved.store_cookies(&"https://h.example.com/x/y".parse().unwrap(), &lines.map(str::to_owned));
        saved.save(&path).unwrap();
        let loaded = CookieJar::default();
        loaded.load(&path).unwrap();
        assert_eq!(cookies_sent(&loaded, "https://h.example.com/x/z").as_deref(), Some("b=2; a=1"));
        assert_eq!(cookies_sent(&loaded, "http://g.example.com/x/z").as_deref(), Some("a=1"));
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn lines_that_are_not_cookies_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cookies");
        let text = b"\xef\xbb\xbfh.example\tFALSE\t/\tFALSE\tSession\ta\t1\n\
            a line of something else\n\
            h.example FALSE / FALSE 0 b 2\r\n\
            h.example\tFALSE\t/\tFALSE\t0\tc\t3\tmore\n\
            h.example\tFALSE\t/\tFALSE\t0\td\t\xfc\n\
            Set-Cookie: e=5; Path=/\n\
            a b\tFALSE\t/\tFALSE\t0\tf\t6\n\
            ::1\tFALSE\t/\tFALSE\t0\tg\t7\n";
        std::fs::write(&path, text).unwrap();
        let jar = CookieJar::default();
        assert_eq!(jar.load(&path).unwrap(), [2, 6, 7]);
        let mut fields = Vec::new();
        jar.add_to_headers(&"http://h.example/".parse().unwrap(), &mut fields);
        let all = fields.pop().unwrap().1.as_bytes().to_vec();
        let contains = |cookie: &[u8]| all.windows(cookie.len()).any(|part| part == cookie);
        assert!(
            contains(b"a=1") && contains(b"b=2") && contains(b"c=3") && contains(b"d=\xfc") && all.len() == 18,
            "{all:?}"
        );
        let saved = dir.path().join("saved");
        jar.save(&saved).unwrap();
        assert!(std::fs::read(&saved).unwrap().windows(4).any(|part| part == b"d\t\xfc\n"));
        assert_eq!(cookies_sent(&jar, "http://[::1]/").as_deref(), Some("g=7"));
    }

    #[test]
    fn a_line_that_is_not_a_cookie_is_reported_without_its_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cookies");
        for text in ["h\tFALSE\t/\tFALSE\tsoon\tsecret\tsecret\n", "secret=1; Path=/\n", "a\tb\n"] {
            std::fs::write(&path, format!("# comment\n{text}")).unwrap();
            let error = CookieJar::default().load(&path).unwrap_err().to_string();
            assert!(error.starts_with("line 2 is not a cookie") && !error.contains("secret"), "{error}");
        }
    }
}
