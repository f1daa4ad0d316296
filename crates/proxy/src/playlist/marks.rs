//! The mark of a URL that a playlist has named: `/from-list/https://host/path` instead of `/https://host/path`.
//!
//! URLs in a playlist may lead no further into local networks than the playlist's own server is. The restriction is
//! part of the URL that the player gets. So it applies whichever program requests the URL, under whichever name and
//! however late, and it restricts nothing else. A mark can only reduce permissions: a URL without it counts as typed by
//! the user.
//!
//! Two kinds of text in a playlist could lead a player to the proxy without the mark: URLs that the proxy parses (they
//! get the mark when they are rewritten), and text that the proxy does not take for a URL although a player may.
//! Wherever such text has the form of a request to the proxy, the mark is inserted ([`mark_requests`]). The text is
//! examined as players read it: references, CDATA sections and comments of XML are resolved before.
//!
//! Remembering the URLs of playlists would not suffice: the memory is bounded in size and time, and a player with a
//! full buffer may request a URL later than that.

use std::borrow::Cow;

use marline_net::egress::AddressZone;

use super::parse_budget::{ParseBudget, PlaylistError};
use crate::client::media_url;

/// The path prefix of a URL from a playlist whose server is in this zone, or was referred to from there.
pub(crate) const fn mark_for(zone: AddressZone) -> &'static str {
    match zone {
        AddressZone::Internet => "from-list/",
        AddressZone::Private => "from-list-private/",
        AddressZone::LinkLocal => "from-list-link/",
        AddressZone::Metadata => "from-list-metadata/",
        AddressZone::Host => "from-list-local/",
    }
}

/// The zone that the marks of a path and query name, and the rest of the path. Of several marks the least local one
/// counts.
pub(crate) fn strip_marks(path_and_query: &str) -> (Option<AddressZone>, &str) {
    const ZONES: [AddressZone; 5] = [
        AddressZone::Internet,
        AddressZone::Private,
        AddressZone::LinkLocal,
        AddressZone::Metadata,
        AddressZone::Host,
    ];
    let (mut least_local, mut path) = (None, path_and_query);
    while let Some((zone, unmarked)) = ZONES.iter().find_map(|zone| {
        let after_mark = path.strip_prefix('/')?.strip_prefix(mark_for(*zone))?;
        // Keep the slash before the URL, which is part of the path.
        Some((*zone, path.get(path.len() - after_mark.len() - 1..)?))
    }) {
        least_local = Some(least_local.map_or(zone, |least: AddressZone| least.min(zone)));
        path = unmarked;
    }
    (least_local, path)
}

/// How players interpret a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TextForm {
    /// Line by line, as a playlist.
    Lines,
    /// As one value: within a URL, players ignore its line breaks as well.
    Value,
}

impl TextForm {
    /// Whether URL parsers ignore a character (WHATWG URL standard section 4.4).
    fn ignores(self, byte: u8) -> bool {
        byte == b'\t' || self == Self::Value && matches!(byte, b'\n' | b'\r')
    }
}

/// Inserts the mark wherever a text has the form of an unmarked request to the proxy, and returns the number of
/// insertions. The URLs of these requests are added to those that the playlist names. `authority` is the proxy's host
/// and port, as the player writes it.
///
/// # Errors
/// The budget is exhausted.
pub(crate) fn mark_requests<'a>(
    (text, form): (&'a str, TextForm),
    mark: &str,
    authority: &str,
    budget: &mut ParseBudget,
) -> Result<(Cow<'a, str>, usize), PlaylistError> {
    let (mut marked, mut copied_until, mut count) = (String::new(), 0, 0);
    for (colon, _) in text.match_indices(':') {
        let Some(slash) = request_slash(text, form, colon) else { continue };
        budget.charge_work(slash.min(MAX_SCANNED))?;
        let before = text.get(..=slash).unwrap_or_default();
        if slash < copied_until || before.ends_with(mark) || is_other_host(before, authority) {
            continue;
        }
        marked.push_str(text.get(copied_until..=slash).unwrap_or_default());
        marked.push_str(mark);
        (copied_until, count) = (slash + 1, count + 1);
        let request = text.get(slash..).unwrap_or_default().chars().take(MAX_SCANNED);
        let request = request.take_while(|c| !is_delimiter(*c)).filter(|c| *c != '\t');
        let request: String = request.map(|c| if c == '\\' { '/' } else { c }).collect();
        if let Ok(target) = media_url::parse(&request) {
            budget.urls.add_unparsed(&target.url);
        }
    }
    if copied_until == 0 {
        return Ok((Cow::Borrowed(text), 0));
    }
    marked.push_str(text.get(copied_until..).unwrap_or_default());
    Ok((Cow::Owned(marked), count))
}

/// The slash before `http:/` or `https:/`, given its colon; `None` if the text has another form. Players treat a
/// backslash as a slash and ignore some characters ([`TextForm`]).
fn request_slash(text: &str, form: TextForm, colon: usize) -> Option<usize> {
    let (before_colon, after_colon) = (text.as_bytes().get(..colon)?, text.as_bytes().get(colon + 1..)?);
    if !matches!(after_colon.iter().find(|byte| !form.ignores(**byte)), Some(b'/' | b'\\')) {
        return None;
    }
    let mut reversed = before_colon.iter().enumerate().rev().filter(|(_, byte)| !form.ignores(**byte)).peekable();
    reversed.next_if(|(_, byte)| byte.eq_ignore_ascii_case(&b's'));
    for expected in b"ptth" {
        reversed.next().filter(|(_, byte)| byte.eq_ignore_ascii_case(expected))?;
    }
    reversed.next().filter(|(_, byte)| matches!(byte, b'/' | b'\\')).map(|(at, _)| at)
}

/// Whether a text that ends with a slash is the beginning of a URL of another host than the proxy.
fn is_other_host(text_before: &str, authority: &str) -> bool {
    let mut scan_start = text_before.len().saturating_sub(MAX_SCANNED);
    while !text_before.is_char_boundary(scan_start) {
        scan_start += 1;
    }
    let last_token = text_before.get(scan_start..).unwrap_or_default();
    let token = last_token.rsplit(is_delimiter).next().unwrap_or_default();
    let Some((_, after_scheme)) = token.rsplit_once("://") else { return false };
    let Some((host, path)) = after_scheme.split_once(['/', '\\', '?', '#']) else { return false };
    let port_of = |authority: &str| {
        let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        port.and_then(|port| port.parse::<u16>().ok()).unwrap_or(80)
    };
    // The proxy has many names, but one port.
    port_of(host) != port_of(authority) && !path.contains("..") && !path.to_ascii_lowercase().contains("%2e")
}

fn is_delimiter(c: char) -> bool {
    c != '\t' && (c.is_whitespace() || c.is_control() || "\"'<>,;=&|()".contains(c))
}

/// How much of an unparsed URL is examined, in bytes.
const MAX_SCANNED: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::playlist::url_rewrite::tests::test_budget;

    fn marked_lines(text: &str) -> String {
        mark_requests(
            (text, TextForm::Lines),
            mark_for(AddressZone::Internet),
            "127.0.0.1:8480",
            &mut test_budget(),
        )
        .unwrap()
        .0
        .into_owned()
    }

    #[test]
    fn line_breaks_in_a_value_are_ignored() {
        let value = |text: &str| {
            let marked = mark_requests(
                (text, TextForm::Value),
                mark_for(AddressZone::Internet),
                "127.0.0.1:8480",
                &mut test_budget(),
            );
            marked.unwrap().0.into_owned()
        };
        for (plain, with) in [
            ("/ht\ntp://10.0.0.1/", "/from-list/ht\ntp://10.0.0.1/"),
            ("/\r\nhttps\r:\n/10.0.0.1/", "/from-list/\r\nhttps\r:\n/10.0.0.1/"),
            ("http://h/\nhttp://g/", "http://h/\nhttp://g/"),
        ] {
            assert_eq!(value(plain), with);
            assert_eq!(value(with), with, "it is marked once");
        }
        assert_eq!(marked_lines("a/\nhttp://h/"), "a/\nhttp://h/");
    }

    #[test]
    fn marks_are_stripped_and_the_least_local_one_counts() {
        for (path, zone, stripped) in [
            ("/https://h/f?x", None, "/https://h/f?x"),
            ("/from-list/https://h/f?x", Some(AddressZone::Internet), "/https://h/f?x"),
            ("/from-list-local/http://h/", Some(AddressZone::Host), "/http://h/"),
            ("/from-list-private/from-list/from-list-local/http://h/", Some(AddressZone::Internet), "/http://h/"),
            ("/from-lists/http://h/", None, "/from-lists/http://h/"),
            ("/from-list/", Some(AddressZone::Internet), "/"),
            ("/", None, "/"),
            ("", None, ""),
        ] {
            assert_eq!(strip_marks(path), (zone, stripped), "{path}");
        }
    }

    #[test]
    fn text_that_a_player_could_take_for_a_request_to_the_proxy_is_marked() {
        for (plain, with) in [
            ("/http://10.0.0.1/x", "/from-list/http://10.0.0.1/x"),
            ("X='/HTTPS:/10.0.0.1/x'", "X='/from-list/HTTPS:/10.0.0.1/x'"),
            ("a\\http:\\\\10.0.0.1", "a\\from-list/http:\\\\10.0.0.1"),
            ("../../http://10.0.0.1/x", "../../from-list/http://10.0.0.1/x"),
            ("/ht\ttp:\t//10.0.0.1/x", "/from-list/ht\ttp:\t//10.0.0.1/x"),
            ("http://127.0.0.1:8480/http://10.0.0.1/x", "http://127.0.0.1:8480/from-list/http://10.0.0.1/x"),
            ("http://localhost:8480/http://10.0.0.1/x", "http://localhost:8480/from-list/http://10.0.0.1/x"),
            ("/from-list-local/http://127.0.0.1/", "/from-list-local/from-list/http://127.0.0.1/"),
            ("https://a.example/../../http://h/x", "https://a.example/../../from-list/http://h/x"),
            ("A=https://a.example,URI=/http://h/x", "A=https://a.example,URI=/from-list/http://h/x"),
            ("/http://h/http://g/", "/from-list/http://h/http://g/"),
            ("é/http://h/é", "é/from-list/http://h/é"),
        ] {
            assert_eq!(marked_lines(plain), with);
            assert_eq!(marked_lines(with), with, "it is marked once");
        }
    }

    #[test]
    fn other_text_stays_unchanged() {
        for plain in [
            "",
            "http://h/x",
            "tvg-logo=\"https://web.archive.org/web/2020/http://h/logo.png\"",
            "u=http://h/x",
            "/httpx://h",
            "x-http://h/",
            "/http:h",
            "//http",
            ":",
            "http:",
        ] {
            assert_eq!(marked_lines(plain), plain);
        }
    }

    #[test]
    fn urls_of_marked_requests_are_remembered_by_host_and_port() {
        let mut budget = test_budget();
        let plain = "\"/http://10.0.0.1:81/x\" /http:/h/y";
        mark_requests((plain, TextForm::Lines), mark_for(AddressZone::Internet), "127.0.0.1:8480", &mut budget)
            .unwrap();
        let contains = |url: &str| budget.urls.contains(&url.parse().unwrap());
        assert!(contains("http://10.0.0.1:81/") && contains("http://h/"));
        assert!(!contains("http://10.0.0.1/x") && !contains("https://h/y"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(plain in "([/:.a-z\\\\\té]|http|/https:/|from-list){0,20}") {
            let once = marked_lines(&plain);
            proptest::prop_assert_eq!(marked_lines(&once), once);
        }
    }
}
